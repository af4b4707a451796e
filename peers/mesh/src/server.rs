//! The HTTPS port for other machines, and the state that commands read.
//!
//! | route | does |
//! |---|---|
//! | `GET /v1/ping` | nothing, for the round-trip time |
//! | `GET /v1/peers` | all machines, as `bellows peers list -o json` shows them |
//! | `POST /v1/peers` `{"id":…,"address":…}` | a machine joins |
//! | `GET /v1/inventory` | what runs here, for a leader that gathers |
//! | `POST /v1/policies` | a policy for this machine |
//!
//! Each request needs the token of a key in the key file.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use daemon_kit::connections::{self, Bounds, Connection, ServerCounters};
use daemon_kit::serving::{Ending, Patience, converse};
use hyper::body::Incoming;
use hyper::service::service_fn;
use peers_core::{MAX_MACHINES, MachineId};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::mesh::Mesh;
use crate::published::is_name;

/// Longest handshake, and longest time of a request's body.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// Longest body: a policy with its source.
const BODY_BYTES: usize = 512 << 10;
const PATIENCE: Patience = Patience {
    head: Duration::from_secs(75),
    write: Duration::from_secs(20),
};

/// A machine, as commands show it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PeerStatus {
    /// Name of the machine.
    pub id: MachineId,
    /// Address of gossip and HTTPS.
    pub address: SocketAddr,
    /// Version of its program.
    pub release: String,
    /// The machine that gives this status.
    pub this: bool,
    /// It is heard.
    pub alive: bool,
    /// This machine carries out its plans.
    pub leads: bool,
    /// Round-trip time of the last request, ms.
    pub rtt_ms: Option<f64>,
    /// Time since its last response, s.
    pub last_response_s: Option<f64>,
    /// Compute units that no VM has.
    pub units_free: u32,
    /// Members of each set there.
    pub counts: BTreeMap<String, u32>,
}

/// Body of `POST /v1/peers`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JoinRequest {
    pub(crate) id: MachineId,
    pub(crate) address: SocketAddr,
}

/// Response to [`JoinRequest`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JoinResponse {
    pub(crate) peers: Vec<SocketAddr>,
}

/// Serves until `cancel`.
pub(crate) async fn serve(listener: TcpListener, mesh: Mesh, cancel: CancellationToken) {
    let bounds = Bounds::pages();
    let counters = ServerCounters::unregistered();
    let stop = cancel.clone();
    let serve_one =
        move |stream, connection| serve_connection(stream, connection, mesh.clone(), stop.clone());
    connections::accept(listener, bounds, counters, cancel, serve_one).await;
}

async fn serve_connection(
    stream: TcpStream,
    connection: Connection,
    mesh: Mesh,
    cancel: CancellationToken,
) -> Ending {
    let acceptor = TlsAcceptor::from(mesh.keys().own().identity.server.clone());
    let stream = match timeout(READ_WITHIN, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "a TLS handshake failed");
            return Ending::Broken;
        }
        Err(_) => return Ending::TimedOut,
    };
    let service = service_fn(move |request: Request<Incoming>| {
        let (connection, mesh) = (connection.clone(), mesh.clone());
        async move { Ok::<_, Infallible>(respond(request, &connection, mesh).await) }
    });
    converse(stream, service, PATIENCE, cancel.cancelled()).await
}

/// Checks the caller, reads the whole body, and only then routes the request.
async fn respond(request: Request<Incoming>, connection: &Connection, mesh: Mesh) -> Response {
    let known = |key: &crate::keys::Key| key.expected.is_shown(request.headers());
    if !mesh.keys().all().iter().any(known) {
        mesh.refuse();
        return (
            StatusCode::UNAUTHORIZED,
            "no key of this machine's file is shown\n",
        )
            .into_response();
    }
    connection.trust();
    let (head, body) = request.into_parts();
    let body = match timeout(READ_WITHIN, to_bytes(Body::new(body), BODY_BYTES)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            return (StatusCode::PAYLOAD_TOO_LARGE, "the body is too large\n").into_response();
        }
        Err(_) => return (StatusCode::REQUEST_TIMEOUT, "the body took too long\n").into_response(),
    };
    let guard = connection.request();
    let Ok(response) = router(mesh)
        .oneshot(Request::from_parts(head, Body::from(body)))
        .await;
    guard.until_sent(response)
}

fn router(mesh: Mesh) -> Router {
    Router::new()
        .route("/v1/ping", get(async || "ok\n"))
        .route("/v1/peers", get(peers).post(join))
        .route("/v1/inventory", get(inventory))
        .route("/v1/policies", post(policy))
        .with_state(mesh)
}

async fn peers(State(mesh): State<Mesh>) -> Response {
    Json(mesh.status()).into_response()
}

