//! The scheduler: permits for agents, nodes for new pods.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use daemon_kit::bearer::Expected;
use kube::Client;
use protocol::time::Span;
use scheduler::config::Config;
use scheduler::{Callers, Leadership, Params, StateHandle};
use tokio::net::TcpListener;

use super::base::Base;
use super::supervisor::{Stage, Supervisor};
use crate::fail::{Fail, Outcome};
use crate::instance::Instance;

/// Name in the status.
pub(crate) const NAME: &str = "scheduler";
/// Port of its metrics, beside the permits.
const METRICS_PORT: u16 = 9100;

/// Reads a configuration file. Without one, the built-in configuration.
///
/// # Errors
///
/// 64 with every problem of the file.
pub(crate) fn config(file: Option<&Path>) -> Outcome<Config> {
    let Some(path) = file else {
        return Ok(Config::default());
    };
    let text = std::fs::read_to_string(path)
        .map_err(|error| Fail::usage(format!("--scheduler-config {}: {error}", path.display())))?;
    let config = Config::parse(&text)
        .map_err(|error| Fail::usage(format!("--scheduler-config {}: {error}", path.display())))?;
    if config.scheduler_name == crate::instance::SCHEDULER_NAME {
        return Ok(config);
    }
    Err(Fail::usage(format!(
        "--scheduler-config {}: schedulerName is {:?}",
        path.display(),
        config.scheduler_name
    ))
    .rule(format!(
        "on one machine it is {:?}: VMs and the agent name it",
        crate::instance::SCHEDULER_NAME
    )))
}

/// Address of its metrics.
pub(crate) fn metrics_address(instance: &Instance) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(instance.address(2)), METRICS_PORT)
}

pub(crate) async fn start(
    base: &Base,
    supervisor: &mut Supervisor,
    client: &Client,
    config: Config,
) -> Outcome {
    let permits = base.instance.permits();
    let metrics = metrics_address(&base.instance);
    let state = StateHandle::default();
    let (ready, shown) = (state.clone(), state.clone());
    let params = Params {
        config,
        client: client.clone(),
        permit_listener: listen(permits, "the permit server").await?,
        extender_listener: None,
        metrics_listener: Some(listen(metrics, "the scheduler's metrics server").await?),
        metrics_token: Some(base.secrets.metrics_token),
        embedded_bind: true,
        count_plugged: true,
        callers: Callers::only(Expected::new(base.secrets.permit_token.reveal())),
        leadership: Leadership::Alone,
        // No earlier scheduler can still write: the lock on the state directory and the API server
        // in this process exclude it.
        takeover_wait: Span(0),
        clock: base.clock,
        state,
        log: None,
    };
    base.parts.register(
        NAME,
        Some(format!("http://{permits}")),
        Box::new(move || ready.ready()),
        Some(Box::new(move || shown.dump())),
    );
    let token = supervisor.token(Stage::Deciders);
    supervisor.run(NAME, Stage::Deciders, async move {
        scheduler::run(params, token)
            .await
            .map_err(|error| daemon_kit::chain(&error))
    });
    Ok(())
}

/// Listens on an address. `what` names the server in errors.
pub(crate) async fn listen(address: SocketAddr, what: &str) -> Outcome<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        Fail::missing(format!("{address} cannot be listened on: {error}"))
            .rule(format!("{what} listens there"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_config_is_usage_with_every_problem() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.json");
        std::fs::write(&path, r#"{"watermark": 2, "surprise": 1}"#).unwrap();
        let fail = config(Some(&path)).unwrap_err();
        assert_eq!(fail.exit() as u8, 64);
        assert!(
            fail.what().contains("watermark") && fail.what().contains("surprise"),
            "{fail}"
        );
        assert_eq!(
            config(Some(Path::new("/nonexistent"))).unwrap_err().exit() as u8,
            64
        );
        assert_eq!(config(None).unwrap(), Config::default());
    }
}
