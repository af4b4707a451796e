//! Drives the core of an agent's task and carries out what it decides.
//!
//! Nothing is decided before the first input, as in `agent/src/shell/driver.rs`.

use agent::core::actions::{PermitRequest, VmPatch};
use agent::core::{Action, Core, Event as CoreEvent, Failure, PatchBase, RequestId};
use protocol::core::Core as _;
use protocol::permit::{AgentRequest, PROTO_VERSION};
use protocol::revision::RevisionWithTime;
use protocol::time::Timestamp;

use crate::drive::{Rest, Turn};
use crate::event::{ApiResponse, Call, Caller, Operation, Sleeper};
use crate::journal::Note;
use crate::options::Sabotage;
use crate::recording::output_of;
use crate::world::{UNIT, World};

/// Actions a core may start at one instant; more means that it never stops.
const ACTIONS_AT_ONCE: usize = 16;

impl World {
    /// Tells the core of a VM something and lets it decide.
    pub(crate) fn tell_agent_task(&mut self, vm: usize, event: CoreEvent) {
        let is_policys = matches!(event, CoreEvent::Advised(_) | CoreEvent::Bound(_));
        let is_metrics = matches!(event, CoreEvent::SystemMetrics(_));
        let now = self.record_event(vm, &event);
        self.policy_shrank(vm, &event);
        self.permit_leaves_out(vm, &event);
        if let Some(agent_task) = self.vms[vm].agent_task.as_mut() {
            agent_task.is_started = true;
            agent_task.core.handle(now, event);
        }
        self.drive_agent_task(vm, now);
        if !is_policys {
            self.policy_hears(vm, is_metrics);
        }
    }

    pub(crate) fn agent_task_tick(&mut self, vm: usize) {
        self.tell_agent_task(vm, CoreEvent::Tick);
        let id = self.vms[vm]
            .agent_task
            .as_ref()
            .map(|agent_task| agent_task.id);
        if let Some(id) = id.filter(|_| self.cheats(Sabotage::Spin)) {
            self.set_alarm(Sleeper::AgentTask(vm, id), Some(self.now));
        }
    }

    fn drive_agent_task(&mut self, vm: usize, now: Timestamp) {
        let turn = Turn::new("agent", Some(vm), now, ACTIONS_AT_ONCE);
        let (mut first, mut started) = (None, Vec::new());
        let act = |world: &mut Self, (id, action): (RequestId, Action)| {
            if let Some(core) = world.recorded_core(vm) {
                first = first.take().or_else(|| core.last_evaluation().cloned());
                started.push((id, action.clone()));
            }
            world.launch(vm, id, action);
        };
        let rest = self.drive(&turn, |world| world.started_core(vm), act);
        let Some(Rest { deadline }) = rest else {
            return;
        };
        let output = self.recorded_core(vm).and_then(|core| {
            let first = first.or_else(|| core.last_evaluation().cloned())?;
            Some(output_of(core, &first, started, deadline))
        });
        let Some(agent_task) = self.vms[vm].agent_task.as_mut() else {
            return;
        };
        while agent_task.core.poll_observation().is_some() {}
        let id = agent_task.id;
        if let Some(output) = output {
            self.record_output(vm, &output);
        }
        self.desired_is_whole_units_in_bounds(vm);
        self.core_counts_no_fault(vm);
        self.advice_stays_within_its_limits(vm);
        self.set_alarm(Sleeper::AgentTask(vm, id), deadline);
    }

    /// The core of a VM's task that has had an input.
    fn started_core(&mut self, vm: usize) -> Option<&mut Core> {
        let agent_task = self.vms[vm].agent_task.as_mut()?;
        agent_task.is_started.then_some(&mut agent_task.core)
    }

    /// The core of a VM's task whose steps are recorded.
    fn recorded_core(&self, vm: usize) -> Option<&Core> {
        let agent_task = self.vms[vm].agent_task.as_ref()?;
        agent_task.recorder.is_some().then_some(&agent_task.core)
    }

