//! One computation: from the state to the requests that may start now, and their reason. It changes
//! only the target revision and the time since when the goal is below the size. A second
//! computation without an event gives the same result. Source: docs/compatibility/agent.md §2.4,
//! §3.2.

use protocol::mode::Mode;
use protocol::permit::RequestMetrics;
use protocol::revision::Revision;
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;

use super::actions::Actions;
use super::advice::{MAX_AGE, Weight};
use super::decision::{Bound, Decision, Reason};
use super::desired::{Desired, Inputs, desired};
use super::machine::{Core, Evaluation};
use super::metrics::SystemMetrics;
use super::mode;
use super::observation::Observation;
use super::revision::{StampedRevision, flags_between};
use super::round::Round;
use super::vm_patch::Limits;
use super::warnings::{Fault, Warnings};

impl Core {
    /// Plans all requests. A second call without an event gives the same result.
    pub fn next_actions(&mut self, now: Timestamp) -> Evaluation {
        self.computations = self.computations.saturating_add(1);
        let desired = self.desired(now);
        self.stabilization.set_below(now, desired.is_below);
        self.note_fallback(&desired);
        if desired.is_out_of_bounds {
            self.faults.count(Fault::DesiredOutOfBounds);
        }
        let is_migrating = self.scheduler.migrating_since.is_some();
        let size = if is_migrating {
            self.using()
        } else {
            let (using, mode) = (self.using(), self.mode());
            mode::allowed(mode, desired.size, using, self.vm_patch.held(using))
        };
        self.renew_target_revision(now, size);
        let mut evaluation = self.plan(now, &desired, size, is_migrating);
        evaluation.warnings.extend(desired.warnings);
        evaluation
            .warnings
            .extend(std::mem::take(&mut self.pending_warnings));
        self.last = Some((now, evaluation.clone()));
        evaluation
    }

    pub(super) fn desired(&self, now: Timestamp) -> Desired {
        let timers = &self.config.timers;
        let unit = self.config.compute_unit;
        let scaling = &self.vm.config.scaling;
        let system = self
            .system
            .as_ref()
            .and_then(|m| m.fresh(now, self.config.system_max_age));
        let lfc = self
            .lfc
            .as_ref()
            .and_then(|m| m.fresh(now, self.config.lfc_max_age));
        let is_system_stale = self.system.is_some() && system.is_none();
        let is_lfc_stale = scaling.enable_lfc_metrics && self.lfc.is_some() && lfc.is_none();
        desired(&Inputs {
            unit,
            min: self.vm.min(),
            max: self.vm.max(),
            using: self.using(),
            scaling,
            system,
            lfc,
            is_stale: is_system_stale || is_lfc_stale,
            requested_units: self.monitor.requested_units(now, timers, unit),
            denied: self.monitor.denial(now, timers),
            advised: self.policy.advised_at(now, self.max_advice_age()),
            stabilization: self.stabilization,
            now,
        })
    }

    /// Age up to which advice counts: three periods of the metrics and a time-out, as for these.
    fn max_advice_age(&self) -> Span {
        self.config.system_max_age.unwrap_or(MAX_AGE)
    }

    /// Reports once that the built-in goal has taken over from a policy without answers.
    fn note_fallback(&mut self, desired: &Desired) {
        if let Some(advised) = desired.advised
            && advised.weight == Weight::None
            && !self.policy.has_fallen_back
        {
            self.policy.has_fallen_back = true;
            let digest = advised.digest;
            self.observe(Observation::PolicyFellBack { digest });
        }
    }

    fn mode(&self) -> Mode {
        self.vm.config.scaling.mode
    }

    fn renew_target_revision(&mut self, now: Timestamp, size: Resources) {
        let last = self.last_desired.unwrap_or(self.using());
        if size != last {
            let revision = self.revisions.issue(now, flags_between(last, size));
            self.target_revision = StampedRevision { revision, at: now };
        }
        self.last_desired = Some(size);
    }

