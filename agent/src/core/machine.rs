//! The decision state machine of one VM. Source: docs/compatibility/agent.md §3; see [`super`] for
//! the whole picture.

use std::collections::VecDeque;

use protocol::mode::Mode;
use protocol::permit::PluginResponse;
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;
use serde::Serialize;

use super::actions::{Action, Actions, RequestId};
use super::calm::Calm;
use super::config::CoreConfig;
use super::decision::Decision;
use super::metrics::{LfcMetrics, SystemMetrics};
use super::monitor::{Approved, Kind, MonitorState, RequestedUpscale, Wish};
use super::neonvm::NeonVmState;
use super::plugin::PluginState;
use super::revision::{Observed, RevisionSource, StampedRevision};
use super::round::whole_slots;
use super::vm::VmInfo;
use super::warnings::{Fault, FaultCounts, Warning, Warnings};

/// Observations kept until someone takes them; a shell takes them after each event, so it holds a
/// handful.
const MAX_OBSERVATIONS: usize = 64;

/// How a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// The peer certainly did not act on it: it never left, or was refused.
    NotApplied,
    /// The peer may have acted on it: no answer, or one that cannot be understood.
    Unknown,
}

impl Failure {
    fn may_have_arrived(self) -> bool {
        self == Self::Unknown
    }
}

/// A monitor's answer to a shrink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DownscaleAnswer {
    /// It may shrink.
    Allowed,
    /// It may not.
    Denied(Refusal),
}

/// What a monitor says with a refused shrink. In version 1 of the link it says nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The smallest size it would accept.
    pub smallest: Option<Resources>,
    /// Time until it would accept the refused size, if use stays as it is.
    pub again: Option<Span>,
}

impl DownscaleAnswer {
    /// A refusal without details.
    pub const DENIED: Self = Self::Denied(Refusal {
        smallest: None,
        again: None,
    });

    /// A refusal that names the smallest size.
    #[must_use]
    pub const fn denied_below(smallest: Resources) -> Self {
        Self::Denied(Refusal {
            smallest: Some(smallest),
            again: None,
        })
    }
}

/// A new state of the VM object.
#[derive(Debug, Clone, PartialEq)]
pub struct VmUpdate {
    /// Bounds and settings. Its `use` is not taken over; one that nobody here set, in a state newer
    /// than our own last patch, puts the size in doubt until a patch makes it true.
    pub info: VmInfo,
    /// `status.currentRevision` with its time on the core's clock.
    pub current_revision: Option<StampedRevision>,
    /// `status.phase` is `PreMigrating`.
    pub is_pre_migrating: bool,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A scrape of the guest.
    SystemMetrics(SystemMetrics),
    /// A scrape of the file cache.
    LfcMetrics(LfcMetrics),
    /// The VM object changed.
    VmUpdated(Box<VmUpdate>),
    /// A monitor connection is up.
    MonitorActive,
    /// The monitor connection is down.
    MonitorReset,
    /// The monitor asks to grow.
    MonitorUpscaleRequested(Wish),
    /// A permit request ended.
    PluginDone(RequestId, Result<PluginResponse, Failure>),
    /// A patch ended; with the version the object got by it, if that is known.
    NeonVmDone(RequestId, Result<Option<u64>, Failure>),
    /// Telling the monitor ended.
    MonitorUpscaleDone(RequestId, Result<(), Failure>),
    /// Asking the monitor ended.
    MonitorDownscaleDone(RequestId, Result<DownscaleAnswer, Failure>),
    /// Time has passed and nothing else has happened: a wait may be over.
    Tick,
}

/// Which way a latency was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    /// From the wish to the VM having it.
    EndToEnd,
    /// A permit request.
    Plugin,
    /// A monitor's answer to a shrink.
    Monitor,
    /// From the patch to the VM having it.
    NeonVm,
}

/// Something worth measuring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Observation {
    /// A revision got somewhere.
    Latency {
        /// Part of the way that the latency covers.
        path: Path,
        /// How long it took.
        after: Span,
        /// Flags of the revision: growth, shrink or both.
        flags: u64,
    },
    /// A patch starts; `actual` scaling event.
    ResizeStarted {
        /// Size in use when the patch starts.
        from: Resources,
        /// Size that the patch asks for.
        to: Resources,
    },
}

/// What one computation gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// What may be started.
    pub actions: Actions,
    /// What was decided, and why.
    pub decision: Decision,
    /// Conditions it was decided under.
    pub warnings: Warnings,
}

