//! The agent's shell: Kubernetes watches, sockets and tasks around one core per VM.
//!
//! ```text
//!   vms --watch(latest)--> supervisor -> driver (owns the core) <--mpsc(32)-- scrapes, link, requests
//!   schedulers --watch(latest)--> permit requests
//!   driver --(copy under a lock)--> state handle --> dump server, admin server
//! ```

pub mod config;
mod context;
mod driver;
mod endpoint;
mod error;
mod input;
mod journal;
mod journal_pages;
mod metrics;
mod modes;
mod monitor;
mod monitor_key;
mod patch;
mod permit;
mod permit_link;
mod policy;
mod pushed;
mod report;
mod requests;
mod schedule;
mod schedulers;
mod scrape;
mod servers;
mod state;
mod supervisor;
mod token;
mod vm_feed;
mod vm_metrics;
mod vm_object;
mod vms;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use daemon_kit::StageLog;
use daemon_kit::bearer::{Expected, VmKey};
use daemon_kit::clock::Clock;
use daemon_kit::connections::ConnectionCounters;
use daemon_kit::journal::Retention;
use daemon_kit::logging::LogHandle;
use futures::FutureExt as _;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use agent_events::{EventLogError, EventReceiverError, EventsError};
use config::Config;
pub use error::RunError;
use monitor_key::MonitorKey;
pub use state::{DecisionEntry, MAX_DECISIONS, StateHandle};

/// Time between two health checks of a monitor.
const HEALTH_CHECK_EVERY: Duration = Duration::from_secs(5);

/// Ports of the metrics servers; 0 lets the system choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// Port of global metrics, health and state.
    pub metrics: u16,
    /// Port of the metrics of single VMs.
    pub vm_metrics: u16,
}

impl Default for Ports {
    fn default() -> Self {
        Self {
            metrics: 9100,
            vm_metrics: 9101,
        }
    }
}

/// Parameters of one agent.
#[derive(Clone)]
pub struct Params {
    /// The checked configuration.
    pub config: Config,
    /// Name of the node whose VMs are scaled.
    pub node_name: String,
    /// Client of the Kubernetes API.
    pub client: kube::Client,
    /// Address on which all servers listen.
    pub bind_ip: IpAddr,
    /// Ports of the metrics servers. The configuration has that of the dump server.
    pub ports: Ports,
    /// Clock of the process.
    pub clock: Clock,
    /// Log of the stages of resizes.
    pub stages: StageLog,
    /// Handle to the agent's state; keep a clone to read it.
    pub state: StateHandle,
    /// Time between two health checks of a monitor.
    pub health_check_every: Duration,
    /// Folder of the decision journal (`<state>/journal`); `None` = no journal.
    pub journal: Option<PathBuf>,
    /// How much of the journal is kept.
    pub journal_retention: Retention,
    /// Folder for events that no receiver has yet; required if event clients are configured.
    pub events_folder: Option<PathBuf>,
    /// Handle for `PUT /debug/log` on the metrics port; `None` = the log filter is fixed.
    pub log: Option<LogHandle>,
    /// Token for permit requests; `None` = the file that the configuration names.
    pub permit_token: Option<String>,
    /// Token that clients of the metrics pages need. With one, state and log filter are not served.
    pub metrics_token: Option<Expected>,
    /// Key from which the tokens for monitors are derived; `None` = the file that the configuration
    /// names.
    pub monitor_key: Option<VmKey>,
    /// The program that asks policies; `None` = `bellows-policy` beside this one or on the PATH.
    pub policy_program: Option<PathBuf>,
    /// Namespace of the `ConfigMap` that says whether this agent may be restarted; `None` = it is
    /// not published.
    pub schedule_namespace: Option<String>,
}

impl Params {
    /// Parameters with default values for all other members.
    #[must_use]
    pub fn new(config: Config, node_name: String, client: kube::Client, bind_ip: IpAddr) -> Self {
        Self {
            config,
            node_name,
            client,
            bind_ip,
            ports: Ports::default(),
            clock: Clock::new(),
            stages: StageLog::new(1024),
            state: StateHandle::new(),
            health_check_every: HEALTH_CHECK_EVERY,
            journal: None,
            journal_retention: Retention::default(),
            events_folder: None,
            log: None,
            permit_token: None,
            metrics_token: None,
            monitor_key: None,
            policy_program: None,
            schedule_namespace: None,
        }
    }
}

/// An agent with bound servers that does not run so far.
pub struct Bound {
    params: Params,
    metrics: TcpListener,
    vm_metrics: TcpListener,
    dump: Option<TcpListener>,
}

