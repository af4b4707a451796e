//! The API server, and the client through which the other components use it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use apiserver::{Config, Position, StartError};
use daemon_kit::connections::ConnectionCounters;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};

use super::base::Base;
use super::supervisor::{Stage, Supervisor};
use crate::fail::{Fail, Outcome};

/// Longest time to connect to it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Name in the status.
const NAME: &str = "apiserver";

/// Handles of the running API server.
pub(crate) struct Started {
    pub(crate) client: Client,
    /// Identity of the store.
    pub(crate) store_id: String,
}

/// Opens the store, listens, writes the kubeconfig and serves.
pub(crate) async fn start(
    base: &Base,
    supervisor: &mut Supervisor,
    connections: &ConnectionCounters,
    audit_log: Option<PathBuf>,
) -> Outcome<Started> {
    let listen = base.instance.api();
    let config = Config {
        state_dir: base.state.path().to_owned(),
        listen,
        names: vec![
            "localhost".into(),
            "kubernetes".into(),
            "kubernetes.default.svc".into(),
        ],
        seen: seen(base.state.path()),
        audit_log,
    };
    let mut server = apiserver::start(config)
        .await
        .map_err(|error| explain(&error))?;
    server.count_connections(connections.server(NAME));
    let address = format!("https://{}", server.addr);
    let kubeconfig = server.kubeconfig_path.clone();
    let store_id = format!("{:016x}", server.store_id());
    // This is the only place that sets it.
    let _ = base.backups.set(server.backups());
    let token = supervisor.token(Stage::Api);
    // The socket listens already. Requests wait in the kernel's queue until the server runs.
    base.parts
        .register(NAME, Some(address), Box::new(|| Ok(())), None);
    supervisor.run(NAME, Stage::Api, async move {
        server
            .run(token)
            .await
            .map_err(|error| daemon_kit::chain(&error))
    });
    let client = client(&kubeconfig).await?;
    Ok(Started { client, store_id })
}

/// Positions of stores that guests' directories have recorded.
fn seen(state_dir: &Path) -> Vec<Position> {
    let seen = neonvm_runner::node::seen_stores(state_dir);
    let position = |seen: neonvm_runner::node::StorePosition| {
        Some(Position {
            id: u64::from_str_radix(&seen.id, 16).ok()?,
            revision: seen.revision,
        })
    };
    seen.into_iter().filter_map(position).collect()
}

fn explain(error: &StartError) -> Fail {
    let what = format!(
        "the API server does not start: {}",
        daemon_kit::chain(error)
    );
    match error {
        StartError::AddressInUse { .. } => Fail::try_again(what),
        StartError::Store(_) => Fail::missing(what)
            .rule("the store is never emptied or replaced without being asked to; guests run on meanwhile"),
        StartError::File(_) | StartError::Pki(_) | StartError::Listen { .. } => {
            Fail::missing(what).fix("mend the rights of, or the room in, the state directory")
        }
        _ => Fail::bug(what),
    }
}

async fn client(kubeconfig: &Path) -> Outcome<Client> {
    let broken = |error: &dyn std::error::Error| {
        Fail::bug(format!(
            "{}: {}",
            kubeconfig.display(),
            daemon_kit::chain(error)
        ))
    };
    let file = Kubeconfig::read_from(kubeconfig).map_err(|error| broken(&error))?;
    let mut config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(|error| broken(&error))?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // A proxy of the user cannot reach loopback addresses.
    config.proxy_url = None;
    api_client::connect(config).map_err(|error| broken(&error))
}
