//! The metrics of all components at one address, with liveness and readiness for probes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use daemon_kit::admin::Admin;
use daemon_kit::connections::ConnectionCounters;
use prometheus_client::registry::Registry;

use super::base::Base;
use super::status::PartPhase;
use super::supervisor::{Stage, Supervisor};
use crate::fail::Outcome;
use crate::instance::Instance;

const PORT: u16 = 8080;
/// Name in the status.
const NAME: &str = "metrics";

pub(crate) fn address(instance: &Instance) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(instance.address(1)), PORT)
}

/// Serves `/metrics`, behind the metrics token, `/healthz` and `/readyz`.
pub(crate) async fn start(
    base: &Base,
    supervisor: &mut Supervisor,
    registry: Registry,
    connections: &ConnectionCounters,
) -> Outcome {
    let address = address(&base.instance);
    let listener = super::scheduler::listen(address, "the metrics server").await?;
    let ready = base.parts.clone();
    let admin = Admin::new(Arc::new(registry), connections.server(NAME))
        .program("bellows")
        .behind_token(Some(base.secrets.metrics_token))
        .ready(move || {
            let waiting: Vec<String> = ready
                .statuses()
                .into_iter()
                .filter(|part| part.phase != PartPhase::Ready)
                .map(|part| format!("{}: {}", part.name, part.note))
                .collect();
            if waiting.is_empty() {
                Ok(())
            } else {
                Err(waiting.join("; "))
            }
        });
    base.parts.register(
        NAME,
        Some(format!("http://{address}/metrics")),
        Box::new(|| Ok(())),
        None,
    );
    let token = supervisor.token(Stage::Api);
    supervisor.run(NAME, Stage::Api, async move {
        daemon_kit::admin::serve(listener, admin, token).await;
        Ok(())
    });
    Ok(())
}
