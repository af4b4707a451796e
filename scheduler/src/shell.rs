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

use std::sync::Arc;

use daemon_kit::admin::Admin;
use daemon_kit::bearer::Expected;
use daemon_kit::clock::Clock;
use daemon_kit::connections::{ConnectionCounters, ServerCounters};
use daemon_kit::logging::LogHandle;
use hyper_util::service::TowerToHyperService;
use kube::Client;
use protocol::time::Span;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::core::{Core, Settings};
pub use bounded_server::{MAX_CONNECTIONS, MAX_CONNECTIONS_OF_ONE};
pub use callers::{Callers, CallersError, ReviewRule, TokenFile};
use driver::{Driver, Input};
pub use extender::MAX_EXTENDER_BODY_BYTES;
use lead::Lead;
pub use lead::{ANNOTATION_DRAINED, Leadership, LeaseName};
use permit_runtime::PermitRuntime;
pub use permit_runtime::runtime;
pub use review::REVIEW_LASTS;
pub use server::MAX_BODY_BYTES;
pub use state_handle::StateHandle;

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
        source: JoinError,
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
    let (metrics, mut registry) = metrics::Metrics::new();
    let connections = ConnectionCounters::register(&mut registry);
    let (inputs, inbox) = mpsc::channel(driver::INPUT_QUEUE);
    let shared = Shared::new(&params, metrics, inputs);
    let inner = &shared.inner;
    let _stop_all = inner.clone().drop_guard();
    // Without other replicas there is one watch epoch, from the start.
    let alone = params.leadership.rule().is_none();
    let (epochs, epoch_changes) = watch::channel(alone.then_some(1));
    let driver = shared.driver(&params, inbox, epochs);
    let watches = shared.watches(&params);
    let listener = permit_runtime
        .adopt(params.permit_listener)
        .map_err(RunError::PermitRuntime)?;

    let driver = permit_runtime.handle.spawn(driver.run(inner.clone()));
    let wait = if alone { params.takeover_wait } else { Span(0) };
    let watches = tokio::spawn(watches.run(wait, epoch_changes, inner.clone()));
    let answering = shared.server_state(params.callers);
    let (context, inputs) = (&shared.context, &shared.inputs);
    let lead = Lead::follow(context, inputs.clone(), params.leadership, inner.clone());
    let admin = Admin::new(Arc::new(registry), connections.server("metrics"))
        .program("autoscale_scheduler")
        .behind_token(params.metrics_token);
    let (state, log) = (params.state.clone(), params.log);
    let admin = serve_admin(params.metrics_listener, admin, state, log, inner.clone());
    let admin = tokio::spawn(admin);
    let stop = cancel.child_token();
    let _stop_server = stop.clone().drop_guard();
    let counters = connections.server("extender");
    let extender = shared.extender(params.extender_listener, &params.config, counters, &stop);
    let permits = server::serve(listener, answering, connections.server("permits"), stop);
    let server = serve_all(permit_runtime.handle.spawn(permits), extender);
    let late = params.config.startup_event_handling_timeout_seconds;
    warn_when_late(params.state, late, inner, wait);
    let tasks = Tasks {
        server: tokio::spawn(server),
        driver,
        watches,
        lead,
        admin,
    };
    tasks.end(&cancel, inputs, alone).await
}

/// Handles that the tasks of one scheduler share.
struct Shared {
    context: Arc<api::ApiContext>,
    inputs: mpsc::Sender<Input>,
    /// Stops all tasks but the servers. The servers stop first, and the driver stops after their
    /// open requests.
    inner: CancellationToken,
}

impl Shared {
    fn new(params: &Params, metrics: metrics::Metrics, inputs: mpsc::Sender<Input>) -> Self {
        let config = &params.config;
        let context = Arc::new(api::ApiContext {
            client: params.client.clone(),
            timeout: config.crud_timeout().to_duration(),
            metrics,
            reporter: config.scheduler_name.clone(),
            clock: params.clock,
        });
        Self {
            context,
            inputs,
            inner: CancellationToken::new(),
        }
    }

