//! Drives the controller's core of a VM: its calls, and what comes of them.

use neonvm_controller::core::backoff::REPORTED_FROM;
use neonvm_controller::core::{
    Action, ActionResponse, Event as CoreEvent, Kind as Doing, Moment, Refusal,
};
use serde_json::json;

use crate::drive::Turn;
use crate::event::{ApiResponse, Call, Caller, Operation, Sleeper};
use crate::options::Sabotage;
use crate::orders::RunnerCommand;
use crate::store::Kind;
use crate::world::World;

/// Actions a core may start at one instant.
const ACTIONS_AT_ONCE: usize = 64;

impl World {
    pub(crate) fn drive_task(&mut self, vm: usize) {
        let at = self.moment();
        self.follow_runner(vm);
        let turn = Turn::new("controller", Some(vm), at, ACTIONS_AT_ONCE);
        let act = |world: &mut Self, action| world.begin(vm, action, at);
        let rest = self.drive(
            &turn,
            |world| world.vms[vm].task.as_mut().map(|task| &mut task.core),
            act,
        );
        let (Some(rest), Some(task)) = (rest, self.vms[vm].task.as_mut()) else {
            return;
        };
        while task.core.poll_event().is_some() {}
        task.core.take_stages();
        let sleeper = Sleeper::Controller(vm, self.controller.epoch);
        self.set_alarm(sleeper, rest.deadline);
    }

    /// What needs no call is done at once.
    fn answer(&mut self, vm: usize, kind: Doing, began: Moment, reply: ActionResponse) {
        self.tell_task(
            vm,
            CoreEvent::Done {
                kind,
                began,
                result: Ok(reply),
            },
        );
    }

    fn begin(&mut self, vm: usize, action: Action, began: Moment) {
        let epoch = self.controller.epoch;
        let kind = action.kind();
        let name = self.vms[vm].name.clone();
        let caller = Caller::Controller {
            vm,
            epoch,
            kind,
            began,
        };
        let operation = match action {
            Action::SetSize { pod, order, over } => {
                return self.tell_runner(vm, pod, RunnerCommand::Size(order, over), began);
            }
            Action::PlugAhead { pod, cpus } => {
                return self.tell_runner(vm, pod, RunnerCommand::Ahead(cpus), began);
            }
            // Nothing migrates in this world.
            Action::ReadMigration { .. } => {
                return self.answer(vm, kind, began, ActionResponse::MigrationClaim(None));
            }
            // No VM of this world asks for a certificate or an address.
            Action::EnsureSshSecret { .. }
            | Action::EnsureRunnerSecret { .. }
            | Action::TakeAddress { .. }
            | Action::ReleaseAddress { .. }
            | Action::Certificate { .. } => {
                return self.answer(vm, kind, began, ActionResponse::SecretReady);
            }
            Action::PatchVm { patch, .. } | Action::WriteStatus { patch, .. } => {
                Operation::MergeVm(name, patch)
            }
            Action::ReadVm => Operation::Get(Kind::Vm, name),
            Action::ReadPod { name } => Operation::Get(Kind::Pod, name),
            Action::CreatePod { mut pod, name } => {
                let operation = Operation::CreatePod(pod.clone());
                if self.cheats(Sabotage::TwinPods) {
                    self.call(Call {
                        caller,
                        operation,
                        target: None,
                    });
                    pod["metadata"]["name"] = json!(format!("{name}-twin"));
                }
                Operation::CreatePod(pod)
            }
            Action::PatchPodMetadata { name, ops } | Action::PatchPodCounted { name, ops } => {
                Operation::SyncPod(name, ops)
            }
            Action::ResizePod { name, ops } => Operation::ResizePod(name, ops),
            Action::DeletePod { name, uid, .. } => Operation::DeletePod(name, uid),
            Action::OrphanPod { name, uid } => {
                let operations = json!([
                    {"op": "test", "path": "/metadata/uid", "value": uid},
                    {"op": "remove", "path": "/metadata/ownerReferences"},
                ]);
                Operation::PatchPod(name, operations)
            }
        };
        self.call(Call {
            caller,
            operation,
            target: None,
        });
    }

    pub(crate) fn task_call_ended(
        &mut self,
        vm: usize,
        epoch: u64,
        kind: Doing,
        began: Moment,
        answer: ApiResponse,
    ) {
        if epoch != self.controller.epoch {
            return;
        }
        let result = self.result_of(vm, kind, answer);
        if kind == Doing::ResizePod {
            self.resize_ended(vm, &result);
        }
        self.tell_task(
            vm,
            CoreEvent::Done {
                kind,
                began,
                result,
            },
        );
    }

    fn result_of(
        &self,
        vm: usize,
        kind: Doing,
        answer: ApiResponse,
    ) -> Result<ActionResponse, Refusal> {
        let about_vm = matches!(kind, Doing::PatchVm | Doing::WriteStatus | Doing::ReadVm);
        let failed = |message: String, permanent| Err(Refusal::Failed { message, permanent });
        let pod_name = || {
            let status = self.vms[vm]
                .task
                .as_ref()
                .and_then(|task| task.core.vm())
                .and_then(|vm| vm.status.as_ref());
            status
                .map(|status| status.pod_name.clone())
                .unwrap_or_default()
        };
        match answer {
            ApiResponse::Object(object) if about_vm => {
                Ok(ActionResponse::Vm(Box::new(object.vm().clone())))
            }
            ApiResponse::Object(object) => Ok(ActionResponse::Pod(Box::new(object.pod().clone()))),
            ApiResponse::Status(404, _) if about_vm => Err(Refusal::Gone),
            // Not found is the subresource or the pod, so it says nothing of the pod.
            ApiResponse::Status(404, _) if !matches!(kind, Doing::CreatePod | Doing::ResizePod) => {
                Ok(ActionResponse::PodGone(pod_name()))
            }
            ApiResponse::Status(409, _) if about_vm => Err(Refusal::Conflict),
            ApiResponse::Status(status, why) => {
                failed(why, (400..500).contains(&status) && status != 429)
            }
            ApiResponse::Nothing => failed("no answer".into(), false),
        }
    }

    /// What the core takes for a refusal holds no guest up (`core::vm::done`): that one may have
    /// more than its pod requests.
    fn resize_ended(&mut self, vm: usize, result: &Result<ActionResponse, Refusal>) {
        let Some(task) = self.vms[vm].task.as_mut() else {
            return;
        };
        match result {
            Ok(_) => {
                task.unresized = 0;
                self.requests_cover_again(vm);
            }
            Err(refusal) => {
                task.unresized += 1;
                let is_final = matches!(
                    refusal,
                    Refusal::Failed {
                        permanent: true,
                        ..
                    }
                );
                self.checks.truth[vm].unrequested |= is_final || task.unresized >= REPORTED_FROM;
            }
        }
    }
}
