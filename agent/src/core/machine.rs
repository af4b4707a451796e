//! The decision state machine of one VM. Source: docs/compatibility/agent.md §3; [`super`] has the
//! whole picture.

use std::collections::VecDeque;

use protocol::mode::Mode;
use protocol::permit::PluginResponse;
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;

use super::actions::{Action, Actions, RequestId};
use super::advice::PolicyState;
use super::config::CoreConfig;
use super::decision::Decision;
use super::event::{DownscaleResponse, Event, Failure, VmUpdate};
use super::metrics::{LfcMetrics, SystemMetrics};
use super::monitor::{Approved, Kind, MonitorState, RequestedUpscale};
use super::observation::{Observation, Path};
use super::patch_base::PatchBase;
use super::revision::{Observed, RevisionSource, StampedRevision};
use super::round::whole_slots;
use super::scheduler::SchedulerState;
use super::stabilization::Stabilization;
use super::vm::VmInfo;
use super::vm_patch::VmPatchState;
use super::warnings::{Fault, FaultCounts, Warning, Warnings};

/// Observations kept until the shell takes them, which it does after each event.
const MAX_OBSERVATIONS: usize = 64;

/// Result of one computation.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// Requests that may start now.
    pub actions: Actions,
    /// Desired size and its causes.
    pub decision: Decision,
    /// Abnormal conditions during the computation.
    pub warnings: Warnings,
}

/// A sample and the time it arrived.
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

/// State of one VM. The documentation of [`super`] explains it.
#[derive(Debug, Clone)]
pub struct Core {
    pub(super) config: CoreConfig,
    /// The VM object. Its `use` is the size that the last successful patch set.
    pub(super) vm: VmInfo,
    pub(super) scheduler: SchedulerState,
    pub(super) monitor: MonitorState,
    pub(super) vm_patch: VmPatchState,
    /// The condition of the next patch. No decision reads it.
    pub(super) patch_base: PatchBase,
    /// The number that the newest patch sets.
    pub(super) patch_number: i64,
    pub(super) system: Option<Timed<SystemMetrics>>,
    pub(super) lfc: Option<Timed<LfcMetrics>>,
    pub(super) revisions: RevisionSource,
    pub(super) target_revision: StampedRevision,
    pub(super) last_desired: Option<Resources>,
    pub(super) faults: FaultCounts,
    pub(super) stabilization: Stabilization,
    pub(super) policy: PolicyState,
    pub(super) was_pre_migrating: bool,
    pub(super) pending_warnings: Warnings,
    pub(super) observations: VecDeque<Observation>,
    pub(super) next_id: u64,
    pub(super) computations: u64,
    pub(super) last: Option<(Timestamp, Evaluation)>,
}

impl Core {
    /// Starts from the object alone. Revisions continue after the newest one on the object.
    #[must_use]
    pub fn new(config: CoreConfig, vm: VmInfo) -> Self {
        let start = vm
            .current_revision
            .map_or(0, |current| current.revision.value)
            .max(vm.last_revision);
        Self {
            config,
            scheduler: SchedulerState::default(),
            monitor: MonitorState::default(),
            vm_patch: VmPatchState {
                // An earlier agent may have resized the VM and died before it notified the monitor.
                was_resized: start > 0 || !vm.has_arrived(),
                version: vm.version,
                ..VmPatchState::default()
            },
            patch_base: PatchBase::of(&vm),
            patch_number: 0,
            vm,
            system: None,
            lfc: None,
            revisions: RevisionSource::new(start),
            target_revision: StampedRevision::default(),
            last_desired: None,
            faults: FaultCounts::default(),
            stabilization: Stabilization::default(),
            policy: PolicyState::default(),
            was_pre_migrating: false,
            pending_warnings: Warnings::default(),
            observations: VecDeque::new(),
            next_id: 1,
            computations: 0,
            last: None,
        }
    }
}

impl protocol::core::Core for Core {
    type Time = Timestamp;
    type Event = Event;
    type Action = (RequestId, Action);

