//! The driver of one VM: takes inputs, polls the cores of size, stop and migration for actions, and
//! publishes the state.

use std::sync::Arc;

use daemon_kit::clock::Clock;
use neonvm_quota::QuotaGroup;
use protocol::overtaken;
use protocol::runner::{
    CpusAhead, ExitReason, ExitReport, GuestState, QuotaState, RunnerPhase, RunnerState, SizeOrder,
    StopOrder,
};
use protocol::time::{Span, Timestamp};
use protocol::trace::TraceId;
use protocol::units::MilliCpu;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::bounds::Bounds;
use super::console::KeptLog;
use super::guest::News;
use super::lanes::{Means, carry_out};
use super::metrics::Metrics;
use super::owed::Owed;
use super::process::ProcessId;
use super::process::file_tail;
use super::qmp::{Qmp, QmpEvent};
use super::record::{Record, write_json};
use super::room::RoomNews;
use super::shown::Shown;
use super::transfer::{Answer, Ask, Transfer};
use crate::config::RunnerConfig;
use crate::core::exit::{Evidence, ShutdownReason, classify};
use crate::core::guestd_key::GuestdKey;
use crate::core::paths::Paths;
use crate::core::room::Room;
use crate::core::silence::Silence;
use crate::core::sizer::{Action, Event, Sizer};
use crate::core::stop::{StopAction, Stopping};
use crate::core::transfer::{Incoming, Outgoing};

/// Capacity of the channel of inputs. The driver never blocks.
pub const INPUT_BACKLOG: usize = 64;
/// Interval of checking the logs' lengths.
const ROTATE_EVERY: Span = Span::from_secs(5);
/// Bytes of the console's end that explain QEMU's end.
const CONSOLE_TAIL_BYTES: u64 = 16 << 10;
/// Longest time that the last events of an ended QEMU may take to arrive.
const LAST_EVENTS: Span = Span::from_secs(1);
/// Most actions of the sizer in one turn; more would be an endless loop.
const MAX_ACTIONS_A_TURN: u32 = 64;

/// Inputs of the VM's driver.
#[derive(Debug)]
pub enum Input {
    /// The monitor is connected.
    QmpUp(Arc<Qmp>),
    /// The monitor is disconnected.
    QmpDown,
    /// The monitor has not been connected for a while, for this reason.
    QmpUnreached(String),
    /// QEMU has sent an event.
    Qmp(QmpEvent),
    /// The guest's daemon has sent a report.
    Guest(News),
    /// An action of the sizer has this result.
    Reply(Event),
    /// A size order, and the number of orders that its sender has seen. The reply follows once it
    /// is accepted.
    Order(SizeOrder, Option<u64>, Answer),
    /// A request to plug CPUs ahead of an order. The reply follows once it is accepted.
    Ahead(CpusAhead, Answer),
    /// A CPU limit by the route of NeonVM's runner; memory stays.
    CpuChange(MilliCpu, Answer),
    /// An order to stop the guest.
    Stop(StopOrder),
    /// An order about a migration. The reply follows once it is accepted.
    Ask(Ask, Answer),
    /// Result of a migration's step.
    Transfer(Transfer),
    /// Result of a step of the recovery from a full disk.
    Room(RoomNews),
    /// The guest's network process has ended, and this one replaces it.
    Network(ProcessId),
    /// QEMU has ended, with this exit status if it was a child.
    Ended(Option<i32>),
}

/// Reaction to the cancellation of the runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnCancel {
    /// Leave the guest running: the next runner adopts it.
    Leave,
    /// Stop the guest, then end.
    Stop {
        /// Milliseconds that the guest has to shut down.
        grace_ms: u64,
    },
}

/// State of the task that owns one QEMU and acts on every [`Input`].
#[derive(Debug)]
pub struct Supervisor {
    pub(super) config: Arc<RunnerConfig>,
    pub(super) paths: Paths,
    /// Log files with a bound.
    pub(super) logs: Vec<Arc<KeptLog>>,
    pub(super) clock: Clock,
    pub(super) record: Record,
    pub(super) sizer: Sizer,
    pub(super) group: Option<QuotaGroup>,
    pub(super) quota: QuotaState,
    pub(super) bounds: Bounds,
    pub(super) inputs: mpsc::Sender<Input>,
    pub(super) state: Shown,
    pub(super) on_cancel: OnCancel,
    pub(super) seen: Seen,
    pub(super) owed: Owed,
    /// Time since the guest's last answer.
    pub(super) silence: Silence,
    /// Recovery from full disks.
    pub(super) room: Room,
    /// Key of the guest's daemon.
    pub(super) guestd_key: Option<GuestdKey>,
    /// Migration by which the guest leaves.
    pub(super) outgoing: Option<Outgoing>,
    /// Migration by which the guest arrived or is to arrive.
    pub(super) incoming: Option<Incoming>,
    pub(super) metrics: Metrics,
    /// Cancelled at the runner's end.
    pub(super) stop: CancellationToken,
}

