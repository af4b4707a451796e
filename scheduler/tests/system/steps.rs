//! The steps that may come next in a state.

use super::state::{Replica, State, Step};
use super::{BEGIN, LEASE_LASTS, System, time};

impl System {
    pub(crate) fn steps(&self, state: &State, steps: &mut Vec<Step>) {
        // Before anything fails, time changes nothing but the time.
        let is_upset = state.faults > 0 || state.hand_overs > 0;
        if is_upset && state.now < BEGIN + self.bounds.ticks {
            steps.push(Step::Tick);
        }
        if state.hand_overs < self.bounds.hand_overs && self.can_hand_over(state) {
            steps.push(Step::HandOver);
        }
        for (index, replica) in state.replicas.iter().enumerate() {
            self.steps_of_replica(state, index, replica, steps);
        }
        for (index, vm) in state.vms.iter().enumerate() {
            let wish = self.wish(vm);
            let may = vm.permit.unwrap_or(vm.now().used);
            if vm.waits_for.is_none() && wish != vm.now().used {
                if wish < vm.now().used || may > vm.now().used {
                    steps.push(Step::Patch(index));
                }
                if wish > may && vm.wish + 1 < self.bounds.wishes.len() {
                    steps.push(Step::GiveUp(index));
                }
            }
        }
        for (index, call) in state.calls.iter().enumerate() {
            steps.push(Step::Land(index));
            if call.heard && state.losses < self.bounds.losses {
                steps.push(Step::LandUnheard(index));
                steps.push(Step::Abandon(index));
            }
        }
    }

    fn steps_of_replica(
        &self,
        state: &State,
        index: usize,
        replica: &Replica,
        steps: &mut Vec<Step>,
    ) {
        let faulty = state.faults < self.bounds.faults;
        let Some(brain) = &replica.brain else {
            if self.bounds.restarts {
                steps.push(Step::Start(index));
            }
            return;
        };
        if faulty {
            steps.push(Step::Crash(index));
            if !replica.cut && state.holder == index {
                steps.push(Step::Cut(index));
            }
        }
        if !replica.cut && state.now >= state.renewed + LEASE_LASTS && state.holder != index {
            steps.push(Step::Take(index));
        }
        if replica.lists {
            steps.push(Step::List(index));
        }
        let is_told = brain.core.may_permit(time(state.now)) || self.caches_on_standby();
        let next = |vm: usize| {
            let unseen = state.vms[vm].history.get(replica.seen[vm])?;
            // A watch tells nothing before its list.
            Some(unseen.version).filter(|_| is_told && (replica.seen[vm] > 0))
        };
        let first = (0..state.vms.len()).filter_map(next).min();
        for vm in 0..state.vms.len() {
            if next(vm).is_some_and(|version| !self.caches_on_standby() || Some(version) == first) {
                steps.push(Step::Observe(index, vm));
            }
        }
        if !brain.core.may_permit(time(state.now)) {
            return;
        }
        for (vm, machine) in state.vms.iter().enumerate() {
            let wish = self.wish(machine);
            let used = machine.now().used;
            // What went down is told; what is to go up is asked for.
            let asks = wish > machine.permit.unwrap_or(used)
                || (wish == used && machine.permit.is_some_and(|permit| permit > used));
            if machine.waits_for.is_none() && asks {
                steps.push(Step::Ask(vm, index));
            }
        }
    }
}
