//! The async shell: watches feed the core, the permit server sends it requests, and the driver owns
//! it.
//!
//! Start: an earlier process may have bound a pod just before it ended. A process that binds pods
//! therefore lists only after [`Params::takeover_wait`], longer than any call of that process can
//! last. Until the lists are complete, permits get 503 and `/readyz` names the missing kinds. An
//! object that does not parse does not delay that.
//!
//! With several replicas, the leader by [`Params::leadership`] lists at the beginning of each of
//! its terms, unless the last leader handed over and this replica's cache is complete
//! ([`crate::core::standby`]). Other replicas answer 503 and are not ready.
//!
//! End: the server stops, calls in flight end, the Lease is released, and then the process exits.

mod api;
mod bounded_server;
mod callers;
mod driver;
mod extender;
mod lead;
mod messages;
mod metrics;
mod permit_runtime;
mod review;
mod server;
mod state_handle;
mod tls_acceptor;
mod watching;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use daemon_kit::admin::Admin;
use daemon_kit::bearer::Expected;
use daemon_kit::clock::Clock;
use daemon_kit::connections::ConnectionCounters;
use daemon_kit::logging::LogHandle;
use hyper_util::service::TowerToHyperService;
use kube::Client;
use protocol::time::Span;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::core::elect::Leave;
use crate::core::{Core, Settings};
pub use bounded_server::{MAX_CONNECTIONS, MAX_CONNECTIONS_OF_ONE};
pub use callers::{Callers, CallersError, ReviewRule, TokenFile};
use driver::{Driver, Input};
pub use extender::MAX_EXTENDER_BODY_BYTES;
pub use lead::{ANNOTATION_DRAINED, Leadership, LeaseName};
use permit_runtime::PermitRuntime;
pub use permit_runtime::runtime;
pub use review::REVIEW_LASTS;
pub use server::MAX_BODY_BYTES;
pub use state_handle::StateHandle;

/// Longest wait for calls in flight before the Lease is released, and for its release.
const HAND_OVER: Duration = Duration::from_secs(3);

/// The parts and settings of a running scheduler.
pub struct Params {
    /// The checked configuration.
    pub config: Config,
    /// Client of the API server.
    pub client: Client,
    /// Listener of the permit server, port 10299 by convention.
    pub permit_listener: TcpListener,
    /// The proofs that callers of the permit server must give.
    pub callers: Callers,
    /// Listener for a kube-scheduler beside this process. It must be a loopback address, because
    /// every client may bind pods.
    pub extender_listener: Option<TcpListener>,
    /// Listener of `/metrics`, `/healthz`, `/readyz` and `/debug/state`, port 9100 by convention.
    pub metrics_listener: Option<TcpListener>,
    /// Token for `/metrics`. With a token, the state and the log filter are not served there.
    pub metrics_token: Option<Expected>,
    /// Whether this process places pods, for a machine without kube-scheduler.
    pub embedded_bind: bool,
    /// Whether CPUs and memory that a runner reports as plugged count beyond the approved size.
    pub count_plugged: bool,
    /// Whether there are other replicas, and how the leader is determined.
    pub leadership: Leadership,
    /// Without other replicas: the wait before the first lists, longer than a binding of an earlier
    /// process can take effect. Zero if no pods are bound, or if the API server starts with this
    /// process ([`crate::args::Args::takeover_wait`]).
    pub takeover_wait: Span,
    /// The clock of this process.
    pub clock: Clock,
    /// Gets the readiness and the state while the scheduler runs.
    pub state: StateHandle,
    /// The log filter that `/debug/log` changes.
    pub log: Option<LogHandle>,
}

