//! The one task that owns the core. Everyone else sends it messages. Its loop is not that of
//! `daemon_kit::driver`, because the monitor must stay small and has its own timer ([`Alarm`]).

use std::io;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::Duration;

use protocol::core::Core as _;
use protocol::time::Span;
use protocol::units::Bytes;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::admin::{self, Admin};
use super::alarm::Alarm;
use super::clock::Clock;
use super::config::Config;
use super::control::{self, Control};
use super::exec::Heirloom;
use super::gauges::Gauges;
use super::hooks::{HookOrder, Hooks};
use super::inbox::{ExecOrder, ExecRefusal, Goodbye, INBOX_LIMIT, Inbox, Outgoing};
use super::link::{self, Links};
use super::memory::Source;
use super::pressure;
use super::runnable;
use super::schedule;
use crate::core::cache::{CacheChange, CacheFailure};
use crate::core::hooks::HookVeto;
use crate::core::runnable::RunnableLoad;
use crate::core::{Action, ConnectionId, Event, Monitor, OperationId};
use crate::{Bound, RunError};

/// How long the last goodbye may take at the end.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// A size to set, and the number to tell the outcome under.
pub type CacheOrder = (OperationId, Bytes);

struct Owner {
    core: Monitor,
    clock: Clock,
    source: Source,
    gauges: Gauges,
    agent: Option<(ConnectionId, mpsc::Sender<Outgoing>)>,
    cache: Option<mpsc::Sender<CacheOrder>>,
    hooks: Option<Hooks>,
    /// For what is done beside, to tell of its end.
    inbox: mpsc::Sender<Inbox>,
    /// An order that is being carried out.
    exec: Option<ExecOrder>,
    /// Whether agents' connections wait in the kernel's queue.
    paused: watch::Sender<bool>,
    /// File for the agent's schedule of upgrades.
    schedule: Option<PathBuf>,
    /// Time without an agent, once it is too long.
    alone: Option<Span>,
    /// What the next program gets; none without a control socket.
    heirloom: Option<Heirloom>,
}

fn heirloom(bound: &Bound) -> io::Result<Option<Heirloom>> {
    let Some(control) = &bound.control else {
        return Ok(None);
    };
    let agents = bound.monitor.door.as_fd();
    let metrics = bound.metrics.as_ref().map(TcpListener::as_fd);
    let kept = [agents, control.as_fd()].into_iter().chain(metrics);
    let listeners = kept.map(|descriptor| descriptor.try_clone_to_owned());
    Ok(Some(Heirloom {
        listeners: listeners.collect::<io::Result<_>>()?,
        execs: bound.process.execs(),
    }))
}

/// The whole monitor; see [`crate::run`].
pub(crate) async fn run(
    config: Config,
    bound: Bound,
    cancel: CancellationToken,
) -> Result<(), RunError> {
    let clock = Clock::new();
    let mut alarm = Alarm::new(clock).map_err(RunError::Timer)?;
    let mut source = Source::new(config.watched, config.cgroup.as_deref(), &config.proc_root);
    let (inbox, mut messages) = mpsc::channel(INBOX_LIMIT);
    let mut tasks = JoinSet::new();
    let cache = start_file_cache(&config, &mut source, &inbox, &mut tasks).await?;
    if let Err(failure) = source.sample() {
        tracing::warn!(%failure, "memory use is unknown so far: every shrink will be refused");
    }
    let ready_limit = config.ready_limit;
    let links = Links {
        inbox: inbox.clone(),
        clock,
        ready_limit,
    };
    let connections = cancel.child_token();
    let heirloom = heirloom(&bound).map_err(RunError::Control)?;
    let (paused, accepting) = watch::channel(false);
    let cancelled = connections.clone();
    tasks.spawn(link::serve(bound.monitor, links, accepting, cancelled));
    let (averages, runnable) = watch::channel(RunnableLoad::default());
    let proc_root = config.proc_root.clone();
    tasks.spawn(runnable::run(
        averages,
        proc_root,
        clock,
        connections.clone(),
    ));
    let gauges = Gauges::new(&config, runnable.clone());
    if let Some(listener) = bound.metrics {
        let process = bound.process.clone();
        let admin = Admin::new(&config, inbox.clone(), runnable, process);
        tasks.spawn(admin::serve(listener, admin, connections.clone()));
    }
    if let Some(listener) = bound.control {
        let control = Control {
            inbox: inbox.clone(),
            process: bound.process,
        };
        tasks.spawn(control::serve(listener, control, connections.clone()));
    }
    pressure::listen(&config, &inbox, &mut tasks);

    let hooks = config.hooks.clone();
    let hooks = hooks.map(|folder| Hooks::start(folder, inbox.clone(), &mut tasks));

    let core = Monitor::new(config.setup());
    let mut owner = Owner {
        core,
        schedule: config.schedule,
        clock,
        source,
        gauges,
        agent: None,
        cache,
        hooks,
        inbox,
        exec: None,
        paused,
        alone: None,
        heirloom,
    };
    let served = owner.serve(&mut messages, &mut alarm, &cancel).await;
    connections.cancel();
    owner.drain(&mut messages).await;
    tasks.shutdown().await;
    served
}

