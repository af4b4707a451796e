//! What must hold of a VM that a policy decides about.

use agent::core::actions::VmPatch;
use agent::core::{Event as CoreEvent, Reason, RequestId};
use protocol::units::Resources;

use crate::world::{UNIT, World};

impl World {
    /// V33, V13: a policy asks for no more than its limit, shrinks its VM no faster than its rate,
    /// and not at all by old advice, by a fault or by its absence.
    pub(crate) fn advice_stays_within_its_limits(&mut self, vm: usize) {
        let now = self.now;
        let Some(task) = self.vms[vm].agent_task.as_mut() else {
            return;
        };
        let (Some(terms), Some(last)) = (task.policy.terms, task.core.last_evaluation()) else {
            return;
        };
        let (decision, info) = (last.decision, task.core.vm());
        let (min, max) = (info.min(), info.max());
        let (target, using) = (decision.target, decision.current);
        let mut found = None;
        if decision.reason == Reason::Policy
            && let Some(units) = terms.max_units
        {
            let builtin = UNIT.saturating_mul(decision.goal_units);
            let most = UNIT.saturating_mul(units).field_max(using);
            if target.has_field_above(most.field_max(builtin).field_max(min)) {
                found = Some("v33_advice_is_cut_at_its_limit");
            }
        }
        let is_fresh = task.policy.is_fresh(now);
        if decision.has_all_metrics && !is_fresh {
            task.policy.has_fallen_back |= task.policy.may_fall_back(now);
            let kept = using.field_min(max);
            if target.has_field_below(kept) && !task.policy.has_fallen_back {
                found = Some("v33_nothing_shrinks_without_fresh_advice");
            }
        }
        if !task.policy.is_within_rate(now) {
            found = Some("v13_policies_shrink_within_their_rate");
        }
        let policy = task.policy.clone();
        self.checked();
        if let Some(invariant) = found {
            let text = format!("wants {target}, in use {using}, {policy:?}");
            self.checks.fail(invariant, Some(vm), text);
        }
    }

    /// A task starts a patch. What a policy takes from its VM counts when the patch has succeeded.
    pub(crate) fn policy_shrinks(&mut self, vm: usize, id: RequestId, request: &VmPatch) {
        let Some(task) = self.vms[vm].agent_task.as_mut() else {
            return;
        };
        let decision = task.core.last_evaluation().map(|last| last.decision);
        let is_policys = decision.is_some_and(|it| it.reason == Reason::Policy);
        let taken = request.current.saturating_sub(request.target);
        task.policy.patch = is_policys.then(|| (id, whole_units(taken)));
    }

    /// An event reaches a task.
    pub(crate) fn policy_shrank(&mut self, vm: usize, event: &CoreEvent) {
        if let CoreEvent::VmPatchDone(id, Ok(_)) = event
            && let Some(task) = self.vms[vm].agent_task.as_mut()
            && let Some((_, units)) = task.policy.patch.take_if(|(patch, _)| patch == id)
        {
            task.policy.shrunk += units;
        }
    }
}

fn whole_units(size: Resources) -> u64 {
    let cpu = u64::from(size.cpu.0.div_ceil(UNIT.cpu.0));
    cpu.max(size.mem.0.div_ceil(UNIT.mem.0))
}