/// Metrics and when they came.
#[derive(Debug, Clone)]
pub(super) struct Timed<T> {
    pub at: Timestamp,
    pub value: T,
}

impl<T> Timed<T> {
    pub(super) fn fresh(&self, now: Timestamp, max_age: Option<Span>) -> Option<&T> {
        max_age
            .is_none_or(|age| now.since(self.at) <= age)
            .then_some(&self.value)
    }
}

/// One VM's state. See the module documentation of [`super`].
#[derive(Debug, Clone)]
pub struct Core {
    pub(super) config: CoreConfig,
    /// Its `use` is what the last patch that succeeded set.
    pub(super) vm: VmInfo,
    pub(super) plugin: PluginState,
    pub(super) monitor: MonitorState,
    pub(super) neonvm: NeonVmState,
    pub(super) system: Option<Timed<SystemMetrics>>,
    pub(super) lfc: Option<Timed<LfcMetrics>>,
    pub(super) revisions: RevisionSource,
    pub(super) target_revision: StampedRevision,
    pub(super) last_desired: Option<Resources>,
    pub(super) faults: FaultCounts,
    pub(super) calm: Calm,
    pub(super) was_pre_migrating: bool,
    pub(super) pending_warnings: Warnings,
    pub(super) observations: VecDeque<Observation>,
    pub(super) next_id: u64,
    pub(super) computations: u64,
    pub(super) last: Option<(Timestamp, Evaluation)>,
}

impl Core {
    /// A core that knows nothing but the object. Revisions go on after the newest one on it.
    #[must_use]
    pub fn new(config: CoreConfig, vm: VmInfo) -> Self {
        let start = vm
            .current_revision
            .map_or(0, |current| current.revision.value)
            .max(vm.last_revision);
        Self {
            config,
            plugin: PluginState::default(),
            monitor: MonitorState::default(),
            neonvm: NeonVmState {
                // Whoever resized it before this began may have died before it told the monitor.
                was_on_the_way: start > 0 || !vm.has_arrived(),
                version: vm.version,
                ..NeonVmState::default()
            },
            vm,
            system: None,
            lfc: None,
            revisions: RevisionSource::new(start),
            target_revision: StampedRevision::default(),
            last_desired: None,
            faults: FaultCounts::default(),
            calm: Calm::default(),
            was_pre_migrating: false,
            pending_warnings: Warnings::default(),
            observations: VecDeque::new(),
            next_id: 1,
            computations: 0,
            last: None,
        }
    }

    /// Takes in something that happened. Answers to requests that are not under way are counted and
    /// dropped.
    pub fn handle(&mut self, now: Timestamp, event: Event) {
        match event {
            Event::Tick => {}
            Event::SystemMetrics(value) => self.system = Some(Timed { at: now, value }),
            Event::LfcMetrics(value) => self.lfc = Some(Timed { at: now, value }),
            Event::VmUpdated(update) => self.vm_updated(*update),
            Event::MonitorActive => {
                // A monitor reads its size when it starts, so it may count on less than the object
                // says, or on more, while the guest has not got there: then it is told. What
                // another connection agreed to for a patch under way is not taken for granted.
                let using = self.using();
                let certain = self.neonvm.certain(using);
                let low = self
                    .vm
                    .actual
                    .map_or(certain, |actual| certain.field_min(actual));
                let high = self.neonvm.held(using);
                let in_doubt = self.neonvm.was_on_the_way;
                self.monitor.activate(Approved { low, high }, in_doubt);
            }
            Event::MonitorReset => self.monitor = MonitorState::default(),
            Event::MonitorUpscaleRequested(wish) => {
                let base = self
                    .monitor
                    .approved
                    .map_or(self.using(), |approved| approved.high);
                self.monitor.requested_upscale = Some(RequestedUpscale {
                    at: now,
                    base,
                    wish,
                });
            }
            Event::PluginDone(id, result) if self.plugin.ongoing == Some(id) => {
                self.plugin_done(now, result);
            }
            Event::NeonVmDone(id, result)
                if self
                    .neonvm
                    .ongoing
                    .is_some_and(|(ongoing, _)| ongoing == id) =>
            {
                self.neonvm_done(now, result);
            }
            Event::MonitorUpscaleDone(id, result) if self.is_monitor_ongoing(id, Kind::Upscale) => {
                match result {
                    Ok(()) => self.monitor.agree(),
                    Err(failure) => self.monitor.fail(now, failure.may_have_arrived()),
                }
                self.monitor.limit(self.neonvm.held(self.using()));
            }
            Event::MonitorDownscaleDone(id, result)
                if self.is_monitor_ongoing(id, Kind::Downscale) =>
            {
                self.downscale_done(now, result);
                self.monitor.limit(self.neonvm.held(self.using()));
            }
            Event::PluginDone(..)
            | Event::NeonVmDone(..)
            | Event::MonitorUpscaleDone(..)
            | Event::MonitorDownscaleDone(..) => self.faults.count(Fault::UnknownReply),
        }
    }