    /// Updates the state. The end of a request that is not in flight counts as a fault and changes
    /// nothing else.
    fn handle(&mut self, now: Timestamp, event: Event) {
        match event {
            Event::Tick => {}
            Event::SystemMetrics(value) => {
                let had_all = self.has_all_metrics(now);
                self.system = Some(Timed { at: now, value });
                self.metrics_arrived(now, had_all);
            }
            Event::LfcMetrics(value) => {
                let had_all = self.has_all_metrics(now);
                self.lfc = Some(Timed { at: now, value });
                self.metrics_arrived(now, had_all);
            }
            Event::Advised(advice) => self.policy.advised(now, advice),
            Event::Bound(terms) => self.policy.bind(now, terms),
            Event::VmUpdated(update) => self.vm_updated(now, *update),
            Event::MonitorActive => {
                // A monitor reads its guest's size when it starts. During a resize that size may
                // be below or above the object's; then the monitor is notified. An approval given
                // over another connection, for a patch in flight, does not count.
                let using = self.using();
                let certain = self.vm_patch.certain(using);
                let low = self
                    .vm
                    .actual
                    .map_or(certain, |actual| certain.field_min(actual));
                let high = self.vm_patch.held(using);
                let in_doubt = self.vm_patch.was_resized;
                self.monitor.activate(Approved { low, high }, in_doubt);
            }
            Event::MonitorReset => self.monitor = MonitorState::default(),
            Event::MonitorUpscaleRequested(request) => {
                let base = self
                    .monitor
                    .approved
                    .map_or(self.using(), |approved| approved.high);
                self.monitor.requested_upscale = Some(RequestedUpscale {
                    at: now,
                    base,
                    request,
                });
            }
            Event::PermitDone(id, result) if self.scheduler.ongoing == Some(id) => {
                self.permit_done(now, result);
            }
            Event::VmPatchDone(id, result)
                if self
                    .vm_patch
                    .ongoing
                    .is_some_and(|(ongoing, _)| ongoing == id) =>
            {
                self.vm_patch_done(now, result);
            }
            Event::MonitorUpscaleDone(id, result) if self.is_monitor_ongoing(id, Kind::Upscale) => {
                match result {
                    Ok(()) => self.monitor.succeed(),
                    Err(failure) => self.monitor.fail(now, failure.may_have_arrived()),
                }
                self.monitor.limit(self.vm_patch.held(self.using()));
            }
            Event::MonitorDownscaleDone(id, result)
                if self.is_monitor_ongoing(id, Kind::Downscale) =>
            {
                self.downscale_done(now, result);
                self.monitor.limit(self.vm_patch.held(self.using()));
            }
            Event::PermitDone(..)
            | Event::VmPatchDone(..)
            | Event::MonitorUpscaleDone(..)
            | Event::MonitorDownscaleDone(..) => self.faults.count(Fault::UnknownReply),
        }
    }

    fn poll_action(&mut self, now: Timestamp) -> Option<(RequestId, Action)> {
        let action = self.next_actions(now).actions.first()?;
        Some((self.start(now, &action), action))
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        let (at, evaluation) = self.last.as_ref()?;
        evaluation.actions.wait.map(|wait| *at + wait)
    }
}

impl Core {
    /// Whether all metrics that the settings use are fresh.
    fn has_all_metrics(&self, now: Timestamp) -> bool {
        let config = &self.config;
        let system = self.system.as_ref();
        let lfc = self.lfc.as_ref();
        system.is_some_and(|m| m.fresh(now, config.system_max_age).is_some())
            && (!self.wants_lfc_metrics()
                || lfc.is_some_and(|m| m.fresh(now, config.lfc_max_age).is_some()))
    }

    fn metrics_arrived(&mut self, now: Timestamp, had_all: bool) {
        if !had_all && self.has_all_metrics(now) {
            self.policy.metrics_returned(now);
        }
    }