#[cfg(feature = "postgres")]
async fn start_file_cache(
    config: &Config,
    source: &mut Source,
    inbox: &mpsc::Sender<Inbox>,
    tasks: &mut JoinSet<()>,
) -> Result<Option<mpsc::Sender<CacheOrder>>, RunError> {
    let Some(file_cache) = &config.file_cache else {
        return Ok(None);
    };
    let mut database = super::postgres::Database::new(file_cache);
    if file_cache.mode == crate::core::cache::CacheMode::On
        && let Some(total) = source.machine_total()
    {
        // Setting it at once shows missing rights now, not at the first shrink.
        let size = file_cache.sizing.size(total);
        database.set(size).await.map_err(RunError::FileCache)?;
    }
    let (orders, mut ordered) = mpsc::channel::<CacheOrder>(1);
    let inbox = inbox.clone();
    tasks.spawn(async move {
        while let Some((operation, size)) = ordered.recv().await {
            let outcome = database.set(size).await;
            let event = Event::CacheSet { operation, outcome };
            if inbox.send(Inbox::Event(event)).await.is_err() {
                return;
            }
        }
    });
    Ok(Some(orders))
}

#[cfg(not(feature = "postgres"))]
#[expect(clippy::unused_async, reason = "the same signature as with PostgreSQL")]
async fn start_file_cache(
    _: &Config,
    _: &mut Source,
    _: &mpsc::Sender<Inbox>,
    _: &mut JoinSet<()>,
) -> Result<Option<mpsc::Sender<CacheOrder>>, RunError> {
    Ok(None)
}

impl Owner {
    async fn serve(
        &mut self,
        messages: &mut mpsc::Receiver<Inbox>,
        alarm: &mut Alarm,
        cancel: &CancellationToken,
    ) -> Result<(), RunError> {
        let cancelled = cancel.cancelled();
        tokio::pin!(cancelled);
        loop {
            self.act();
            if let Some(alone) = self.alone {
                return Err(RunError::Alone(alone));
            }
            tokio::select! {
                () = &mut cancelled => return Ok(()),
                message = messages.recv() => match message {
                    Some(message) => self.take_in(message),
                    None => return Ok(()),
                },
                rung = alarm.at(self.core.poll_deadline()) => rung.map_err(RunError::Timer)?,
            }
            if self.exec.is_some() {
                self.change_program(messages).await;
            }
        }
    }

    /// Takes an order to execute another program, or refuses it.
    fn take_order(&mut self, order: ExecOrder) {
        let busy = match &self.exec {
            Some(_) => Some("another program is being executed"),
            None => self.core.busy(),
        };
        match busy {
            // The peer may have gone away.
            Some(reason) => drop(order.refused.send(ExecRefusal::Busy(reason))),
            None => self.exec = Some(order),
        }
    }

    /// Executes the ordered program. Returns if the kernel refuses; this program then serves on.
    async fn change_program(&mut self, messages: &mut mpsc::Receiver<Inbox>) {
        // A dial from here on is the next program's.
        self.paused.send_replace(true);
        let _ = timeout(DRAIN_LIMIT, self.close_for_restart(messages)).await;
        self.paused.send_replace(false);
        let Some(order) = self.exec.take() else {
            return;
        };
        let refusal = match (self.core.busy(), &self.heirloom) {
            (Some(reason), _) => ExecRefusal::Busy(reason),
            (None, Some(heirloom)) => {
                let program = order.program.display().to_string();
                tracing::info!(program, "executing another program");
                let error = heirloom.execute(&order.program).to_string();
                tracing::error!(program, error, "failed to execute the program");
                ExecRefusal::Failed { program, error }
            }
            (None, None) => ExecRefusal::Busy("the control socket is not served"),
        };
        // The peer may have gone away.
        let _ = order.refused.send(refusal);
    }

    /// Closes the agent's connection, and that of an agent that was on its way.
    async fn close_for_restart(&mut self, messages: &mut mpsc::Receiver<Inbox>) {
        let mut closing = None;
        while let Some((connection, _)) = &self.agent {
            let connection = *connection;
            if closing.replace(connection) != Some(connection) {
                self.send(connection, Outgoing::Close(Goodbye::Restarting));
            }
            let Some(message) = messages.recv().await else {
                return;
            };
            self.take_in(message);
            self.act();
        }
    }