/// Addresses of a bound agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    /// Address of global metrics, `/healthz`, `/readyz` and `/debug/state`.
    pub metrics: std::net::SocketAddr,
    /// Address of the metrics of single VMs.
    pub vm_metrics: std::net::SocketAddr,
    /// Address of the state dump; `None` without one.
    pub dump: Option<std::net::SocketAddr>,
}

/// Binds and runs an agent until `cancel`.
///
/// # Errors
/// [`RunError`]: nothing was started, or a main task failed. The caller should end the process.
pub async fn run(params: Params, cancel: CancellationToken) -> Result<(), RunError> {
    bind(params).await?.run(cancel).await
}

/// Binds the servers of an agent without running it.
///
/// # Errors
/// [`RunError::Bind`] for the first address that cannot be bound.
pub async fn bind(params: Params) -> Result<Bound, RunError> {
    let listen = async |port: u16, what: &'static str| {
        let address = std::net::SocketAddr::new(params.bind_ip, port);
        TcpListener::bind(address)
            .await
            .map_err(|source| RunError::Bind {
                address: address.to_string(),
                what,
                source,
            })
    };
    let metrics = listen(params.ports.metrics, "metrics").await?;
    let vm_metrics = listen(params.ports.vm_metrics, "VM metrics").await?;
    let dump = match &params.config.dump_state {
        Some(dump) => Some(listen(dump.port, "the state dump").await?),
        None => None,
    };
    Ok(Bound {
        params,
        metrics,
        vm_metrics,
        dump,
    })
}

impl Bound {
    /// Addresses of the servers, with the ports that the system chose.
    ///
    /// # Errors
    /// Error of the operating system.
    pub fn addresses(&self) -> std::io::Result<Addresses> {
        Ok(Addresses {
            metrics: self.metrics.local_addr()?,
            vm_metrics: self.vm_metrics.local_addr()?,
            dump: self
                .dump
                .as_ref()
                .map(TcpListener::local_addr)
                .transpose()?,
        })
    }

    /// Runs the agent until `cancel`.
    ///
    /// # Errors
    /// [`RunError`] when a main task failed.
    pub async fn run(self, cancel: CancellationToken) -> Result<(), RunError> {
        let params = self.params;
        let (mut registry, mut vm_registry) = (Registry::default(), Registry::default());
        let metrics = metrics::AgentMetrics::new(&mut registry);
        let connections = ConnectionCounters::register(&mut registry);
        let vm_metrics = vm_metrics::VmMetrics::new(&mut vm_registry);
        let stop = cancel.child_token();
        let settings = params
            .config
            .events(params.events_folder.clone(), params.clock);
        let locked = cancel.run_until_cancelled(settings.lock(journal::LOCK_PATIENCE));
        let Some(locked) = locked.await else {
            return Ok(());
        };
        let _lock = locked?;
        let opened = (settings, params.open_journal(&cancel).await);
        let mut tasks = tokio::task::JoinSet::new();
        let (current, schedulers) = watch::channel(None);
        let shown = (metrics, vm_metrics);
        let ctx =
            params.start_context(opened, shown, schedulers, &mut registry, &mut tasks, &stop)?;
        let journal = ctx.journal.clone();
        params.spawn_watches(ctx, current, &mut tasks, &stop);
        let state = params.state;
        let servers = servers::Servers {
            registry,
            vm_registry,
            connections,
            state: state.clone(),
            log: params.log,
            token: params.metrics_token,
            journal: params.journal.filter(|_| journal.is_some()),
        };
        servers.spawn(&mut tasks, self.metrics, self.vm_metrics, self.dump, &stop);
        tracing::info!("agent runs");
        let outcome = first_failure(&mut tasks, &cancel).await;
        state.stop();
        stop.cancel();
        while tasks.join_next().await.is_some() {}
        if let Some(journal) = journal {
            journal.close().await;
        }
        outcome
    }
}

/// Main tasks of the agent. The first failure ends it.
type Tasks = tokio::task::JoinSet<Result<(), RunError>>;

impl Params {
    /// Opens the journal, if there is one. Another agent that writes it is waited for.
    async fn open_journal(&self, cancel: &CancellationToken) -> Option<journal::JournalHandle> {
        let kept = (self.journal.as_deref()?, self.journal_retention);
        let opened = journal::open(kept, &self.config, &self.node_name, self.clock);
        cancel.run_until_cancelled(opened).await.flatten()
    }

