//! The runner's `/metrics`, which reads the kernel's counters of the guest's traffic: see
//! [`crate::core::traffic`].

use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use daemon_kit::admin::metrics_route;
use daemon_kit::clock::Clock;
use prometheus_client::registry::Registry;
use protocol::time::{Span, Timestamp};
use tokio::process::Command;
use tokio::sync::Mutex;
use tracing::{debug, warn};

use super::metrics::Metrics;
use super::nft::NFT;
use crate::config::RunnerConfig;
use crate::core::traffic::{READ, Traffic, TrafficError, parse};

/// How long a result is reused: any host that reaches the pod's address may request it often, and
/// reading starts a program.
const FRESH: Span = Span::from_secs(1);
/// Longest run of the program, which takes milliseconds.
const LIMIT: Duration = Duration::from_secs(2);

/// Errors of reading the counters.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("cannot execute {NFT}")]
    Execute(#[source] io::Error),
    #[error("{NFT} did not end within {} s", LIMIT.as_secs())]
    Late,
    #[error("{NFT} refused: {0}")]
    Refused(String),
    #[error(transparent)]
    Answer(#[from] TrafficError),
}

/// Serialises reads, and holds the time of the last one.
#[derive(Clone)]
struct Reader {
    metrics: Metrics,
    clock: Clock,
    last: Arc<Mutex<Option<Timestamp>>>,
}

/// Whether the guest's traffic is counted: the spec asks for it, and the kernel sees it, which it
/// does not with QEMU's user network.
pub(super) fn is_counted(config: &RunnerConfig) -> bool {
    let is_asked_for = config.spec.enable_network_monitoring;
    if is_asked_for && !config.network.bridged {
        warn!(
            "spec.enableNetworkMonitoring: the traffic of a guest in QEMU's user network is not counted"
        );
    }
    is_asked_for && config.network.bridged
}

/// The route. Where traffic is counted, it is read before the response.
pub(super) fn route(registry: Arc<Registry>, metrics: Metrics, clock: Clock) -> Router {
    let route = metrics_route(registry);
    if !metrics.counts_traffic() {
        return route;
    }
    let reader = Reader {
        metrics,
        clock,
        last: Arc::default(),
    };
    route.layer(middleware::from_fn_with_state(reader, read_first))
}

async fn read_first(State(reader): State<Reader>, request: Request, next: Next) -> Response {
    reader.refresh().await;
    next.run(request).await
}

impl Reader {
    async fn refresh(&self) {
        // Concurrent requests wait for the one that reads, and show its result.
        let mut last = self.last.lock().await;
        if last.is_some_and(|last| self.clock.now() < last + FRESH) {
            return;
        }
        match read().await {
            Ok(traffic) => self.metrics.traffic(traffic),
            Err(error) => {
                debug!(
                    error = daemon_kit::chain(&error),
                    "failed to read the guest's traffic counters"
                );
                self.metrics.traffic_unread();
            }
        }
        *last = Some(self.clock.now());
    }
}

async fn read() -> Result<Traffic, ReadError> {
    let mut nft = Command::new(NFT);
    nft.args(READ).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(LIMIT, nft.output())
        .await
        .map_err(|_| ReadError::Late)?
        .map_err(ReadError::Execute)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let line = said.lines().next().unwrap_or_default();
        return Err(ReadError::Refused(line.to_owned()));
    }
    Ok(parse(&output.stdout)?)
}
