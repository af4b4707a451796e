//! The driver of one VM: takes inputs, polls the cores of size, stop and migration for actions, and
//! publishes the state. Its loop is its own, not that of [`daemon_kit::driver`], because it drives
//! five cores in one turn and ends with a report.

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
use super::input::{Input, OnCancel};
use super::metrics::Metrics;
use super::pending_replies::PendingReplies;
use super::qmp::{Qmp, QmpEvent};
use super::record::{Record, write_json};
use super::state_publisher::StatePublisher;
use crate::config::RunnerConfig;
use crate::core::disk_full::{DiskFullRecovery, RecoveryEvent};
use crate::core::exit::ShutdownReason;
use crate::core::guest_liveness::GuestLiveness;
use crate::core::guest_parts::GuestParts;
use crate::core::guestd_key::GuestdKey;
use crate::core::paths::Paths;
use crate::core::program_files::ProgramFiles;
use crate::core::sizer::{Event, Sizer};
use crate::core::stop::{StopAction, StopEvent, Stopping};
use crate::core::transfer::{Incoming, IncomingEvent, Outgoing, OutgoingEvent};

mod disk_full;
mod ending;
mod guest_events;
mod limits;
mod migration;
mod orders;
mod turn;

/// Interval of checking the logs' lengths.
const ROTATE_EVERY: Span = Span::from_secs(5);
/// Longest time that the last events of an ended QEMU may take to arrive.
const LAST_EVENTS: Span = Span::from_secs(1);

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
    pub(super) programs: ProgramFiles,
    pub(super) parts: GuestParts,
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
            Some(stop) => stop.handle(now, StopEvent::Order(Span(0))),
            None => self.seen.stopping = Some(Stopping::new(now, Span(0))),
        }
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
                self.outgoing.handle(now, OutgoingEvent::Disconnected);
                self.incoming.handle(now, IncomingEvent::Disconnected);
                self.recovery.handle(now, RecoveryEvent::Disconnected);
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
                self.recovery.handle(now, RecoveryEvent::Hint);
                self.outgoing.handle(now, OutgoingEvent::Stopped(unix_us));
                self.outgoing.handle(now, OutgoingEvent::Hint);
            }
            QmpEvent::Resumed(unix_us) => {
                self.incoming.handle(now, IncomingEvent::Resumed(unix_us));
                self.hint_transfer(now);
            }
            QmpEvent::Transfer => self.hint_transfer(now),
            QmpEvent::Unclear => {
                self.recovery.handle(now, RecoveryEvent::Hint);
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
                self.seen.stopping.handle(now, StopEvent::ShutsDown);
            }
        }
    }

    fn hint_transfer(&mut self, now: Timestamp) {
        self.outgoing.handle(now, OutgoingEvent::Hint);
        self.incoming.handle(now, IncomingEvent::Hint);
    }

    fn stop(&mut self, order: &StopOrder) {
        // A guest that is elsewhere gets no power button.
        let grace_ms = if self.is_away() { 0 } else { order.grace_ms };
        let (now, grace) = (self.clock.now(), Span::from_millis(grace_ms));
        match &mut self.seen.stopping {
            Some(stop) => stop.handle(now, StopEvent::Order(grace)),
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
            programs: seen.programs.shown().to_vec(),
            guest_parts: seen.parts.shown().clone(),
        };
        self.state.publish(now, next);
    }
}
