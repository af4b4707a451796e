//! The driver of one VM: takes inputs, polls the cores of size, stop and migration for actions, and
//! publishes the state.

use std::sync::Arc;

use daemon_kit::clock::Clock;
use neonvm_quota::QuotaGroup;
use protocol::core::Core as _;
use protocol::runner::{
    ExitReport, GuestState, QuotaState, RunnerPhase, RunnerState, SizeOrder, StopOrder,
};
use protocol::time::{Span, Timestamp};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::bounds::Bounds;
use super::console::KeptLog;
use super::executor::{Context, execute};
use super::input::{Input, OnCancel};
use super::metrics::Metrics;
use super::pending_replies::PendingReplies;
use super::qmp::{Qmp, QmpEvent};
use super::record::{Record, write_json};
use super::state_publisher::StatePublisher;
use crate::config::RunnerConfig;
use crate::core::disk_full::DiskFullRecovery;
use crate::core::exit::ShutdownReason;
use crate::core::guest_liveness::GuestLiveness;
use crate::core::guestd_key::GuestdKey;
use crate::core::paths::Paths;
use crate::core::sizer::{Action, Event, Sizer};
use crate::core::stop::{StopAction, Stopping};
use crate::core::transfer::{Incoming, Outgoing};

mod disk_full;
mod ending;
mod guest_events;
mod limits;
mod migration;
mod orders;

/// Interval of checking the logs' lengths.
const ROTATE_EVERY: Span = Span::from_secs(5);
/// Longest time that the last events of an ended QEMU may take to arrive.
const LAST_EVENTS: Span = Span::from_secs(1);
/// Most actions of the sizer in one turn; more would be an endless loop.
const MAX_ACTIONS_A_TURN: u32 = 64;

/// State of the task that owns one QEMU and acts on every [`Input`].
#[derive(Debug)]
pub struct VmDriver {
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
    pub(super) state: StatePublisher,
    pub(super) on_cancel: OnCancel,
    pub(super) seen: Observed,
    pub(super) pending: PendingReplies,
    /// Time since the guest's last answer.
    pub(super) liveness: GuestLiveness,
    pub(super) recovery: DiskFullRecovery,
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
pub(super) struct Observed {
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

impl Observed {
    /// State at the start; `was_up` if an earlier runner was connected to this QEMU.
    pub(super) fn new(was_up: bool) -> Self {
        Self {
            was_up,
            ..Self::default()
        }
    }
}

impl VmDriver {
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
            self.send_replies().await;
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
            if !self.recovery.is_resuming() {
                self.turn_transfer(now);
            }
            self.turn_recovery(now);
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
        let mut at = self.seen.rotate_at;
        at = at.min(self.sizer.poll_deadline().unwrap_or(at));
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
            at = at.min(self.recovery.poll_deadline());
        }
        if let Some(stop) = &self.seen.stopping {
            at = at.min(stop.poll_deadline());
        }
        if let Some((_, ended)) = self.seen.ended {
            at = at.min(ended + LAST_EVENTS);
        }
        let silence = self.liveness.poll_deadline(now);
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
        let context = Context {
            qmp: self.seen.qmp.clone(),
            guest: self.daemon(),
        };
        let inputs = self.inputs.clone();
        tokio::spawn(async move {
            if let Some(event) = execute(context, action).await {
                // The driver is gone only when the runner ends.
                let _ = inputs.send(Input::ActionDone(event)).await;
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
                self.recovery.disconnected();
            }
            Input::QmpUnreached(why) => self.sizer.handle(now, Event::QmpUnreached(why)),
            Input::Qmp(event) => self.take_qmp(now, event),
            Input::Guest(report) => self.take_guest(now, report),
            Input::Network(process) => self.take_network(process),
            Input::ActionDone(event) => self.sizer.handle(now, event),
            Input::Order { order, over, reply } => self.take_order(now, order, over, reply),
            Input::Ahead(request, reply) => {
                debug!(cpu = %request.cpu, "CPUs ahead of an order");
                self.hold(now, Event::Ahead(request), reply);
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
            Input::Migration(order, reply) => self.take_migration(now, order, reply),
            Input::Transfer(result) => self.take_transfer(now, result),
            Input::Recovery(result) => self.take_recovery(now, result),
            Input::Ended(code) => {
                info!(code, "QEMU has ended");
                self.seen.ended = Some((code, now));
            }
        }
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
                self.recovery.hint(now);
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
                self.recovery.hint(now);
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
                    stop.shuts_down();
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

    fn rotate_logs(&self) {
        for log in &self.logs {
            if let Err(error) = log.rotate() {
                warn!(path = %log.path().display(), %error, "log not rotated");
            }
        }
    }

    pub(super) fn save(&mut self) {
        self.pending.is_unwritten = false;
        match write_json(&self.paths.record(), &self.record) {
            Ok(()) => self.seen.record_failed = false,
            Err(error) => {
                if !std::mem::replace(&mut self.seen.record_failed, true) {
                    error!(
                        error = daemon_kit::chain(&error),
                        "failed to write the record; adoption would use an old one"
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
        let disk_full = self
            .recovery
            .full()
            .filter(|_| seen.ended.is_none())
            .cloned();
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
        self.state.publish(now, next);
    }
}