/// Observations of QEMU and guest.
#[derive(Debug, Default)]
pub(super) struct Seen {
    qmp: Option<Arc<Qmp>>,
    version: Option<String>,
    pub(super) guest: Option<GuestState>,
    /// The guest's daemon has answered, whatever it reports.
    pub(super) answers: bool,
    shutdown: Option<ShutdownReason>,
    panicked: bool,
    was_up: bool,
    pub(super) stopping: Option<Stopping>,
    pub(super) ended: Option<(Option<i32>, Timestamp)>,
    exit: Option<ExitReport>,
    rotate_at: Timestamp,
    record_failed: bool,
    pub(super) follows_guest: bool,
}

impl Seen {
    /// State at the start; `was_up` if an earlier runner was connected to this QEMU.
    pub(super) fn new(was_up: bool) -> Self {
        Self {
            was_up,
            ..Self::default()
        }
    }
}

impl Supervisor {
    /// Runs until QEMU has ended (`Some`) or the runner shall leave it running (`None`).
    pub async fn run(
        mut self,
        mut inputs: mpsc::Receiver<Input>,
        cancel: CancellationToken,
    ) -> Option<ExitReport> {
        let mut cancelled = false;
        if self.incoming.as_ref().is_none_or(Incoming::is_begun) {
            self.follow_guest();
        }
        loop {
            self.turn();
            self.settle().await;
            if let Some(report) = self.finished() {
                return Some(report);
            }
            let wake = tokio::time::Instant::from_std(self.clock.instant_of(self.deadline()));
            tokio::select! {
                () = cancel.cancelled(), if !cancelled => match self.on_cancel {
                    OnCancel::Leave => return None,
                    OnCancel::Stop { grace_ms } => {
                        cancelled = true;
                        self.stop(&StopOrder { grace_ms });
                    }
                },
                input = inputs.recv() => match input {
                    Some(input) => self.take(input),
                    // The driver itself holds a sender.
                    None => return None,
                },
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    pub(super) fn qmp(&self) -> Option<Arc<Qmp>> {
        self.seen.qmp.clone()
    }

    pub(super) fn seen_stopping(&self) -> bool {
        self.seen.stopping.is_some()
    }

    /// Ends QEMU without a grace period.
    pub(super) fn quit(&mut self) {
        let now = self.clock.now();
        match &mut self.seen.stopping {
            Some(stop) => stop.hurry(now, Span(0)),
            None => self.seen.stopping = Some(Stopping::new(now, Span(0))),
        }
    }

    /// Carries out everything that is due, then publishes.
    pub(super) fn turn(&mut self) {
        let now = self.clock.now();
        if self.seen.qmp.is_some() && self.seen.ended.is_none() {
            // A guest whose resumption is in progress must not be migrated before its end.
            if !self.room.is_going_on() {
                self.turn_transfer(now);
            }
            self.turn_room(now);
        }
        self.bound_memory();
        for _ in 0..MAX_ACTIONS_A_TURN {
            let Some(action) = self.sizer.poll_action(now) else {
                break;
            };
            self.act(action);
        }
        while let Some(action) = self
            .seen
            .stopping
            .as_mut()
            .and_then(|stop| stop.poll_action(now))
        {
            self.act_stop(action);
        }
        if now >= self.seen.rotate_at {
            self.seen.rotate_at = now + ROTATE_EVERY;
            self.rotate_logs();
        }
        self.publish(now);
    }

    fn deadline(&self) -> Timestamp {
        let now = self.clock.now();
        let mut at = self.sizer.poll_deadline(now).min(self.seen.rotate_at);
        if self.seen.qmp.is_some() && self.seen.ended.is_none() {
            let (out, come) = (&self.outgoing, &self.incoming);
            let moves = [
                out.as_ref().map(Outgoing::poll_deadline),
                come.as_ref().map(Incoming::poll_deadline),
            ];
            // An input ends an action in progress; a query that is due waits for it.
            let soon = now + Span::from_millis(20);
            at = moves
                .into_iter()
                .flatten()
                .fold(at, |at, due| at.min(due.max(soon)));
            at = at.min(self.room.poll_deadline());
        }
        if let Some(stop) = &self.seen.stopping {
            at = at.min(stop.poll_deadline());
        }
        if let Some((_, ended)) = self.seen.ended {
            at = at.min(ended + LAST_EVENTS);
        }
        let silence = self.silence.poll_deadline(now);
        at = at.min(silence.unwrap_or(at));
        at.min(self.state.poll_deadline().unwrap_or(at))
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::SetQuota(limit) => return self.set_quota(limit),
            Action::Plug { budget, .. } => {
                // Before the plug: a runner that dies right after it must not leave a budget that
                // is too large.
                self.record.budget = budget;
                self.save();
            }
            _ => {}
        }
        let means = Means {
            qmp: self.seen.qmp.clone(),
            guest: self.daemon(),
        };
        let inputs = self.inputs.clone();
        tokio::spawn(async move {
            if let Some(event) = carry_out(means, action).await {
                // The driver is gone only when the runner ends.
                let _ = inputs.send(Input::Reply(event)).await;
            }
        });
    }

    fn act_stop(&mut self, action: StopAction) {
        info!(?action, "stopping");
        let qmp = self.seen.qmp.clone();
        match (action, qmp, self.record.qemu) {
            (StopAction::Press, Some(qmp), _) => drop(tokio::spawn(async move {
                // The stop presses again in a second if it failed.
                drop(qmp.power_button().await);
            })),
            (StopAction::Quit, Some(qmp), _) => drop(tokio::spawn(async move {
                // The stop kills QEMU in two seconds if it failed.
                drop(qmp.quit().await);
            })),
            (StopAction::Quit | StopAction::Kill, _, Some(process)) => process.kill(),
            _ => {}
        }
    }

    fn take(&mut self, input: Input) {
        let now = self.clock.now();
        match input {
            Input::QmpUp(qmp) => {
                self.seen.was_up = true;
                self.seen.version = Some(qmp.version.clone());
                self.seen.qmp = Some(qmp);
                self.sizer.handle(now, Event::QmpUp);
            }
            Input::QmpDown => {
                self.seen.qmp = None;
                self.sizer.handle(now, Event::QmpDown);
                if let Some(at) = &mut self.outgoing {
                    at.disconnected();
                }
                if let Some(at) = &mut self.incoming {
                    at.disconnected();
                }
                self.room.disconnected();
            }
            Input::QmpUnreached(why) => self.sizer.handle(now, Event::QmpUnreached(why)),
            Input::Qmp(event) => self.take_qmp(now, event),
            Input::Guest(news) => self.take_guest(now, news),
            Input::Network(process) => self.take_network(process),
            Input::Reply(event) => self.sizer.handle(now, event),
            Input::Order(order, over, reply) => self.take_order(now, order, over, reply),
            Input::Ahead(wish, reply) => {
                debug!(cpu = %wish.cpu, "CPUs ahead of an order");
                self.hold(now, Event::Ahead(wish), reply);
                let ahead = self.sizer.cpus().ahead;
                if ahead.is_some_and(|cpu| cpu.0 > 0) {
                    self.metrics.ahead();
                }
            }
            Input::CpuChange(cpu, reply) => {
                let held = self.sizer.target().clone();
                self.take_order(now, SizeOrder { cpu, ..held }, None, reply);
            }
            Input::Stop(order) => self.stop(&order),
            Input::Ask(ask, answer) => self.take_ask(now, ask, answer),
            Input::Transfer(what) => self.take_transfer(now, what),
            Input::Room(news) => self.take_room(now, news),
            Input::Ended(code) => {
                info!(code, "QEMU has ended");
                self.seen.ended = Some((code, now));
            }
        }
    }

    fn take_order(&mut self, now: Timestamp, order: SizeOrder, over: Option<u64>, reply: Answer) {
        let TraceId { vm, revision } = &order.trace;
        let is_held = self.sizer.order() == Some(&order);
        match overtaken::count(self.record.orders, over, is_held) {
            Ok(orders) => self.record.orders = orders,
            Err(overtaken) => {
                warn!(vm, revision, cpu = %order.cpu, memory = %order.memory, %overtaken, "order refused");
                // The client may have disconnected.
                let _ = reply.send(Err(overtaken.to_string()));
                return;
            }
        }
        if !is_held {
            self.record.order = Some(order.clone());
            (self.owed.is_unwritten, self.owed.is_untold) = (true, true);
        }
        self.hold(now, Event::Order(order), reply);
    }

    /// Logs the accepted order. After it has begun, since readers of the log share the guest's
    /// processors.
    pub(super) fn tell_order(&self) {
        if let Some(order) = &self.record.order {
            let TraceId { vm, revision } = &order.trace;
            info!(vm, revision, cpu = %order.cpu, memory = %order.memory, "size ordered");
        }
    }

    /// Passes an order to the sizer. The reply follows once its first actions have begun.
    fn hold(&mut self, now: Timestamp, event: Event, reply: Answer) {
        self.sizer.handle(now, event);
        self.owed.answers.push(reply);
    }

    fn take_qmp(&mut self, now: Timestamp, event: QmpEvent) {
        match event {
            QmpEvent::Cpu => self.sizer.handle(now, Event::CpuHint),
            QmpEvent::Deleted(id) => self.sizer.handle(now, Event::CpuGone(id)),
            QmpEvent::Memory => self.sizer.handle(now, Event::MemoryHint),
            QmpEvent::UnplugRefused => {
                warn!("the guest refused an unplug");
                self.sizer.handle(now, Event::CpuHint);
            }
            QmpEvent::DiskStopped(drive, reason) => self.disk_stopped(now, &drive, &reason),
            QmpEvent::Stopped(unix_us) => {
                self.room.hint(now);
                if let Some(at) = &mut self.outgoing {
                    at.stopped(unix_us);
                    at.hint(now);
                }
            }
            QmpEvent::Resumed(unix_us) => {
                if let Some(at) = &mut self.incoming {
                    at.resumed(unix_us);
                }
                self.hint_transfer(now);
            }
            QmpEvent::Transfer => self.hint_transfer(now),
            QmpEvent::Unclear => {
                self.room.hint(now);
                self.hint_transfer(now);
                self.sizer.handle(now, Event::CpuHint);
                self.sizer.handle(now, Event::MemoryHint);
            }
            QmpEvent::Panicked => {
                warn!("the guest's kernel panicked");
                self.seen.panicked = true;
            }
            QmpEvent::Shutdown(reason) => {
                info!(?reason, "the virtual machine ends");
                self.seen.shutdown = Some(reason);
                if let Some(stop) = &mut self.seen.stopping {
                    stop.heard();
                }
            }
        }
    }

    fn hint_transfer(&mut self, now: Timestamp) {
        if let Some(at) = &mut self.outgoing {
            at.hint(now);
        }
        if let Some(at) = &mut self.incoming {
            at.hint(now);
        }
    }

    fn stop(&mut self, order: &StopOrder) {
        // A guest that is elsewhere gets no power button.
        let grace_ms = if self.is_away() { 0 } else { order.grace_ms };
        let (now, grace) = (self.clock.now(), Span::from_millis(grace_ms));
        match &mut self.seen.stopping {
            Some(stop) => stop.hurry(now, grace),
            None => {
                info!(grace_ms = order.grace_ms, "stop ordered");
                self.seen.stopping = Some(Stopping::new(now, grace));
                self.record.stop_ordered = true;
                self.save();
            }
        }
    }

    fn set_quota(&mut self, limit: MilliCpu) {
        let Some(group) = &self.group else { return };
        match group.set(limit, self.config.cpu_quota_percent) {
            Ok(limit) => self.quota = QuotaState::Enforced { milli: limit.0 },
            Err(error) => {
                let reason = daemon_kit::chain(&error);
                warn!(reason, "CPU limit is not enforced");
                self.quota = QuotaState::Unavailable { reason };
            }
        }
        self.show_quota();
    }

    /// Sets the metric of a missing quota.
    pub(super) fn show_quota(&self) {
        let is_missing = matches!(self.quota, QuotaState::Unavailable { .. });
        let is_asked_for = self.record.cgroup.is_some();
        self.metrics.quota_missing(is_asked_for && is_missing);
    }

    fn rotate_logs(&self) {
        for log in &self.logs {
            if let Err(error) = log.rotate() {
                warn!(path = %log.path().display(), %error, "log not rotated");
            }
        }
    }

    /// The report, once QEMU has ended and its last events have arrived.
    fn finished(&mut self) -> Option<ExitReport> {
        let (code, at) = self.seen.ended?;
        if self.seen.qmp.is_some() && self.clock.now() < at + LAST_EVENTS {
            return None;
        }
        let report = classify(&Evidence {
            was_up: self.seen.was_up,
            stop_ordered: self.record.stop_ordered,
            moved: self.record.moved,
            forced: self.seen.stopping.as_ref().is_some_and(Stopping::forced),
            panicked: self.seen.panicked,
            shutdown: self.seen.shutdown,
            code,
            console_tail: file_tail(&self.paths.console_log(), CONSOLE_TAIL_BYTES),
            qemu_tail: file_tail(&self.paths.qemu_log(), CONSOLE_TAIL_BYTES),
        });
        let report = self.arrival_failed().unwrap_or(report);
        info!(reason = ?report.reason, success = report.success, code, "the VM has ended");
        if let Err(error) = write_json(&self.paths.exit(), &report) {
            error!(
                error = daemon_kit::chain(&error),
                "the end is not written down"
            );
        }
        self.seen.exit = Some(report.clone());
        if let Some(group) = self.group.take() {
            group.remove();
        }
        self.bounds.remove();
        self.publish(self.clock.now());
        Some(report)
    }

    /// Report of a QEMU whose guest never arrived.
    fn arrival_failed(&self) -> Option<ExitReport> {
        let incoming = self.incoming.as_ref().filter(|at| !at.is_begun())?;
        let (code, _) = self.seen.ended?;
        let tail = file_tail(&self.paths.qemu_log(), CONSOLE_TAIL_BYTES);
        let last = tail.lines().next_back().unwrap_or_default().to_owned();
        Some(ExitReport {
            success: false,
            reason: ExitReason::StartFailed,
            code,
            message: incoming.report().problem.unwrap_or(last),
        })
    }

    pub(super) fn save(&mut self) {
        self.owed.is_unwritten = false;
        match write_json(&self.paths.record(), &self.record) {
            Ok(()) => self.seen.record_failed = false,
            Err(error) => {
                if !std::mem::replace(&mut self.seen.record_failed, true) {
                    error!(
                        error = daemon_kit::chain(&error),
                        "the record is not written; adoption would see an old one"
                    );
                }
            }
        }
    }

    fn publish(&mut self, now: Timestamp) {
        let seen = &self.seen;
        let phase = match (&seen.exit, &seen.stopping, seen.answers) {
            (Some(_), ..) => RunnerPhase::Exited,
            (None, Some(_), _) => RunnerPhase::Stopping,
            (None, None, false) if self.incoming.is_some() => RunnerPhase::Receiving,
            (None, None, true) if self.sizer.has_looked() => RunnerPhase::Running,
            (None, None, _) => RunnerPhase::Booting,
        };
        let guest_silent = self.guest_silent(now);
        self.metrics.guest_silent(guest_silent.is_some());
        let disk_full = self.room.full().filter(|_| seen.ended.is_none()).cloned();
        self.metrics.disk_full(disk_full.is_some());
        // The wall clock may be set; each state uses the clock of its own moment.
        let offset = self.clock.wall().0.saturating_sub_unsigned(now.0);
        let next = RunnerState {
            generation: 0,
            phase,
            qemu_pid: self
                .record
                .qemu
                .filter(|_| seen.ended.is_none())
                .map(|process| process.pid),
            qemu_version: seen.version.clone(),
            accel: self.record.accel.as_str().to_owned(),
            boot_id: seen.guest.as_ref().map(|guest| guest.boot_id.clone()),
            guest_kernel: seen.guest.as_ref().map(|guest| guest.kernel.clone()),
            boot_ms: self.record.boot_ms,
            cpus: self.sizer.cpus(),
            memory: self.sizer.memory(),
            resize: self
                .sizer
                .report(now, |at| offset.saturating_add_unsigned(at.0)),
            orders: Some(self.record.orders),
            exit: seen.exit.clone(),
            quota: self.quota.clone(),
            outgoing: self.outgoing.as_ref().map(Outgoing::report),
            incoming: self.incoming.as_ref().map(Incoming::report),
            guest_silent,
            disk_full,
        };
        self.state.show(now, next);
    }
}