    fn take_in(&mut self, message: Inbox) {
        match message {
            Inbox::Ready {
                connection,
                version,
                outgoing,
            } => {
                let machine_total = self.source.machine_total();
                self.tell(Event::AgentReady {
                    connection,
                    version,
                    machine_total,
                });
                // The actions for the one before go out over its own channel first.
                self.act();
                self.agent = Some((connection, outgoing));
            }
            Inbox::Event(event) => {
                if let Event::AgentGone { connection } = event {
                    self.agent.take_if(|(current, _)| *current == connection);
                }
                self.tell(event);
            }
            Inbox::Exec(order) => self.take_order(order),
            // Whoever asked may have gone away.
            Inbox::Dump(to) => drop(to.send(self.core.snapshot(self.clock.now()))),
        }
    }

    fn tell(&mut self, event: Event) {
        self.core.handle(self.clock.now(), event);
    }

    fn act(&mut self) {
        while let Some(action) = self.core.poll_action(self.clock.now()) {
            match action {
                Action::Probe => {
                    let bound = self.source.probe();
                    self.tell(Event::Probed(bound));
                }
                Action::Sample => {
                    let outcome = self.source.sample();
                    self.tell(Event::Sampled(outcome));
                }
                Action::Gauge => {
                    let gauge = self.gauges.gauge();
                    self.tell(Event::Gauged(gauge));
                }
                Action::Reclaim { bytes } => self.gauges.reclaim(bytes),
                Action::Weigh => {
                    let weight = self.gauges.weigh(self.source.swap());
                    self.tell(Event::Weighed(weight));
                }
                Action::ReadZones => {
                    let zones = self.gauges.zones();
                    self.tell(Event::ZonesRead(zones));
                }
                Action::Squeeze { operation, bytes } => {
                    let inbox = self.inbox.clone();
                    self.gauges.squeeze(operation, bytes, inbox);
                }
                Action::RunHooks {
                    operation,
                    event,
                    sizes,
                } => self.order_hooks((operation, event, sizes)),
                Action::Observe => {
                    let seen = self.gauges.seen();
                    self.tell(Event::Observed(seen));
                }
                Action::Measure => {
                    let metrics = self.gauges.measure();
                    self.tell(Event::Measured(Box::new(metrics)));
                }
                Action::SetFileCache { operation, size } => self.order(operation, size),
                Action::Send { connection, frame } => {
                    self.send(connection, Outgoing::Text(frame.encode()));
                }
                Action::SendV2 { connection, frame } => {
                    self.send(connection, Outgoing::Text(frame.encode()));
                }
                Action::WriteSchedule { spec } => {
                    let is_written = self.write_schedule(&spec);
                    self.tell(Event::ScheduleWritten { is_written });
                }
                Action::EndAlone { alone } => self.alone = Some(alone),
                Action::Close { connection, reason } => {
                    self.send(connection, Outgoing::Close(Goodbye::Core(reason)));
                    self.agent.take_if(|(current, _)| *current == connection);
                }
            }
        }
    }

    fn send(&mut self, connection: ConnectionId, outgoing: Outgoing) {
        let Some((_, to)) = self
            .agent
            .as_ref()
            .filter(|(current, _)| *current == connection)
        else {
            return;
        };
        if to.try_send(outgoing).is_err() {
            tracing::warn!(
                connection = connection.0,
                "the agent reads too slowly and is given up"
            );
            self.agent = None;
            self.tell(Event::AgentGone { connection });
        }
    }

    fn write_schedule(&self, spec: &str) -> bool {
        let Some(path) = &self.schedule else {
            return false;
        };
        let written = schedule::write(path, spec);
        if let Err(error) = &written {
            let path = path.display();
            tracing::error!(%path, %error, "failed to write the schedule");
        }
        written.is_ok()
    }

    fn order(&mut self, operation: OperationId, size: Bytes) {
        let refused = match &self.cache {
            Some(cache) => cache.try_send((operation, size)).is_err(),
            None => true,
        };
        if refused {
            let detail = "the file cache's task has ended".to_owned();
            let outcome: Result<CacheChange, _> = Err(CacheFailure::Unreachable { detail });
            self.tell(Event::CacheSet { operation, outcome });
        }
    }

    fn order_hooks(&mut self, order: HookOrder) {
        let operation = order.0;
        let outcome = match &self.hooks {
            Some(hooks) => hooks.order(order),
            None => Some(Err(HookVeto::new("hooks", "there are none"))),
        };
        if let Some(outcome) = outcome {
            self.tell(Event::HooksDone { operation, outcome });
        }
    }

    /// Says goodbye to the agent and waits until its connection is through.
    async fn drain(&mut self, messages: &mut mpsc::Receiver<Inbox>) {
        let Some((connection, _)) = self.agent.as_ref() else {
            return;
        };
        let connection = *connection;
        self.send(connection, Outgoing::Close(Goodbye::ShuttingDown));
        let gone = async {
            while let Some(message) = messages.recv().await {
                if let Inbox::Event(Event::AgentGone { connection: gone }) = message
                    && gone == connection
                {
                    return;
                }
            }
        };
        let _ = timeout(DRAIN_LIMIT, gone).await;
    }
}
