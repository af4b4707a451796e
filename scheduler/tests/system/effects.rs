//! Effects of agents and of calls on the objects, and their outcomes for the scheduler.

use protocol::permit::{AgentRequest, PROTO_VERSION};
use scheduler::core::event::{CallOutcome, Event, PermitResponse};

use super::state::{Call, Cheat, Object, State};
use super::views::vm_of;
use super::{System, UNIT, units};

impl System {
    /// Writes a VM's object.
    pub(super) fn put(&self, state: &mut State, vm: usize, object: Object) {
        let all = state.vms.iter().map(|vm| vm.now().version).max();
        let last = state.vms[vm].now().version;
        let last = if self.caches_on_standby() {
            all.unwrap_or(last)
        } else {
            last
        };
        let version = last + 1;
        state.vms[vm].history.push(Object { version, ..object });
    }

    pub(super) fn ask(&self, state: &mut State, vm: usize, replica: usize) {
        let wish = self.wish(&state.vms[vm]);
        let machine = &mut state.vms[vm];
        machine.waits_for = Some(replica);
        let request = AgentRequest {
            proto_version: PROTO_VERSION,
            pod: self.views.pods[vm].key.clone(),
            compute_unit: UNIT,
            resources: UNIT.saturating_mul(wish),
            last_permit: machine.permit.map(|permit| UNIT.saturating_mul(permit)),
            metrics: None,
        };
        // What it tells that it went down to is all it may use from now on.
        machine.permit = machine
            .permit
            .map(|permit| permit.min(wish).max(machine.now().used));
        let ticket = vm as u64 + 1;
        self.tell(state, replica, Event::PermitRequest(ticket, request));
    }

    pub(super) fn patch(&self, state: &mut State, vm: usize) {
        let wish = self.wish(&state.vms[vm]);
        let now = state.vms[vm].now();
        let used = wish.min(state.vms[vm].permit.unwrap_or(1).max(now.used));
        self.put(state, vm, Object { used, ..now });
        let machine = &mut state.vms[vm];
        if used == wish && machine.permit == Some(used) {
            machine.wish += 1;
        }
    }

    pub(super) fn answered(&self, state: &mut State, replica: usize, answer: &PermitResponse) {
        let Some(vm) = usize::try_from(answer.request_id - 1).ok().filter(|vm| {
            state
                .vms
                .get(*vm)
                .is_some_and(|vm| vm.waits_for == Some(replica))
        }) else {
            return;
        };
        let wish = self.wish(&state.vms[vm]);
        let machine = &mut state.vms[vm];
        machine.waits_for = None;
        let Ok(response) = &answer.result else { return };
        let permit = response.permit.cpu.0 / UNIT.cpu.0;
        if permit > machine.now().approved.unwrap_or(0) {
            state.said_too_early = true;
        }
        machine.permit = Some(permit);
        if machine.now().used == wish && permit == wish {
            machine.wish += 1;
        }
    }

    pub(super) fn land(&self, state: &mut State, index: usize, answered: bool) {
        let call = state.calls.remove(index);
        let outcome = match &call.write {
            Err((_, vm)) => CallOutcome::Done(Box::new(self.view(state, *vm))),
            Ok(write) => {
                let vm = vm_of(&write.vm.name);
                let now = state.vms[vm].now();
                if write.base == now.version {
                    let object = Object {
                        approved: Some(units(&write.approved)),
                        requested: units(&write.requested),
                        ..now
                    };
                    self.put(state, vm, object);
                    CallOutcome::Done(Box::new(self.view(state, vm)))
                } else {
                    CallOutcome::Conflict
                }
            }
        };
        if call.heard {
            let unclear = CallOutcome::Unclear("the answer is lost".into());
            self.outcome(state, &call, if answered { outcome } else { unclear });
        }
    }

    pub(super) fn abandon(&self, state: &mut State, index: usize) {
        state.calls[index].heard = false;
        let call = state.calls[index].clone();
        self.outcome(state, &call, CallOutcome::Unclear("no answer".into()));
    }

    pub(super) fn outcome(&self, state: &mut State, call: &Call, mut outcome: CallOutcome) {
        if self.bounds.cheat == Some(Cheat::ForgetUnclear)
            && matches!(outcome, CallOutcome::Unclear(_))
        {
            outcome = CallOutcome::Refused("it is said".into());
        }
        let event = match &call.write {
            Ok(write) => Event::WriteDone(write.id, outcome),
            Err((id, _)) => Event::ReadDone(*id, outcome),
        };
        self.tell(state, call.replica, event);
    }
}