/// Why a scheduler stopped before it was cancelled.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The permit thread did not start.
    #[error("no thread to serve permits on")]
    PermitRuntime(#[source] std::io::Error),
    /// A part panicked. The next start rebuilds the state from the objects.
    #[error("the {part} crashed")]
    Crashed {
        /// Name of the part.
        part: &'static str,
        /// The panic of its task.
        #[source]
        source: tokio::task::JoinError,
    },
    /// A part ended before it was cancelled.
    #[error("the {0} ended")]
    Ended(&'static str),
}

/// Runs a scheduler until `cancel`. It then waits up to five seconds for open requests and releases
/// the Lease.
///
/// # Errors
/// [`RunError`] if a part fails. All other parts are stopped then.
pub async fn run(params: Params, cancel: CancellationToken) -> Result<(), RunError> {
    let permit_runtime = PermitRuntime::start().map_err(RunError::PermitRuntime)?;
    let permit_listener = permit_runtime
        .adopt(params.permit_listener)
        .map_err(RunError::PermitRuntime)?;
    let (metrics, mut registry) = metrics::Metrics::new();
    let connections = ConnectionCounters::register(&mut registry);
    let (inputs, inbox) = mpsc::channel(driver::INPUT_QUEUE);
    let config = &params.config;
    let context = Arc::new(api::ApiContext {
        client: params.client.clone(),
        timeout: config.crud_timeout().to_duration(),
        metrics: metrics.clone(),
        reporter: config.scheduler_name.clone(),
        clock: params.clock,
    });
    let api = api::ApiClient {
        context: Arc::clone(&context),
        until: None,
    };
    let settings = Settings {
        lease: params.leadership.rule(),
        caches_on_standby: params.leadership.hands_over(),
        ..config.settings(params.embedded_bind, params.count_plugged)
    };
    // Without other replicas there is one watch epoch, from the start.
    let alone = settings.lease.is_none();
    let (epochs, epoch_changes) = watch::channel(alone.then_some(1));
    let labels = config.node_metric_labels.clone();
    let driver = Driver::new(
        Core::new(settings),
        api,
        params.state.clone(),
        labels,
        (inputs.clone(), inbox),
        epochs,
    );

    // The server stops first. The driver stops after the open requests.
    let inner = CancellationToken::new();
    let _stop_all = inner.clone().drop_guard();
    let mut driver = permit_runtime.handle.spawn(driver.run(inner.clone()));
    let watch = watching::Watch {
        client: params.client.clone(),
        inputs: inputs.clone(),
        metrics: metrics.clone(),
        version_timeout: params.leadership.hands_over().then_some(context.timeout),
    };
    let wait = if alone { params.takeover_wait } else { Span(0) };
    let mut watches = tokio::spawn(watch.run(wait, epoch_changes, inner.clone()));
    let answering = server::ServerState {
        inputs: inputs.clone(),
        metrics: metrics.clone(),
        clock: params.clock,
        acceptor: params.callers.tls.map(tls_acceptor::TlsAcceptor::new),
        tokens: params.callers.tokens,
        reviewer: params.callers.review.map(|rule| reviewer(rule, &context)),
        secret: params.callers.secret,
        needs_no_token: params.callers.needs_no_token,
    };
    let mut lead = Lead::follow(&context, inputs.clone(), params.leadership, inner.clone());
    let mut admin = tokio::spawn(serve_admin(
        params.metrics_listener,
        Admin::new(Arc::new(registry), connections.server("metrics"))
            .behind_token(params.metrics_token),
        params.state.clone(),
        params.log,
        inner.clone(),
    ));
    let stop = cancel.child_token();
    let routes = extender::router(inputs.clone(), metrics.clone(), &params.config);
    let (bound, counts) = (params.extender_listener, connections.server("extender"));
    let until = stop.clone();
    let extender = async move {
        if let Some(listener) = bound {
            let routes = bounded_server::PlainHttp(TowerToHyperService::new(routes));
            bounded_server::serve(listener, routes, counts, until).await;
        }
    };
    let _stop_server = stop.clone().drop_guard();
    let permits = server::serve(
        permit_listener,
        answering,
        connections.server("permits"),
        stop.clone(),
    );
    let permits = permit_runtime.handle.spawn(permits);
    // Neither server ends before `stop`.
    let mut server = tokio::spawn(async move {
        let (permits, ()) = tokio::join!(permits, extender);
        permits
    });
    let late = config.startup_event_handling_timeout_seconds;
    warn_when_late(params.state, late, &inner, wait);

    tokio::select! {
        ended = &mut server => {
            let ended = ended.and_then(std::convert::identity);
            ended.map_err(|source| RunError::Crashed { part: "server", source })?;
            if !cancel.is_cancelled() {
                return Err(RunError::Ended("server"));
            }
            if !alone {
                lead.hand_over(&inputs).await;
            }
            Ok(())
        }
        ended = &mut driver => Err(failed("driver", ended)),
        ended = &mut watches => Err(failed("watches", ended)),
        ended = &mut lead.task => Err(failed("lead", ended)),
        ended = &mut admin => Err(failed("metrics server", ended)),
    }
}

fn reviewer(rule: ReviewRule, context: &api::ApiContext) -> review::Reviewer {
    review::Reviewer {
        rule,
        client: context.client.clone(),
        timeout: context.timeout,
        clock: context.clock,
        metrics: context.metrics.clone(),
        call_runtime: tokio::runtime::Handle::current(),
        cache: Mutex::default(),
        review_limit: review::Reviewer::review_limit(),
    }
}

/// The task that follows the Lease, and the channel that makes it release the Lease.
struct Lead {
    task: tokio::task::JoinHandle<()>,
    leave: oneshot::Sender<Leave>,
}

impl Lead {
    fn follow(
        context: &api::ApiContext,
        inputs: mpsc::Sender<Input>,
        leadership: Leadership,
        cancel: CancellationToken,
    ) -> Self {
        let follower = lead::LeaseTask {
            client: context.client.clone(),
            inputs,
            metrics: context.metrics.clone(),
            clock: context.clock,
            timeout: context.timeout,
            writer: context.reporter.clone(),
        };
        let (leave, leave_requests) = oneshot::channel();
        let task = tokio::spawn(follower.run(leadership, leave_requests, cancel));
        Self { task, leave }
    }

    /// Waits for calls in flight and releases the Lease, so that the next leader need not wait for
    /// it to expire. If either takes too long, the Lease expires.
    async fn hand_over(self, inputs: &mpsc::Sender<Input>) {
        let (done, drained) = oneshot::channel();
        let retired = async {
            inputs.send(Input::Retire(done)).await.ok()?;
            drained.await.ok()
        };
        let leave = tokio::time::timeout(HAND_OVER, retired).await;
        let leave = leave.ok().flatten().unwrap_or_default();
        if self.leave.send(leave).is_ok()
            && tokio::time::timeout(HAND_OVER, self.task).await.is_err()
        {
            tracing::warn!("failed to release the Lease; it will expire");
        }
    }
}

fn failed(part: &'static str, ended: Result<(), tokio::task::JoinError>) -> RunError {
    ended.map_or_else(
        |source| RunError::Crashed { part, source },
        |()| RunError::Ended(part),
    )
}

async fn serve_admin(
    listener: Option<TcpListener>,
    admin: Admin,
    state: StateHandle,
    log: Option<LogHandle>,
    cancel: CancellationToken,
) {
    let Some(listener) = listener else {
        return cancel.cancelled().await;
    };
    let ready = state.clone();
    let mut admin = admin
        .state(move || state.dump())
        .ready(move || ready.ready());
    if let Some(log) = log {
        admin = admin.log(log);
    }
    daemon_kit::admin::serve(listener, admin, cancel).await;
}

/// Logs the missing kinds once if the lists take longer than configured.
fn warn_when_late(state: StateHandle, seconds: u64, cancel: &CancellationToken, wait: Span) {
    let (cancel, limit) = (cancel.clone(), Span::from_secs(seconds));
    tokio::spawn(async move {
        tokio::select! {
            () = cancel.cancelled() => {}
            () = tokio::time::sleep((wait.to_duration()).saturating_add(limit.to_duration())) => {
                if let Err(missing) = state.ready() {
                    tracing::warn!(missing, "not ready; permits are refused until it is");
                }
            }
        }
    });
}
