//! The async shell: watches feed the core, the permit server asks it, one task owns it.
//!
//! Start: an earlier process may have bound a pod just before it died, so a process that binds pods
//! takes its lists only after [`Params::takeover_wait`], longer than any of its calls can last.
//! Until all lists are there, permits answer 503 and `/readyz` says what is missing; nothing that
//! does not parse delays that.
//!
//! Of several replicas the one that leads by [`Params::leadership`] does this at the beginning of
//! each of its terms, unless the last leader handed over and this one knows all it did
//! ([`crate::core::warm`]); the others answer 503 and are not ready. End: the server stops, what is
//! under way ends, the Lease is given up, and only then does the process go.

mod api;
mod callers;
mod desk;
mod door;
mod extender;
mod gate;
mod lead;
mod metrics;
mod owner;
mod review;
mod server;
mod told;
mod watching;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daemon_kit::admin::Admin;
use daemon_kit::bearer::Expected;
use daemon_kit::clock::Clock;
use daemon_kit::connections::ConnectionCounters;
use daemon_kit::logging::LogHandle;
use hyper_util::service::TowerToHyperService;
use kube::Client;
use protocol::time::Span;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::core::elect::Leave;
use crate::core::event::StateDump;
use crate::core::{Core, Settings};
pub use callers::{Callers, CallersError, TokenFile};
pub use desk::runtime;
pub use extender::MAX_EXTENDER_BODY_BYTES;
pub use gate::{MAX_CONNECTIONS, MAX_CONNECTIONS_OF_ONE};
pub use lead::{ANNOTATION_DRAINED, Leadership, LeaseName};
use owner::Owner;
pub use review::{REVIEW_LASTS, ReviewRule};
pub use server::MAX_BODY_BYTES;

/// Longest wait for what is under way when the lead is given up, and for giving it up.
const HAND_OVER: Duration = Duration::from_secs(3);

/// Everything a running scheduler is made of.
pub struct Params {
    /// The checked configuration.
    pub config: Config,
    /// Client of the API server.
    pub client: Client,
    /// Where permits are asked for; port 10299 by convention.
    pub permit_listener: TcpListener,
    /// Who may ask for permits.
    pub callers: Callers,
    /// Where a kube-scheduler beside this process asks where pods fit and has them bound; a
    /// loopback address, for whoever reaches it may bind pods.
    pub extender_listener: Option<TcpListener>,
    /// Where `/metrics`, `/healthz`, `/readyz` and `/debug/state` are served; port 9100 by
    /// convention.
    pub metrics_listener: Option<TcpListener>,
    /// Token that `/metrics` needs; with one, state and log filter are not served there.
    pub metrics_token: Option<Expected>,
    /// Whether this process places pods itself, for a machine without kube-scheduler.
    pub embedded_bind: bool,
    /// Whether memory and CPUs that a runner still reports as plugged are counted beyond what is
    /// approved.
    pub count_plugged: bool,
    /// Whether there are other replicas, and how it is told which one leads.
    pub leadership: Leadership,
    /// Without other replicas, how long to wait before the first lists: longer than a binding of an
    /// earlier process can take effect after its death. Zero where no pods are bound, and when the
    /// API server starts with this process ([`crate::args::Args::takeover_wait`]).
    pub takeover_wait: Span,
    /// The clock.
    pub clock: Clock,
    /// Filled with the state while it runs.
    pub state: StateHandle,
    /// Lets `/debug/log` change the log filter.
    pub log: Option<LogHandle>,
}