    fn plan(
        &mut self,
        now: Timestamp,
        desired: &Desired,
        size: Resources,
        is_migrating: bool,
    ) -> Evaluation {
        let using = self.using();
        let revision = self.target_revision.revision;
        let patch_revision = self.patch_revision(using, size);
        self.check_order(using);
        let mode = self.mode();
        let Self {
            config,
            vm,
            scheduler,
            monitor,
            vm_patch,
            system,
            faults,
            ..
        } = self;
        let mut round = Round {
            now,
            timers: &config.timers,
            unit: config.compute_unit,
            slot: vm.mem.slot_size,
            shrink_step: vm.config.scaling.shrink_step,
            using,
            desired: size,
            is_migrating,
            mode,
            warnings: Warnings::default(),
            wait: None,
            faults,
        };
        let metrics = system
            .as_ref()
            .and_then(|sample| sample.fresh(now, config.system_max_age))
            .map(request_metrics);
        let permit_request = scheduler.plan(&mut round, vm_patch.held(using), metrics, revision);
        let limits = Limits {
            approved: monitor.least_approved(),
            permit: scheduler.permit,
            permit_request: match (scheduler.ongoing, &scheduler.last_request) {
                (Some(_), Some(last)) => Some(last.resources),
                _ => permit_request.as_ref().map(|request| request.target),
            },
            is_permit_ongoing: scheduler.ongoing.is_some(),
        };
        let vm_patch_request = vm_patch.plan(&mut round, limits, patch_revision);
        let certain = vm_patch.certain(using);
        let is_certain = vm_patch.is_certain();
        let monitor_up = monitor.plan_upscale(&mut round, certain, is_certain, revision);
        let monitor_down =
            monitor.plan_downscale(&mut round, certain, monitor_up.is_some(), revision);
        monitor.wait_for_ends(&mut round, desired, monitor_down.is_some());
        let advice_ends = desired.advised.and_then(|advised| advised.until);
        for until in [desired.stabilized_until, advice_ends]
            .into_iter()
            .flatten()
        {
            round.wait_at_most(until.since(now));
        }
        let (warnings, wait) = (round.warnings, round.wait);
        let actions = Actions {
            permit: permit_request,
            vm_patch: vm_patch_request,
            monitor_up,
            monitor_down,
            wait,
        };
        Evaluation {
            actions,
            decision: self.decision(desired, size, is_migrating),
            warnings,
        }
    }

    /// Revision for a patch: the newest one that the approving peer has acknowledged, or else the
    /// target revision. It is newer than that of every earlier patch. A repeated revision would
    /// read in the status as reached already.
    fn patch_revision(&self, using: Resources, size: Resources) -> Revision {
        let mut revision = self.target_revision.revision;
        let patched = self.vm_patch.target_revision.revision.value;
        let mut older = |other: Revision| {
            if other.value > 0 && other.value > patched && other.value < revision.value {
                revision = other;
            }
        };
        if size.has_field_below(using) {
            older(self.monitor.current_revision);
        }
        if size.has_field_above(using) {
            older(self.scheduler.current_revision);
        }
        revision
    }

    /// Counts violations of the order approved ≤ in use ≤ permitted. The plans then hold the size.
    fn check_order(&mut self, using: Resources) {
        let held = self.vm_patch.held(using);
        if self
            .monitor
            .approved
            .is_some_and(|approved| approved.high.has_field_above(held))
        {
            self.faults.count(Fault::ApprovedAboveUse);
        }
        // In observe mode people may set a size above the permit.
        if self.mode() != Mode::Observe
            && self
                .scheduler
                .permit
                .is_some_and(|permit| held.has_field_above(permit))
        {
            self.faults.count(Fault::UseAbovePermit);
        }
    }

    fn decision(&self, desired: &Desired, size: Resources, is_migrating: bool) -> Decision {
        let using = self.using();
        let mut bounded_by = desired.bounded_by;
        if is_migrating {
            bounded_by.insert(Bound::Migration);
        }
        let target = if is_migrating { using } else { desired.size };
        let mode = self.mode();
        if mode::allowed(mode, target, using, using) != target
            && let Some(bound) = mode::bound(mode)
        {
            bounded_by.insert(bound);
        }
        let high = self.scheduler.permit.unwrap_or(using).field_max(using);
        if size.has_field_above(high) {
            bounded_by.insert(Bound::Permit);
        }
        if size.has_field_below(using) {
            match self.monitor.approved {
                None => bounded_by.insert(Bound::MonitorAbsent),
                Some(approved) if size.has_field_below(approved.high) => {
                    bounded_by.insert(Bound::MonitorApproval);
                }
                Some(_) => {}
            }
        }
        Decision {
            current: using,
            target,
            goal_units: desired.goal.units,
            reason: if is_migrating {
                Reason::Migrating
            } else {
                desired.reason
            },
            votes: desired.goal.votes,
            bounded_by,
            revision: self.target_revision.revision,
            has_all_metrics: desired.has_all_metrics,
            working_set: desired.goal.working_set,
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the wire's own width; loads are small numbers"
)]
fn request_metrics(system: &SystemMetrics) -> RequestMetrics {
    RequestMetrics {
        load_avg_1m: system.load1 as f32,
    }
}