async fn inventory(State(mesh): State<Mesh>) -> Response {
    match mesh.machine().inventory().await {
        Ok(inventory) => Json(inventory).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

async fn policy(State(mesh): State<Mesh>, body: Bytes) -> Response {
    match mesh.machine().apply_policy(body).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => (StatusCode::UNPROCESSABLE_ENTITY, format!("{error}\n")).into_response(),
    }
}

async fn join(State(mesh): State<Mesh>, body: Bytes) -> Response {
    let request = match read_join(&body) {
        Ok(request) => request,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    let status = mesh.status();
    if let Some((code, why)) = refusal(&status.peers, &request) {
        mesh.refuse();
        tracing::warn!(id = %request.id, address = %request.address, why, "a machine may not join");
        return (code, why).into_response();
    }
    tracing::info!(id = %request.id, address = %request.address, "a machine joins");
    mesh.greet(request.address);
    let known = status.peers.iter().filter(|peer| peer.alive);
    let peers = known.map(|peer| peer.address).collect();
    Json(JoinResponse { peers }).into_response()
}

/// Reads the body of a join.
///
/// # Errors
/// The text of the refusal.
pub(crate) fn read_join(body: &[u8]) -> Result<JoinRequest, String> {
    let request: JoinRequest =
        serde_json::from_slice(body).map_err(|error| format!("malformed: {error}\n"))?;
    if !is_name(&request.id) {
        return Err(
            "id must be a name of at most 63 small letters, digits, '-' and '.'\n".to_owned(),
        );
    }
    if request.address.ip().is_unspecified() || request.address.port() == 0 {
        return Err("address must be one that other machines reach\n".to_owned());
    }
    Ok(request)
}

/// Why a machine may not join. `None` if it may.
fn refusal(peers: &[PeerStatus], request: &JoinRequest) -> Option<(StatusCode, String)> {
    let alive = || peers.iter().filter(|peer| peer.alive);
    let same = alive().find(|peer| peer.id == request.id);
    if let Some(same) = same.filter(|same| same.address != request.address) {
        let text = format!(
            "the name {} is that of the machine at {}: start this one with another --node-name\n",
            same.id, same.address
        );
        return Some((StatusCode::CONFLICT, text));
    }
    if same.is_none() && alive().count() >= MAX_MACHINES {
        let text = format!(
            "there are {MAX_MACHINES} machines, the most without Kubernetes: \
             install Bellows in a cluster (docs/install-cluster.md)\n"
        );
        return Some((StatusCode::FORBIDDEN, text));
    }
    None
}

/// All machines and this one's role.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeshStatus {
    /// `leads`, `gathers`, `follows`, `waits` or `holds`.
    pub role: String,
    /// Why it holds; empty otherwise.
    pub reason: String,
    /// Number of machines that there should be.
    pub expected: usize,
    /// Datagrams and requests that no key opened, and machines that were refused.
    pub dropped: u64,
    /// Members that are wanted of each set over all machines.
    pub wanted: BTreeMap<String, u32>,
    /// All machines of the last day, by name.
    pub peers: Vec<PeerStatus>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: usize) -> PeerStatus {
        PeerStatus {
            id: format!("m{number}").into(),
            address: format!("10.0.0.{number}:7").parse().unwrap(),
            release: String::new(),
            this: false,
            alive: true,
            leads: false,
            rtt_ms: None,
            last_response_s: None,
            units_free: 0,
            counts: BTreeMap::new(),
        }
    }

    fn request(id: &str, address: &str) -> JoinRequest {
        JoinRequest {
            id: id.into(),
            address: address.parse().unwrap(),
        }
    }

    /// Requirement: V23
    #[test]
    fn v23_seventeenth_machine_is_refused_with_the_advice_to_use_kubernetes() {
        let sixteen: Vec<PeerStatus> = (1..=16).map(peer).collect();
        let (code, text) = refusal(&sixteen, &request("m17", "10.0.0.17:7")).unwrap();
        assert_eq!(code, StatusCode::FORBIDDEN);
        assert!(
            text.contains("16 machines") && text.contains("install-cluster.md"),
            "{text}"
        );
        assert_eq!(
            refusal(&sixteen, &request("m3", "10.0.0.3:7")),
            None,
            "it comes again"
        );
        assert_eq!(refusal(&sixteen[1..], &request("m17", "10.0.0.17:7")), None);
    }

    /// Requirement: V23
    #[test]
    fn v23_second_machine_of_one_name_is_refused_by_the_older_ones_address() {
        let (code, text) = refusal(&[peer(1)], &request("m1", "10.0.0.9:7")).unwrap();
        assert_eq!(code, StatusCode::CONFLICT);
        assert!(
            text.contains("10.0.0.1:7") && text.contains("--node-name"),
            "{text}"
        );
        let mut dead = peer(1);
        dead.alive = false;
        assert_eq!(refusal(&[dead], &request("m1", "10.0.0.9:7")), None);
    }

    #[test]
    fn malformed_joins_are_refused_by_the_member() {
        for (body, why) in [
            ("", "malformed"),
            (r#"{"id":"a"}"#, "address"),
            (r#"{"id":"A b","address":"10.0.0.1:7"}"#, "id must be"),
            (r#"{"id":"a","address":"0.0.0.0:7"}"#, "address must be"),
            (r#"{"id":"a","address":"10.0.0.1:0"}"#, "address must be"),
            (
                r#"{"id":"a","address":"10.0.0.1:7","x":1}"#,
                "unknown field",
            ),
        ] {
            let error = read_join(body.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{body}: {error}");
        }
    }
}
