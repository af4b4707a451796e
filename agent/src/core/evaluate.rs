//! One computation: from the state to everything that may be started now, and why. It does no I/O
//! and changes nothing but the target revision and since when the goal has been below the size, so
//! computing again without a change gives the same. Source: docs/compatibility/agent.md §2.4, §3.2.

use protocol::mode::Mode;
use protocol::permit::RequestMetrics;
use protocol::revision::Revision;
use protocol::time::Timestamp;
use protocol::units::Resources;

use super::actions::Actions;
use super::decision::{Bound, Decision, Reason};
use super::desired::{Desired, Inputs, desired};
use super::machine::{Core, Evaluation};
use super::metrics::SystemMetrics;
use super::mode;
use super::neonvm::Limits;
use super::revision::{StampedRevision, flags_between};
use super::round::Round;
use super::warnings::{Fault, Warnings};

impl Core {
    /// Computes what should be done now. Calling it again without a change gives the same.
    pub fn next_actions(&mut self, now: Timestamp) -> Evaluation {
        self.computations = self.computations.saturating_add(1);
        let desired = self.desired(now);
        self.calm.is_below(now, desired.is_below);
        if desired.is_out_of_bounds {
            self.faults.count(Fault::DesiredOutOfBounds);
        }
        let is_migrating = self.plugin.migrating_since.is_some();
        let size = if is_migrating {
            self.using()
        } else {
            let (using, mode) = (self.using(), self.mode());
            mode::allowed(mode, desired.size, using, self.neonvm.held(using))
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
            requested_units: self.monitor.wish_units(now, timers, unit),
            denied: self.monitor.denial(now, timers),
            calm: self.calm,
            now,
        })
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
        let neonvm_revision = self.neonvm_revision(using, size);
        self.check_order(using);
        let mode = self.mode();
        let Self {
            config,
            vm,
            plugin,
            monitor,
            neonvm,
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
            .and_then(|m| m.fresh(now, config.system_max_age));
        let metrics = metrics.map(request_metrics);
        let plugin_request = plugin.plan(&mut round, neonvm.held(using), metrics, revision);
        let limits = Limits {
            approved: monitor.least_approved(),
            permit: plugin.permit,
            plugin_request: match (plugin.ongoing, &plugin.last_request) {
                (Some(_), Some(last)) => Some(last.resources),
                _ => plugin_request.as_ref().map(|request| request.target),
            },
            is_plugin_ongoing: plugin.ongoing.is_some(),
        };
        let neonvm_request = neonvm.plan(&mut round, limits, neonvm_revision);
        let certain = neonvm.certain(using);
        let is_certain = neonvm.is_certain();
        let monitor_up = monitor.plan_upscale(&mut round, certain, is_certain, revision);
        let monitor_down =
            monitor.plan_downscale(&mut round, certain, monitor_up.is_some(), revision);
        monitor.wait_for_ends(&mut round, desired, monitor_down.is_some());
        if let Some(until) = desired.calm_until {
            round.wait_at_most(until.since(now));
        }
        let (warnings, wait) = (round.warnings, round.wait);
        let actions = Actions {
            plugin: plugin_request,
            neonvm: neonvm_request,
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

    /// The revision a patch carries: what the peer that allows it has acknowledged, if that is
    /// older than the newest wish. Never one that an earlier patch carried or has outrun: a size
    /// that the VM has had before, with the revision it had then, reads in the status as reached
    /// already, whatever it had in between.
    fn neonvm_revision(&self, using: Resources, size: Resources) -> Revision {
        let mut revision = self.target_revision.revision;
        let patched = self.neonvm.target_revision.revision.value;
        let mut older = |other: Revision| {
            if other.value > 0 && other.value > patched && other.value < revision.value {
                revision = other;
            }
        };
        if size.has_field_below(using) {
            older(self.monitor.current_revision);
        }
        if size.has_field_above(using) {
            older(self.plugin.current_revision);
        }
        revision
    }

    /// Counts a broken order of approvals; the plans hold the size by themselves then.
    fn check_order(&mut self, using: Resources) {
        let held = self.neonvm.held(using);
        if self
            .monitor
            .approved
            .is_some_and(|approved| approved.high.has_field_above(held))
        {
            self.faults.count(Fault::ApprovedAboveUse);
        }
        // A VM that is only observed is as large as people make it.
        if self.mode() != Mode::Observe
            && self
                .plugin
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
        let high = self.plugin.permit.unwrap_or(using).field_max(using);
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