    fn is_monitor_ongoing(&self, id: RequestId, kind: Kind) -> bool {
        self.monitor
            .ongoing
            .is_some_and(|ongoing| ongoing.id == id && ongoing.kind == kind)
    }

    fn vm_updated(&mut self, now: Timestamp, update: VmUpdate) {
        let using = self.using();
        let seen = update.info.version.zip(Some(update.info.using()));
        self.patch_base.saw(PatchBase::of(&update.info));
        self.vm = update.info;
        let mut kept = using;
        if let Some((version, size)) = seen {
            let is_other = size != using || !self.vm_patch.is_certain();
            if is_other && self.vm_patch.is_news(version) && self.adopts_size_of_object() {
                kept = size;
                self.vm_patch.uncertain = None;
                self.monitor.is_in_doubt = true;
            }
            self.vm_patch.saw(version, size, kept);
        }
        // The slot size of a live VM does not change. If it does, the size in use is rounded to
        // whole slots.
        kept.mem = whole_slots(kept.mem, kept.mem, self.vm.mem.slot_size);
        self.vm.set_using(kept);
        self.vm_patch.was_resized |= kept != using || !self.vm.has_arrived();
        self.monitor.limit(self.vm_patch.held(kept));
        if !self.vm.config.scaling.enable_lfc_metrics {
            self.lfc = None;
        }
        if self.was_pre_migrating && !update.is_pre_migrating {
            self.scheduler.migrating_since = None;
        }
        self.was_pre_migrating = update.is_pre_migrating;
        self.revisions.skip_to(now, self.vm.last_revision);
        if let Some(current) = update.current_revision {
            self.revision_seen(current);
        }
    }

    /// Whether the core adopts a size that another writer set in the object. It does so before the
    /// first permit, because no peer relies on its own size then, and in modes where people size
    /// VMs by hand. In observe mode it never patches, so after a lost response of an earlier patch
    /// the object alone shows the size.
    fn adopts_size_of_object(&self) -> bool {
        match self.vm.config.scaling.mode {
            Mode::Observe => self.vm_patch.ongoing.is_none(),
            Mode::Grow => self.vm_patch.is_certain(),
            Mode::Full => self.scheduler.permit.is_none() && self.vm_patch.is_certain(),
        }
    }

