//! Calls of the core that migrates a VM.

use neonvm_controller::core::{Refusal, migration};
use protocol::core::Core as _;
use serde_json::json;

use super::read;
use crate::migrations::api::{ApiResponse, Call, Caller, Kind, Operation};
use crate::migrations::world::{MigrationWorld, vm_name};

impl MigrationWorld {
    pub(super) fn mover_begins(&mut self, vm: usize, action: migration::Action) {
        use migration::Action as A;
        if let Some(core) = self.controller.movers.get_mut(&vm) {
            while core.poll_event().is_some() {}
        }
        let (kind, epoch, home) = (action.kind(), self.controller.epoch, vm_name(vm));
        let mut about = String::new();
        let operation = match action {
            A::PatchMigration { name, patch } | A::WriteMigration { name, patch, .. } => {
                about.clone_from(&name);
                Operation::Merge(Kind::Move, name, patch)
            }
            A::WriteVm { patch } => Operation::Merge(Kind::Vm, home, patch),
            A::ReadVm => Operation::Get(Kind::Vm, home),
            A::ReadMigration { name } => {
                about.clone_from(&name);
                Operation::Get(Kind::Move, name)
            }
            A::ReadPod { name } => {
                about.clone_from(&name);
                Operation::Get(Kind::Pod, name)
            }
            A::CreatePod { name, pod, .. } => {
                about = name;
                Operation::Create(Kind::Pod, pod)
            }
            A::PatchPod { name, ops } => {
                about.clone_from(&name);
                Operation::Patch(Kind::Pod, name, json!(ops))
            }
            A::DeletePod { name, uid, .. } => {
                about.clone_from(&name);
                Operation::DeletePod(name, uid)
            }
            order => {
                let result = self.order(order);
                return self.mover_done(vm, kind, result);
            }
        };
        let caller = Caller::Mover(vm, epoch, kind, about);
        self.calls.push(Call { caller, operation });
    }

    fn mover_done(
        &mut self,
        vm: usize,
        kind: migration::Kind,
        result: Result<migration::ActionResponse, Refusal>,
    ) {
        let at = self.moment();
        if let Some(core) = self.controller.movers.get_mut(&vm) {
            core.handle(at, migration::Event::Done { kind, result });
        }
    }

    pub(crate) fn mover_answered(
        &mut self,
        vm: usize,
        epoch: u64,
        kind: migration::Kind,
        name: &str,
        answer: ApiResponse,
    ) {
        use Refusal as R;
        use migration::{ActionResponse as P, Kind as K};
        if epoch != self.controller.epoch {
            return;
        }
        let about_pod = matches!(kind, K::ReadPod | K::CreatePod | K::PatchPod | K::DeletePod);
        let unclear = || {
            Err(R::Failed {
                message: "no answer".into(),
                permanent: false,
            })
        };
        let result = match answer {
            ApiResponse::Object(Kind::Vm, value) => {
                read(&value).map(P::Vm).map_or_else(unclear, Ok)
            }
            ApiResponse::Object(Kind::Move, value) => {
                read(&value).map(P::Migration).map_or_else(unclear, Ok)
            }
            ApiResponse::Object(_, value) => read(&value).map(P::Pod).map_or_else(unclear, Ok),
            ApiResponse::Status(404) if about_pod => Ok(P::PodGone(name.to_owned())),
            ApiResponse::Status(404) => Err(R::Gone),
            ApiResponse::Status(409) if !about_pod => Err(R::Conflict),
            ApiResponse::Status(_) | ApiResponse::Nothing => unclear(),
        };
        self.mover_done(vm, kind, result);
    }
}
