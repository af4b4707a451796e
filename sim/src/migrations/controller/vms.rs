//! One of the controller's cores does the next thing; calls of the core of a VM.

use neonvm_controller::core::{Action, ActionResponse, Event, Kind as Doing, Moment, Refusal};
use protocol::core::Core as _;
use serde_json::json;

use super::read;
use crate::drive::step;
use crate::migrations::api::{ApiResponse, Call, Caller, Kind, Operation};
use crate::migrations::world::{MigrationWorld, vm_name};

impl MigrationWorld {
    /// One of its cores does the next thing.
    pub(crate) fn controller_acts(&mut self) -> bool {
        let at = self.moment();
        let vms: Vec<usize> = self.controller.vms.keys().copied().collect();
        if vms.is_empty() {
            return false;
        }
        let vm = vms[self.rng.index(vms.len())];
        if self.rng.below(2) == 0
            && let Some(action) = step(self.controller.vms.get_mut(&vm), at)
        {
            self.vm_begins(vm, action, at);
            return true;
        }
        let Some(action) = step(self.controller.movers.get_mut(&vm), at) else {
            return false;
        };
        self.mover_begins(vm, action);
        true
    }

    fn vm_begins(&mut self, vm: usize, action: Action, began: Moment) {
        if let Some(core) = self.controller.vms.get_mut(&vm) {
            while core.poll_event().is_some() {}
            core.take_stages();
        }
        let (kind, epoch, name) = (action.kind(), self.controller.epoch, vm_name(vm));
        let mut pod = String::new();
        let operation = match action {
            Action::PatchVm { patch, .. } | Action::WriteStatus { patch, .. } => {
                Operation::Merge(Kind::Vm, name, patch)
            }
            Action::ReadVm => Operation::Get(Kind::Vm, name),
            Action::ReadPod { name } => {
                pod.clone_from(&name);
                Operation::Get(Kind::Pod, name)
            }
            Action::CreatePod { pod: object, name } => {
                pod = name;
                Operation::Create(Kind::Pod, object)
            }
            Action::PatchPodMetadata { name, ops }
            | Action::PatchPodCounted { name, ops }
            | Action::ResizePod { name, ops } => {
                pod.clone_from(&name);
                Operation::Patch(Kind::Pod, name, json!(ops))
            }
            Action::DeletePod { name, uid, .. } => {
                pod.clone_from(&name);
                Operation::DeletePod(name, uid)
            }
            Action::OrphanPod { name, .. } => {
                pod.clone_from(&name);
                let ops = json!([{"op": "remove", "path": "/metadata/ownerReferences"}]);
                Operation::Patch(Kind::Pod, name, ops)
            }
            Action::ReadMigration { name, .. } => Operation::Get(Kind::Move, name),
            Action::EnsureSshSecret { .. }
            | Action::EnsureRunnerSecret { .. }
            | Action::TakeAddress { .. }
            | Action::ReleaseAddress { .. }
            | Action::Certificate { .. }
            | Action::PlugAhead { .. }
            | Action::SetSize { .. } => {
                // Sizes stand still and nobody logs in.
                let result = Err(Refusal::Failed {
                    message: "not here".into(),
                    permanent: true,
                });
                let at = self.moment();
                if let Some(core) = self.controller.vms.get_mut(&vm) {
                    core.handle(
                        at,
                        Event::Done {
                            kind,
                            began,
                            result,
                        },
                    );
                }
                return;
            }
        };
        let caller = Caller::Vm(vm, epoch, kind, began, pod);
        self.calls.push(Call { caller, operation });
    }

    pub(crate) fn vm_answered(
        &mut self,
        vm: usize,
        epoch: u64,
        kind: Doing,
        began: Moment,
        pod: &str,
        answer: ApiResponse,
    ) {
        if epoch != self.controller.epoch {
            return;
        }
        let about_vm = matches!(kind, Doing::PatchVm | Doing::WriteStatus | Doing::ReadVm);
        let unclear = || {
            Err(Refusal::Failed {
                message: "no answer".into(),
                permanent: false,
            })
        };
        let result = match answer {
            ApiResponse::Object(Kind::Vm, value) => read(&value)
                .map(ActionResponse::Vm)
                .map_or_else(unclear, Ok),
            ApiResponse::Object(Kind::Move, value) => {
                let uid = value["metadata"]["uid"].as_str();
                Ok(ActionResponse::MigrationClaim(uid.map(str::to_owned)))
            }
            ApiResponse::Status(404) if kind == Doing::ReadMigration => {
                Ok(ActionResponse::MigrationClaim(None))
            }
            ApiResponse::Object(_, value) => read(&value)
                .map(ActionResponse::Pod)
                .map_or_else(unclear, Ok),
            ApiResponse::Status(404) if about_vm => Err(Refusal::Gone),
            ApiResponse::Status(404) => Ok(ActionResponse::PodGone(pod.to_owned())),
            ApiResponse::Status(409) if about_vm => Err(Refusal::Conflict),
            ApiResponse::Status(_) | ApiResponse::Nothing => unclear(),
        };
        let at = self.moment();
        if let Some(core) = self.controller.vms.get_mut(&vm) {
            core.handle(
                at,
                Event::Done {
                    kind,
                    began,
                    result,
                },
            );
        }
    }
}
