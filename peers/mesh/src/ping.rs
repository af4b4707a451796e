//! Asks each machine every 10 s: round-trip time and last response.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use daemon_kit::http_client::HttpClient;
use hyper::Method;
use peers_core::MachineId;

use crate::client::{CallError, REQUEST_WITHIN, connect};
use crate::mesh::Mesh;

/// Each machine is asked at this pace.
const PING_EVERY: Duration = Duration::from_secs(10);
/// A machine that is new is asked within this time.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Runs until it is dropped.
pub(crate) async fn run(mesh: Mesh) {
    let mut due: BTreeMap<MachineId, Instant> = BTreeMap::new();
    let mut connections: BTreeMap<MachineId, HttpClient> = BTreeMap::new();
    loop {
        let living = mesh.living();
        due.retain(|id, _| living.iter().any(|(living, _)| living == id));
        connections.retain(|id, _| due.contains_key(id));
        let now = Instant::now();
        let mut asked = living;
        asked.retain(|(id, _)| due.get(id).is_none_or(|at| *at <= now));
        let pings: Vec<_> = asked
            .into_iter()
            .map(|(id, address)| {
                due.insert(id.clone(), now + PING_EVERY);
                let open = connections.remove(&id);
                let mesh = &mesh;
                async move {
                    let pinged = ping(mesh, address, open).await;
                    (id, pinged)
                }
            })
            .collect();
        for (id, pinged) in futures::future::join_all(pings).await {
            match pinged {
                Ok((client, rtt)) => {
                    mesh.responded(&id, rtt);
                    connections.insert(id, client);
                }
                Err(error) => tracing::debug!(%id, %error, "a machine does not respond"),
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// One request over an open connection: its start would count as part of the round trip.
async fn ping(
    mesh: &Mesh,
    address: SocketAddr,
    open: Option<HttpClient>,
) -> Result<(HttpClient, Duration), CallError> {
    let mut client = match open.filter(HttpClient::is_usable) {
        Some(client) => client,
        None => {
            let mut client = connect(mesh.keys(), address).await?;
            client
                .send(Method::GET, "/v1/ping", Bytes::new(), REQUEST_WITHIN)
                .await?;
            client
        }
    };
    let began = Instant::now();
    client
        .send(Method::GET, "/v1/ping", Bytes::new(), REQUEST_WITHIN)
        .await?;
    Ok((client, began.elapsed()))
}