    fn revision_seen(&mut self, current: StampedRevision) {
        if current.revision.value >= self.vm_patch.target_revision.revision.value
            && let Some((after, flags)) = self
                .vm_patch
                .target_revision
                .propagate(current.at, &mut self.vm_patch.current_revision)
        {
            self.observe(Observation::Latency {
                path: Path::VmPatch,
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

    fn permit_done(&mut self, now: Timestamp, result: Result<PluginResponse, Failure>) {
        match result {
            Err(failure) => self.scheduler.fail(now, failure.may_have_arrived()),
            Ok(response) => {
                let held = self.vm_patch.held(self.using());
                let hold = self.config.timers.migration_hold;
                match self.scheduler.succeed(now, &response, held, hold) {
                    Err(_) => self.faults.count(Fault::InvalidPermit),
                    Ok(None) => {}
                    Ok(Some((after, flags))) => {
                        self.observe(Observation::Latency {
                            path: Path::Permit,
                            after,
                            flags,
                        });
                    }
                }
            }
        }
    }

    fn vm_patch_done(&mut self, now: Timestamp, result: Result<Option<u64>, Failure>) {
        let version = result.ok().flatten();
        match result {
            Err(failure) => {
                let using = self.using();
                self.vm_patch.fail(now, using, failure.may_have_arrived());
            }
            Ok(_) => {
                self.patch_base.patched(version, self.patch_number);
                if let Some(size) = self.vm_patch.succeed(now) {
                    let using = self.using();
                    self.stabilization.resized(now, using, size);
                    let unit = self.config.compute_unit;
                    self.policy.resized(now, (using, size), unit);
                    self.vm.set_using(size);
                }
            }
        }
        let using = self.using();
        self.vm_patch.ended_at(version, using);
        let held = self.vm_patch.held(self.using());
        self.monitor.limit(held);
    }

    fn downscale_done(&mut self, now: Timestamp, result: Result<DownscaleResponse, Failure>) {
        let Some(ongoing) = self.monitor.ongoing else {
            return;
        };
        match result {
            Err(failure) => return self.monitor.fail(now, failure.may_have_arrived()),
            Ok(DownscaleResponse::Allowed) => self.monitor.succeed(),
            Ok(DownscaleResponse::Denied(refusal)) => self.monitor.deny(now, refusal),
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

    pub(super) fn observe(&mut self, observation: Observation) {
        if self.observations.len() == MAX_OBSERVATIONS {
            self.faults.count(Fault::ObservationLost);
            self.observations.pop_front();
        }
        self.observations.push_back(observation);
    }

    /// Size in use: the last size that a patch set or that was adopted from the object.
    #[must_use]
    pub fn using(&self) -> Resources {
        self.vm.using()
    }

    /// The VM object as last seen, with [`Self::using`] as its `use`.
    #[must_use]
    pub fn vm(&self) -> &VmInfo {
        &self.vm
    }

    /// Marks an action as started. The event of its end must carry the returned id.
    pub fn start(&mut self, now: Timestamp, action: &Action) -> RequestId {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        match action {
            Action::Permit(request) => self.scheduler.start(now, id, request),
            Action::VmPatch(request) => {
                self.observe(Observation::ResizeStarted {
                    from: request.current,
                    to: request.target,
                });
                self.patch_number = self.patch_base.number_for(request.revision.value);
                self.vm_patch.start(now, id, request);
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

    /// Takes the oldest measurement out of the queue.
    pub fn poll_observation(&mut self) -> Option<Observation> {
        self.observations.pop_front()
    }

    /// Result of the newest computation; `None` before the first.
    #[must_use]
    pub fn last_evaluation(&self) -> Option<&Evaluation> {
        self.last.as_ref().map(|(_, evaluation)| evaluation)
    }

    /// The newest permit; `None` before the first response.
    #[must_use]
    pub fn permit(&self) -> Option<Resources> {
        self.scheduler.permit
    }

    /// Whether the built-in goal has taken over from a policy without answers.
    #[must_use]
    pub fn has_fallen_back(&self) -> bool {
        self.policy.has_fallen_back
    }

    /// Size in the newest permit request.
    #[must_use]
    pub fn last_request(&self) -> Option<Resources> {
        self.scheduler.last_request.map(|last| last.resources)
    }

    /// Revision of the newest permit request; 0 = none.
    #[must_use]
    pub fn permit_revision(&self) -> i64 {
        self.scheduler
            .last_request
            .map_or(0, |last| last.revision.revision.value)
    }

    /// Revision of the newest patch, and its size while it is in flight.
    #[must_use]
    pub fn patch_under_way(&self) -> (i64, Option<Resources>) {
        (
            self.vm_patch.target_revision.revision.value,
            self.vm_patch.ongoing.map(|(_, size)| size),
        )
    }

    /// The state of the object that the next patch rests on.
    #[must_use]
    pub fn patch_base(&self) -> PatchBase {
        self.patch_base
    }

    /// The monitor request in flight: its revision, the approved size and the requested one.
    #[must_use]
    pub fn monitor_under_way(&self) -> Option<(i64, Resources, Resources)> {
        let (ongoing, approved) = (self.monitor.ongoing?, self.monitor.approved?);
        Some((
            ongoing.revision.revision.value,
            approved.high,
            ongoing.resources,
        ))
    }

    /// Number of computations since the core was made.
    #[must_use]
    pub fn computations(&self) -> u64 {
        self.computations
    }

    /// Violated invariants since the core was made or restored.
    #[must_use]
    pub fn faults(&self) -> FaultCounts {
        self.faults
    }

    /// Whether the effective settings use file cache metrics.
    #[must_use]
    pub fn wants_lfc_metrics(&self) -> bool {
        self.vm.config.scaling.enable_lfc_metrics
    }
}