    fn is_monitor_ongoing(&self, id: RequestId, kind: Kind) -> bool {
        self.monitor
            .ongoing
            .is_some_and(|ongoing| ongoing.id == id && ongoing.kind == kind)
    }

    fn vm_updated(&mut self, update: VmUpdate) {
        let using = self.using();
        let seen = update.info.version.zip(Some(update.info.using()));
        self.vm = update.info;
        let mut kept = using;
        if let Some((version, size)) = seen {
            let is_other = size != using || !self.neonvm.is_certain();
            if is_other && self.neonvm.is_news(version) && self.goes_by_object() {
                kept = size;
                self.neonvm.uncertain = None;
                self.monitor.is_in_doubt = true;
            }
            self.neonvm.saw(version, size, kept);
        }
        // The slot size of a live VM does not change; if it ever does, what is in use stays in
        // whole slots.
        kept.mem = whole_slots(kept.mem, kept.mem, self.vm.mem.slot_size);
        self.vm.set_using(kept);
        self.neonvm.was_on_the_way |= kept != using || !self.vm.has_arrived();
        self.monitor.limit(self.neonvm.held(kept));
        if !self.vm.config.scaling.enable_lfc_metrics {
            self.lfc = None;
        }
        if self.was_pre_migrating && !update.is_pre_migrating {
            self.plugin.migrating_since = None;
        }
        self.was_pre_migrating = update.is_pre_migrating;
        if let Some(current) = update.current_revision {
            self.revision_seen(current);
        }
    }

    /// Whether a new size in the object is the VM's, whoever set it: before the first permit, when
    /// nobody rests on what is believed here, and where people size VMs by hand. One that is only
    /// observed is not patched, so a patch of before whose answer was lost is told by the object
    /// alone.
    fn goes_by_object(&self) -> bool {
        match self.vm.config.scaling.mode {
            Mode::Observe => self.neonvm.ongoing.is_none(),
            Mode::Grow => self.neonvm.is_certain(),
            Mode::Full => self.plugin.permit.is_none() && self.neonvm.is_certain(),
        }
    }

    fn revision_seen(&mut self, current: StampedRevision) {
        if current.revision.value >= self.neonvm.target_revision.revision.value
            && let Some((after, flags)) = self
                .neonvm
                .target_revision
                .propagate(current.at, &mut self.neonvm.current_revision)
        {
            self.observe(Observation::Latency {
                path: Path::NeonVm,
                after,
                flags,
            });
        }
        match self.revisions.observe(current.at, current.revision.value) {
            Observed::After(after) => {
                let flags = current.revision.flags;
                self.observe(Observation::Latency {
                    path: Path::EndToEnd,
                    after,
                    flags,
                });
                self.last_desired = None;
            }
            Observed::Known => {}
            Observed::NotIssued => self.pending_warnings.insert(Warning::RevisionFromFuture),
        }
    }

    fn plugin_done(&mut self, now: Timestamp, result: Result<PluginResponse, Failure>) {
        match result {
            Err(failure) => self.plugin.fail(now, failure.may_have_arrived()),
            Ok(response) => {
                let held = self.neonvm.held(self.using());
                let hold = self.config.timers.migration_hold;
                match self.plugin.succeed(now, &response, held, hold) {
                    Err(_) => self.faults.count(Fault::InvalidPermit),
                    Ok(None) => {}
                    Ok(Some((after, flags))) => {
                        self.observe(Observation::Latency {
                            path: Path::Plugin,
                            after,
                            flags,
                        });
                    }
                }
            }
        }
    }

    fn neonvm_done(&mut self, now: Timestamp, result: Result<Option<u64>, Failure>) {
        let version = result.ok().flatten();
        match result {
            Err(failure) => {
                let using = self.using();
                self.neonvm.fail(now, using, failure.may_have_arrived());
            }
            Ok(_) => {
                if let Some(size) = self.neonvm.succeed(now) {
                    self.calm.resized(now, self.using(), size);
                    self.vm.set_using(size);
                }
            }
        }
        let using = self.using();
        self.neonvm.ended_at(version, using);
        let held = self.neonvm.held(self.using());
        self.monitor.limit(held);
    }