/// Why a scheduler stopped without being told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no thread to serve permits on.
    #[error("no thread to serve permits on")]
    Desk(#[source] std::io::Error),
    /// A part crashed. The state is rebuilt from the objects at the next start.
    #[error("the {part} crashed")]
    Crashed {
        /// Which.
        part: &'static str,
        /// The panic.
        #[source]
        source: tokio::task::JoinError,
    },
    /// A part ended although nothing told it to.
    #[error("the {0} ended")]
    Ended(&'static str),
}

/// The state of a running scheduler, for people. Clones show the same one.
#[derive(Debug, Clone, Default)]
pub struct StateHandle(Arc<Mutex<Shown>>, Arc<Notify>);

#[derive(Debug, Default)]
struct Shown {
    dump: Arc<Value>,
    wanted: bool,
    started: bool,
    standby: Option<&'static str>,
    waiting_for: Vec<&'static str>,
}

impl StateHandle {
    /// The newest state dump; `null` before the first. Never waits for the core: of a large state
    /// it may be one from before, and the next look sees a newer one.
    #[must_use]
    pub fn dump(&self) -> Value {
        let mut shown = self.lock();
        shown.wanted = true;
        let dump = Arc::clone(&shown.dump);
        drop(shown);
        self.1.notify_one();
        (*dump).clone()
    }

    fn is_wanted(&self) -> bool {
        self.lock().wanted
    }

    /// Ends when somebody has looked since this ended last.
    async fn looked(&self) {
        self.1.notified().await;
    }

    /// Whether this replica leads and all lists are there.
    ///
    /// # Errors
    /// Why not.
    pub fn ready(&self) -> Result<(), String> {
        let shown = self.lock();
        match (shown.started, shown.standby, shown.waiting_for.is_empty()) {
            (false, ..) => Err("not started".into()),
            (true, Some(why), _) => Err(why.into()),
            (true, None, true) => Ok(()),
            (true, None, false) => Err(format!("not listed yet: {}", shown.waiting_for.join(", "))),
        }
    }

    fn set_waiting_for(&self, standby: Option<&'static str>, waiting_for: Vec<&'static str>) {
        let mut shown = self.lock();
        shown.started = true;
        shown.standby = standby;
        shown.waiting_for = waiting_for;
    }

    fn publish(&self, dump: &StateDump) {
        let dump = serde_json::to_value(dump).unwrap_or_else(|error| error.to_string().into());
        let mut shown = self.lock();
        shown.dump = Arc::new(dump);
        shown.wanted = false;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shown> {
        // Only whole values are stored, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a scheduler until `cancel`, then drains for up to five seconds and gives up the lead.
///
/// # Errors
/// [`RunError`] when a part of it fails; everything else is stopped then.
pub async fn run(params: Params, cancel: CancellationToken) -> Result<(), RunError> {
    let desk = desk::Desk::start().map_err(RunError::Desk)?;
    let permit_listener = desk.adopt(params.permit_listener).map_err(RunError::Desk)?;
    let (metrics, mut registry) = metrics::Metrics::new();
    let connections = ConnectionCounters::register(&mut registry);
    let (commands, inbox) = mpsc::channel(owner::COMMAND_QUEUE);
    let config = &params.config;
    let means = Arc::new(api::Means {
        client: params.client.clone(),
        timeout: config.crud_timeout().to_duration(),
        metrics: metrics.clone(),
        reporter: config.scheduler_name.clone(),
        clock: params.clock,
    });
    let caller = api::Caller {
        means: Arc::clone(&means),
        until: None,
    };
    let settings = Settings {
        lease: params.leadership.rule(),
        keeps_warm: params.leadership.hands_over(),
        ..config.settings(params.embedded_bind, params.count_plugged)
    };
    // Alone there is one round of watches, from the start.
    let alone = settings.lease.is_none();
    let (rounds, told) = watch::channel(alone.then_some(1));
    let labels = config.node_metric_labels.clone();
    let owner = Owner::new(
        Core::new(settings),
        caller,
        params.state.clone(),
        labels,
        commands.clone(),
        rounds,
    );

    // The server stops first; what answers it stops after it has drained.
    let inner = CancellationToken::new();
    let _stop_all = inner.clone().drop_guard();
    let mut owner = desk.handle.spawn(owner.run(inbox, inner.clone()));
    let watch = watching::Watch {
        client: params.client.clone(),
        commands: commands.clone(),
        metrics: metrics.clone(),
        asks_version: params.leadership.hands_over().then_some(means.timeout),
    };
    let wait = if alone { params.takeover_wait } else { Span(0) };
    let mut watches = tokio::spawn(watch.run(wait, told, inner.clone()));
    let answering = server::Desk {
        commands: commands.clone(),
        metrics: metrics.clone(),
        clock: params.clock,
        door: params.callers.tls.map(door::Door::new),
        tokens: params.callers.tokens,
        reviewer: params.callers.review.map(|rule| reviewer(rule, &means)),
        secret: params.callers.secret,
        needs_no_token: params.callers.needs_no_token,
    };
    let mut lead = Lead::follow(&means, commands.clone(), params.leadership, inner.clone());
    let mut admin = tokio::spawn(serve_admin(
        params.metrics_listener,
        Admin::new(Arc::new(registry), connections.server("metrics"))
            .behind_token(params.metrics_token),
        params.state.clone(),
        params.log,
        inner.clone(),
    ));
    let stop = cancel.child_token();
    let routes = extender::router(commands.clone(), metrics.clone(), &params.config);
    let (bound, counts) = (params.extender_listener, connections.server("extender"));
    let until = stop.clone();
    let extender = async move {
        if let Some(listener) = bound {
            let routes = gate::Plain(TowerToHyperService::new(routes));
            gate::serve(listener, routes, counts, until).await;
        }
    };
    let _stop_server = stop.clone().drop_guard();
    let permits = server::serve(
        permit_listener,
        answering,
        connections.server("permits"),
        stop.clone(),
    );
    let permits = desk.handle.spawn(permits);
    // Neither ends before it is told to.
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
                lead.hand_over(&commands).await;
            }
            Ok(())
        }
        ended = &mut owner => Err(failed("ledger's owner", ended)),
        ended = &mut watches => Err(failed("watches", ended)),
        ended = &mut lead.task => Err(failed("lead", ended)),
        ended = &mut admin => Err(failed("metrics server", ended)),
    }
}

fn reviewer(rule: ReviewRule, means: &api::Means) -> review::Reviewer {
    review::Reviewer {
        rule,
        client: means.client.clone(),
        timeout: means.timeout,
        clock: means.clock,
        metrics: means.metrics.clone(),
        elsewhere: tokio::runtime::Handle::current(),
        kept: Mutex::default(),
        gate: review::Reviewer::gate(),
    }
}

/// The task that follows the Lease, and how it is told to give it up.
struct Lead {
    task: tokio::task::JoinHandle<()>,
    leave: oneshot::Sender<Leave>,
}

impl Lead {
    fn follow(
        means: &api::Means,
        commands: mpsc::Sender<owner::Command>,
        leadership: Leadership,
        cancel: CancellationToken,
    ) -> Self {
        let follower = lead::Following {
            client: means.client.clone(),
            commands,
            metrics: means.metrics.clone(),
            clock: means.clock,
            timeout: means.timeout,
            writer: means.reporter.clone(),
        };
        let (leave, told) = oneshot::channel();
        let task = tokio::spawn(follower.run(leadership, told, cancel));
        Self { task, leave }
    }

    /// Lets what is under way end, then gives the Lease up, so that the next leader need not wait
    /// for it to run out. What takes too long is left to run out.
    async fn hand_over(self, commands: &mpsc::Sender<owner::Command>) {
        let (done, drained) = oneshot::channel();
        let retired = async {
            commands.send(owner::Command::Retire(done)).await.ok()?;
            drained.await.ok()
        };
        let leave = tokio::time::timeout(HAND_OVER, retired).await;
        let leave = leave.ok().flatten().unwrap_or_default();
        if self.leave.send(leave).is_ok()
            && tokio::time::timeout(HAND_OVER, self.task).await.is_err()
        {
            tracing::warn!("the Lease could not be given up; it runs out by itself");
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

/// Says once what is missing when the lists take longer than the configuration expects.
fn warn_when_late(state: StateHandle, seconds: u64, cancel: &CancellationToken, wait: Span) {
    let (cancel, limit) = (cancel.clone(), Span::from_secs(seconds));
    tokio::spawn(async move {
        tokio::select! {
            () = cancel.cancelled() => {}
            () = tokio::time::sleep((wait.to_duration()).saturating_add(limit.to_duration())) => {
                if let Err(missing) = state.ready() {
                    tracing::warn!(missing, "not ready yet; permits are refused until it is");
                }
            }
        }
    });
}