    /// Starts events and policies, and returns them with all that the drivers share.
    fn start_context(
        &self,
        (settings, journal): (agent_events::Settings, Option<journal::JournalHandle>),
        (metrics, vm_metrics): (metrics::AgentMetrics, vm_metrics::VmMetrics),
        schedulers: watch::Receiver<Option<schedulers::SchedulerPod>>,
        registry: &mut Registry,
        tasks: &mut Tasks,
        stop: &CancellationToken,
    ) -> Result<context::Context, RunError> {
        let config = &self.config;
        let events = agent_events::Events::start(settings, registry, stop)?;
        if let Some(journal) = journal.clone() {
            journal.record_schedulers(schedulers.clone(), stop.clone());
        }
        let policies = self.start_policies(&metrics, journal.clone(), registry, tasks, stop);
        self.start_schedule(events.unsent, tasks, stop);
        tasks.spawn(async move {
            let ended = agent_events::join(events.tasks).await;
            ended.map_err(RunError::Crashed)
        });
        let key_file = config.monitor.key_file.clone().map(MonitorKey::File);
        Ok(context::Context {
            policies,
            clock: self.clock,
            kube: self.client.clone(),
            metrics,
            vm_metrics,
            stages: self.stages.clone(),
            schedulers,
            permit_client: permit::PermitClient::new(
                &config.scheduler,
                self.permit_token.as_deref(),
            ),
            monitor_key: self.monitor_key.clone().map(MonitorKey::Held).or(key_file),
            health_check_every: self.health_check_every,
            journal,
            usage: events.usage,
            scaling: events.scaling,
            config: config.clone(),
        })
    }

    /// Starts to publish whether this agent may be restarted, if that is asked for.
    fn start_schedule(
        &self,
        unsent: agent_events::Unsent,
        tasks: &mut Tasks,
        stop: &CancellationToken,
    ) {
        let Some(namespace) = self.schedule_namespace.clone() else {
            return;
        };
        let exporter = schedule::Exporter {
            kube: self.client.clone(),
            clock: self.clock,
            state: self.state.clone(),
            unsent,
            node_name: self.node_name.clone(),
            namespace,
        };
        tasks.spawn(exporter.run(stop.clone()).map(Ok));
    }

    /// Starts the policies, if the configuration has them, and shows their state.
    fn start_policies(
        &self,
        metrics: &metrics::AgentMetrics,
        journal: Option<journal::JournalHandle>,
        registry: &mut Registry,
        tasks: &mut Tasks,
        stop: &CancellationToken,
    ) -> Option<policy::PolicyRuntime> {
        let parts = policy::Parts {
            settings: self.config.policies.clone()?,
            kube: self.client.clone(),
            metrics: metrics.clone(),
            registry,
            journal,
            clock: self.clock,
            folder: self.journal.clone(),
            program: self.policy_program.clone(),
        };
        let policies = policy::PolicyRuntime::start(parts, tasks, stop);
        self.state.set_policies(policies.clone());
        Some(policies)
    }

    /// Starts the watches of scheduler pods, namespaces and VMs.
    fn spawn_watches(
        &self,
        ctx: context::Context,
        current: watch::Sender<Option<schedulers::SchedulerPod>>,
        tasks: &mut Tasks,
        stop: &CancellationToken,
    ) {
        let (modes, known_modes) = watch::channel(modes::Modes::default());
        let namespaces = modes::Namespaces {
            kube: ctx.kube.clone(),
            metrics: ctx.metrics.clone(),
            state: self.state.clone(),
            modes,
        };
        let schedulers = schedulers::Schedulers {
            kube: ctx.kube.clone(),
            scheduler_name: ctx.config.scheduler.scheduler_name.clone(),
            metrics: ctx.metrics.clone(),
            state: self.state.clone(),
            current: Arc::new(current),
        };
        let vms = vms::Vms::new(
            Arc::new(ctx),
            self.node_name.clone(),
            self.state.clone(),
            known_modes,
        );
        let watches = [
            namespaces.run(stop.clone()).boxed(),
            schedulers.run(stop.clone()).boxed(),
            vms.run(stop.clone()).boxed(),
        ];
        for watch in watches {
            tasks.spawn(watch.map(Ok));
        }
    }
}

/// Waits for the cancellation or for the first failure of a main task.
async fn first_failure(tasks: &mut Tasks, cancel: &CancellationToken) -> Result<(), RunError> {
    loop {
        let ended = tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            ended = tasks.join_next() => ended,
        };
        match ended {
            None => return Ok(()),
            Some(Ok(Ok(()))) => {}
            Some(Ok(Err(error))) => return Err(error),
            Some(Err(error)) => return Err(RunError::Crashed(error)),
        }
    }
}