    fn driver(
        &self,
        params: &Params,
        inbox: mpsc::Receiver<Input>,
        epochs: watch::Sender<Option<u64>>,
    ) -> Driver {
        let config = &params.config;
        let settings = Settings {
            lease: params.leadership.rule(),
            caches_on_standby: params.leadership.hands_over(),
            ..config.settings(params.embedded_bind, params.count_plugged)
        };
        let api = api::ApiClient {
            context: Arc::clone(&self.context),
            until: None,
        };
        let (state, labels) = (params.state.clone(), config.node_metric_labels.clone());
        let core = Core::new(settings);
        let inputs = (self.inputs.clone(), inbox);
        Driver::new(core, api, state, labels, inputs, epochs)
    }

    fn watches(&self, params: &Params) -> watching::Watch {
        let hands_over = params.leadership.hands_over();
        watching::Watch {
            client: params.client.clone(),
            inputs: self.inputs.clone(),
            metrics: self.context.metrics.clone(),
            version_timeout: hands_over.then_some(self.context.timeout),
        }
    }

    fn server_state(&self, callers: Callers) -> server::ServerState {
        let reviewer = |rule| review::Reviewer::new(rule, &self.context);
        server::ServerState {
            inputs: self.inputs.clone(),
            metrics: self.context.metrics.clone(),
            clock: self.context.clock,
            acceptor: callers.tls.map(tls_acceptor::TlsAcceptor::new),
            tokens: callers.tokens,
            reviewer: callers.review.map(reviewer),
            secret: callers.secret,
            needs_no_token: callers.needs_no_token,
        }
    }

    /// The server of a kube-scheduler beside this process. It ends at once without a listener.
    fn extender(
        &self,
        listener: Option<TcpListener>,
        config: &Config,
        counters: ServerCounters,
        cancel: &CancellationToken,
    ) -> impl Future<Output = ()> + use<> {
        let routes = extender::router(self.inputs.clone(), self.context.metrics.clone(), config);
        let cancel = cancel.clone();
        async move {
            if let Some(listener) = listener {
                let routes = bounded_server::PlainHttp(TowerToHyperService::new(routes));
                bounded_server::serve(listener, routes, counters, cancel).await;
            }
        }
    }
}

/// Neither server ends before it is cancelled.
async fn serve_all(
    permits: JoinHandle<()>,
    extender: impl Future<Output = ()>,
) -> Result<(), JoinError> {
    let (permits, ()) = tokio::join!(permits, extender);
    permits
}

/// The tasks of a scheduler.
struct Tasks {
    server: JoinHandle<Result<(), JoinError>>,
    driver: JoinHandle<()>,
    watches: JoinHandle<()>,
    lead: Lead,
    admin: JoinHandle<()>,
}

impl Tasks {
    /// Waits for the first task that ends. If it is the server after `cancel`, the Lease is
    /// released.
    async fn end(
        mut self,
        cancel: &CancellationToken,
        inputs: &mpsc::Sender<Input>,
        alone: bool,
    ) -> Result<(), RunError> {
        tokio::select! {
            ended = &mut self.server => {
                let ended = ended.and_then(std::convert::identity);
                ended.map_err(|source| RunError::Crashed { part: "server", source })?;
                if !cancel.is_cancelled() {
                    return Err(RunError::Ended("server"));
                }
                if !alone {
                    self.lead.hand_over(inputs).await;
                }
                Ok(())
            }
            ended = &mut self.driver => Err(failed("driver", ended)),
            ended = &mut self.watches => Err(failed("watches", ended)),
            ended = &mut self.lead.task => Err(failed("lead", ended)),
            ended = &mut self.admin => Err(failed("metrics server", ended)),
        }
    }
}

fn failed(part: &'static str, ended: Result<(), JoinError>) -> RunError {
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