    fn launch(&mut self, vm: usize, id: RequestId, action: Action) {
        self.checks.touch(vm);
        match action {
            Action::Permit(request) => self.ask_permit(vm, id, request),
            Action::VmPatch(request) => {
                self.policy_shrinks(vm, id, &request);
                self.patch(vm, id, request);
            }
            Action::MonitorUpscale(request) => {
                self.note(Note::TellsMonitor {
                    vm,
                    target: request.target,
                });
                let target = if self.cheats(Sabotage::TellTooMuch) {
                    request.target.saturating_mul(3)
                } else {
                    request.target
                };
                self.call_monitor(vm, id, target, true);
            }
            Action::MonitorDownscale(request) => {
                self.note(Note::AsksMonitor {
                    vm,
                    target: request.target,
                });
                self.call_monitor(vm, id, request.target, false);
            }
        }
    }

    fn ask_permit(&mut self, vm: usize, id: RequestId, request: PermitRequest) {
        let mut target = request.target;
        let is_first = self.vms[vm]
            .agent_task
            .as_ref()
            .is_some_and(|agent_task| agent_task.asked_at.is_none());
        if self.cheats(Sabotage::NoHeartbeat) && !is_first {
            return;
        }
        if self.cheats(Sabotage::ReportTooLittle) {
            target = target.saturating_sub(UNIT);
        }
        self.requests_never_report_less_than_is_used(vm, target);
        self.note(Note::Asks {
            vm,
            last: request.last_permit,
            asked: target,
        });
        let Some(agent_task) = self.vms[vm].agent_task.as_mut() else {
            return;
        };
        agent_task.asked_at = Some(self.now);
        let body = AgentRequest {
            proto_version: PROTO_VERSION,
            pod: agent_task.pod.clone(),
            compute_unit: UNIT,
            resources: target,
            last_permit: request.last_permit,
            metrics: request.metrics,
        };
        let agent_task = agent_task.id;
        self.send_permit(vm, agent_task, id, body);
    }

    fn patch(&mut self, vm: usize, id: RequestId, mut request: VmPatch) {
        if self.cheats(Sabotage::PatchAbovePermit)
            && request.target.has_field_above(request.current)
        {
            request.target = request.target.field_max(request.current.saturating_mul(2));
        }
        if self.cheats(Sabotage::PatchBelowApproval)
            && request.target.has_field_below(request.current)
        {
            request.target = request.target.saturating_sub(UNIT).field_max(UNIT);
        }
        self.patches_stay_between_approval_and_permit(vm, request.target);
        self.shrinks_are_never_blind(vm, &request);
        self.note(Note::Patches {
            vm,
            target: request.target,
        });
        let wall = self.wall();
        let Some(agent_task) = self.vms[vm].agent_task.as_ref() else {
            return;
        };
        let revision = RevisionWithTime {
            revision: request.revision,
            updated_at: wall,
        };
        let base = if self.cheats(Sabotage::PatchUntested) {
            PatchBase::default()
        } else {
            agent_task.core.patch_base()
        };
        let slot = agent_task.core.vm().mem.slot_size;
        let operations = base.operations(request.target, slot, revision);
        let caller = Caller::AgentTask {
            vm,
            agent_task: agent_task.id,
            id,
            landed: self.checks.truth[vm].landed,
        };
        let operation = Operation::PatchVm(self.vms[vm].name.clone(), operations);
        self.call(Call {
            caller,
            operation,
            target: Some((vm, request.target)),
        });
    }

    pub(crate) fn patch_ended(
        &mut self,
        vm: usize,
        agent_task: u64,
        id: RequestId,
        answer: &ApiResponse,
    ) {
        if self.agent_task(vm, agent_task).is_none() {
            return;
        }
        let result = match answer {
            ApiResponse::Object(object) => Ok(Some(object.version)),
            ApiResponse::Status(400..=499, _) => Err(Failure::NotApplied),
            ApiResponse::Status(..) | ApiResponse::Nothing => Err(Failure::Unknown),
        };
        self.note(Note::PatchEnds {
            vm,
            worked: result.is_ok(),
        });
        self.tell_agent_task(vm, CoreEvent::VmPatchDone(id, result));
    }
}