    fn downscale_done(&mut self, now: Timestamp, result: Result<DownscaleAnswer, Failure>) {
        let Some(ongoing) = self.monitor.ongoing else {
            return;
        };
        match result {
            Err(failure) => return self.monitor.fail(now, failure.may_have_arrived()),
            Ok(DownscaleAnswer::Allowed) => self.monitor.agree(),
            Ok(DownscaleAnswer::Denied(refusal)) => self.monitor.deny(now, refusal),
        }
        if let Some((after, flags)) = ongoing
            .revision
            .propagate(now, &mut self.monitor.current_revision)
        {
            self.observe(Observation::Latency {
                path: Path::Monitor,
                after,
                flags,
            });
        }
    }

    fn observe(&mut self, observation: Observation) {
        if self.observations.len() == MAX_OBSERVATIONS {
            self.faults.count(Fault::ObservationLost);
            self.observations.pop_front();
        }
        self.observations.push_back(observation);
    }

    /// What the VM uses, as far as is known.
    #[must_use]
    pub fn using(&self) -> Resources {
        self.vm.using()
    }

    /// The VM as last seen, with the size last set.
    #[must_use]
    pub fn vm(&self) -> &VmInfo {
        &self.vm
    }

    /// Marks an action as started. Its end is reported under the id returned.
    pub fn start(&mut self, now: Timestamp, action: &Action) -> RequestId {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        match action {
            Action::Plugin(request) => self.plugin.start(now, id, request),
            Action::NeonVm(request) => {
                self.observe(Observation::ResizeStarted {
                    from: request.current,
                    to: request.target,
                });
                self.neonvm.start(now, id, request);
            }
            Action::MonitorUpscale(r) => {
                self.monitor
                    .start(now, id, Kind::Upscale, r.target, r.revision);
            }
            Action::MonitorDownscale(r) => {
                self.monitor
                    .start(now, id, Kind::Downscale, r.target, r.revision);
            }
        }
        id
    }

    /// The next thing to do, already marked as started; `None` when there is nothing until the next
    /// event or deadline.
    pub fn poll_action(&mut self, now: Timestamp) -> Option<(RequestId, Action)> {
        let action = self.next_actions(now).actions.first()?;
        Some((self.start(now, &action), action))
    }

    /// When to send [`Event::Tick`] if nothing happens before. Valid after [`Self::poll_action`]
    /// returned `None`.
    #[must_use]
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let (at, evaluation) = self.last.as_ref()?;
        evaluation.actions.wait.map(|wait| *at + wait)
    }

    /// The next measurement.
    pub fn poll_observation(&mut self) -> Option<Observation> {
        self.observations.pop_front()
    }

    /// The newest computation.
    #[must_use]
    pub fn last_evaluation(&self) -> Option<&Evaluation> {
        self.last.as_ref().map(|(_, evaluation)| evaluation)
    }

    /// The newest permit.
    #[must_use]
    pub fn permit(&self) -> Option<Resources> {
        self.plugin.permit
    }

    /// What the newest permit request asked for.
    #[must_use]
    pub fn last_request(&self) -> Option<Resources> {
        self.plugin.last_request.map(|last| last.resources)
    }

    /// The revision the newest permit request serves, 0 for none.
    #[must_use]
    pub fn plugin_revision(&self) -> i64 {
        self.plugin
            .last_request
            .map_or(0, |last| last.revision.revision.value)
    }

    /// The revision of the newest patch, and its size while it is under way.
    #[must_use]
    pub fn patch_under_way(&self) -> (i64, Option<Resources>) {
        (
            self.neonvm.target_revision.revision.value,
            self.neonvm.ongoing.map(|(_, size)| size),
        )
    }

    /// The monitor request under way: its revision, and the sizes before and after.
    #[must_use]
    pub fn monitor_under_way(&self) -> Option<(i64, Resources, Resources)> {
        let (ongoing, approved) = (self.monitor.ongoing?, self.monitor.approved?);
        Some((
            ongoing.revision.revision.value,
            approved.high,
            ongoing.resources,
        ))
    }

    /// Computations so far.
    #[must_use]
    pub fn computations(&self) -> u64 {
        self.computations
    }

    /// Broken invariants so far.
    #[must_use]
    pub fn faults(&self) -> FaultCounts {
        self.faults
    }

    /// Whether effective settings ask for file cache metrics.
    #[must_use]
    pub fn wants_lfc_metrics(&self) -> bool {
        self.vm.config.scaling.enable_lfc_metrics
    }
}
