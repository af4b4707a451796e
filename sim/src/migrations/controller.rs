//! The controller's process: the two shipped cores of each VM, fed as their shells feed them.

use std::collections::{BTreeMap, BTreeSet};

use neonvm_controller::core::{
    Action, ActionResponse, Event, Kind as Doing, Moment, Refusal, VmCore, migration,
};
use protocol::core::Core as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::api::{ApiResponse, Call, Caller, Change, Kind, Operation};
use super::{MigrationWorld, settings};
use crate::drive::step;

#[derive(Default)]
pub(crate) struct ControllerPart {
    epoch: u64,
    /// Place in the record of changes.
    seen: usize,
    vms: BTreeMap<usize, VmCore>,
    movers: BTreeMap<usize, migration::MigrationCore>,
    /// Migrations known, with their VM: a mover lives as long as there are any.
    moves: BTreeMap<String, usize>,
}

fn read<T: DeserializeOwned>(value: &Value) -> Option<Box<T>> {
    serde_json::from_value(value.clone()).ok().map(Box::new)
}

impl MigrationWorld {
    pub(super) fn start_controller(&mut self) {
        self.controller.epoch += 1;
        self.controller.seen = self.objects.log().len();
        // It lists, in whatever order.
        for kind in [Kind::Move, Kind::Pod, Kind::Vm] {
            for value in self.objects.list(kind) {
                let name = value["metadata"]["name"].as_str().unwrap_or_default();
                let change = Change {
                    kind,
                    name: name.to_owned(),
                    value,
                    before: None,
                    gone: false,
                };
                self.controller_told(&change);
            }
        }
    }

    pub(super) fn crash_controller(&mut self) {
        self.controller.vms.clear();
        self.controller.movers.clear();
        self.controller.moves.clear();
    }

    /// Its watches show the next change.
    pub(super) fn controller_sees(&mut self) -> bool {
        let Some(change) = self.objects.log().get(self.controller.seen).cloned() else {
            return false;
        };
        self.controller.seen += 1;
        self.controller_told(&change);
        true
    }

    fn controller_told(&mut self, change: &Change) {
        let Some(vm) = Self::vm_of(change) else {
            return;
        };
        let at = self.moment();
        let seed = self.rng.below(u64::MAX);
        if change.kind == Kind::Vm {
            let core = VmCore::new(settings(), seed);
            self.controller.vms.entry(vm).or_insert(core);
        }
        if change.kind == Kind::Move {
            self.mover_told(vm, change, seed);
        }
        let name = change.name.clone();
        let uid = change.value["metadata"]["uid"].as_str().unwrap_or_default();
        let uid = uid.to_owned();
        if let Some(core) = self.controller.vms.get_mut(&vm) {
            let event = match (change.kind, change.gone) {
                (Kind::Vm, false) => read(&change.value).map(Event::Vm),
                (Kind::Pod, false) => read(&change.value).map(Event::Pod),
                (Kind::Pod, true) => Some(Event::PodUnseen {
                    name: name.clone(),
                    uid: Some(uid.clone()),
                }),
                _ => None,
            };
            if let Some(event) = event {
                core.handle(at, event);
            }
        }
        if let Some(core) = self.controller.movers.get_mut(&vm) {
            let event = match (change.kind, change.gone) {
                (Kind::Vm, false) => read(&change.value).map(migration::Event::Vm),
                (Kind::Pod, false) => read(&change.value).map(migration::Event::Pod),
                (Kind::Pod, true) => Some(migration::Event::PodUnseen {
                    name,
                    uid: Some(uid),
                }),
                _ => None,
            };
            if let Some(event) = event {
                core.handle(at, event);
            }
        }
    }

    fn mover_told(&mut self, vm: usize, change: &Change, seed: u64) {
        let at = self.moment();
        if change.gone {
            self.controller.moves.remove(&change.name);
            if let Some(core) = self.controller.movers.get_mut(&vm) {
                let (name, uid) = (change.name.clone(), None);
                core.handle(at, migration::Event::MigrationGone { name, uid });
            }
            if !self.controller.moves.values().any(|of| *of == vm) {
                self.controller.movers.remove(&vm);
            }
            return;
        }
        self.controller.moves.insert(change.name.clone(), vm);
        // A new mover knows what the watches have shown, which its hub keeps; here it reads what it
        // lacks.
        let core = self
            .controller
            .movers
            .entry(vm)
            .or_insert_with(|| migration::MigrationCore::new(settings(), seed));
        if let Some(found) = read(&change.value) {
            core.handle(at, migration::Event::Migration(found));
        }
    }

    /// One of its cores does the next thing.
    pub(super) fn controller_acts(&mut self) -> bool {
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
        let (kind, epoch, name) = (action.kind(), self.controller.epoch, super::vm_name(vm));
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

    pub(super) fn vm_answered(
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

    fn mover_begins(&mut self, vm: usize, action: migration::Action) {
        use migration::Action as A;
        if let Some(core) = self.controller.movers.get_mut(&vm) {
            while core.poll_event().is_some() {}
        }
        let (kind, epoch, home) = (action.kind(), self.controller.epoch, super::vm_name(vm));
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

    pub(super) fn mover_answered(
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

    /// A runner's news, or its silence, reaches one of the cores.
    pub(super) fn controller_hears(&mut self) -> bool {
        let vms: Vec<usize> = self.controller.vms.keys().copied().collect();
        if vms.is_empty() {
            return false;
        }
        let vm = vms[self.rng.index(vms.len())];
        let at = self.moment();
        let targets: BTreeSet<String> = self
            .controller
            .movers
            .get(&vm)
            .map(migration::MigrationCore::link_targets)
            .unwrap_or_default();
        for pod in targets {
            let state = self
                .machines
                .get(&pod)
                .and_then(super::runner::Machine::state);
            let event = match state {
                Some(state) => migration::Event::Runner {
                    pod,
                    state: Box::new(state),
                },
                None => migration::Event::RunnerSilent {
                    pod,
                    error: "connection refused".into(),
                },
            };
            if let Some(core) = self.controller.movers.get_mut(&vm) {
                core.handle(at, event);
            }
        }
        let Some(core) = self.controller.vms.get_mut(&vm) else {
            return false;
        };
        if let Some(pod) = core.link_target().map(str::to_owned) {
            let state = self
                .machines
                .get(&pod)
                .and_then(super::runner::Machine::state);
            let event = match state {
                Some(state) => Event::Runner {
                    pod,
                    state: Box::new(state),
                },
                None => Event::RunnerSilent {
                    pod,
                    error: "connection refused".into(),
                },
            };
            core.handle(at, event);
        }
        // News is always to be had; that alone is nothing that happens.
        false
    }
}
