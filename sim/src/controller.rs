//! The controller's process: one shipped core per VM, its watches, its calls, and its link to the
//! runners.
//!
//! As in its shell, a VM is worked on as long as the watch knows it, pods are passed on by the
//! label that names their VM, and one link is held to the runner the core wants to hear
//! (`neonvm-shim/controller/src/shell/{hub,worker,link}.rs`).

use std::collections::BTreeMap;

use neonvm_controller::Settings;
use neonvm_controller::core::backoff::REPORTED_FROM;
use neonvm_controller::core::{
    Action, ActionResponse, Event as CoreEvent, Kind as Doing, Moment, Refusal, VmCore,
};
use protocol::annotations::LABEL_VM_NAME;
use protocol::core::Core as _;
use protocol::time::{Span, Timestamp};
use serde_json::json;

use crate::drive::Turn;
use crate::event::{ApiResponse, Call, Caller, Operation, Sleeper};
use crate::journal::Part;
use crate::options::Sabotage;
use crate::orders::RunnerCommand;
use crate::store::{Change, Kind, Object};
use crate::world::World;

/// Actions a core may start at one instant.
const ACTIONS_AT_ONCE: usize = 64;

/// The controller's process; there is one, and its tasks are kept with the VMs.
#[derive(Debug, Default)]
pub struct ControllerPart {
    /// Whether it runs.
    pub up: bool,
    /// Number of the controller's process. Each start raises it.
    pub epoch: u64,
    /// Pods its watch has shown, by name, with their uids.
    pods: BTreeMap<String, String>,
}

/// Its task for a VM.
pub struct Task {
    /// The shipped core.
    pub core: VmCore,
    /// When to wake up.
    pub alarm: Option<Timestamp>,
    /// The pod whose runner it listens to.
    pub(crate) link: Option<String>,
    /// The generation heard last.
    pub(crate) heard: Option<u64>,
    /// A question is open.
    pub(crate) asking: bool,
    /// What the runner was told and waits for its answer, by its number.
    pub(crate) ordering: Option<u64>,
    /// Times in a row that what its pod requests could not be resized.
    unresized: u32,
}

impl World {
    pub(crate) fn start_controller(&mut self) {
        self.controller.up = true;
        self.open_streams(Part::Controller, Span::from_millis(5));
    }

    pub(crate) fn crash_controller(&mut self) {
        self.controller.up = false;
        self.controller.epoch += 1;
        self.close_streams(Part::Controller);
        self.controller.pods.clear();
        for vm in &mut self.vms {
            vm.task = None;
        }
    }

    pub(crate) fn controller_lists(&mut self, kind: Kind, objects: &[Object]) {
        for object in objects {
            self.controller_sees(&Change {
                kind,
                object: object.clone(),
                gone: false,
                version: object.version,
            });
        }
        if kind == Kind::Pod {
            self.lose_unlisted_pods(objects);
        }
    }

    /// Pods the watch has shown and a list does not show any more are gone, whatever was missed.
    fn lose_unlisted_pods(&mut self, objects: &[Object]) {
        let listed = |name: &String| objects.iter().any(|object| object.meta("name") == name);
        let (kept, gone) = std::mem::take(&mut self.controller.pods)
            .into_iter()
            .partition(|(name, _)| listed(name));
        self.controller.pods = kept;
        let gone: BTreeMap<String, String> = gone;
        for (name, uid) in gone {
            if let Some(vm) = self.vm_named(&name) {
                self.tell_task(
                    vm,
                    CoreEvent::PodUnseen {
                        name,
                        uid: Some(uid),
                    },
                );
            }
        }
    }

    pub(crate) fn controller_sees(&mut self, change: &Change) {
        let object = &change.object;
        match change.kind {
            Kind::Vm => {
                let Some(vm) = self.vm_named(object.meta("name")) else {
                    return;
                };
                if self.vms[vm].task.is_none() {
                    self.open_task(vm);
                }
                self.tell_task(vm, CoreEvent::Vm(Box::new(object.vm().clone())));
            }
            Kind::Pod => {
                let name = object.value["metadata"]["labels"][LABEL_VM_NAME]
                    .as_str()
                    .unwrap_or_default();
                let Some(vm) = self.vm_named(name) else {
                    return;
                };
                if self.vms[vm].task.is_none() {
                    self.open_task(vm);
                }
                let (name, uid) = (
                    object.meta("name").to_owned(),
                    object.meta("uid").to_owned(),
                );
                let event = if change.gone {
                    self.controller.pods.remove(&name);
                    CoreEvent::PodUnseen {
                        name,
                        uid: Some(uid),
                    }
                } else {
                    self.controller.pods.insert(name, uid);
                    CoreEvent::Pod(Box::new(object.pod().clone()))
                };
                self.tell_task(vm, event);
            }
            Kind::Node => {}
        }
    }

    fn open_task(&mut self, vm: usize) {
        let seed = self.rng.below(u64::MAX);
        let settings = Settings {
            true_requests: self.options.requests,
            ..Settings::one_machine()
        };
        self.vms[vm].task = Some(Task {
            core: VmCore::new(settings, seed),
            alarm: None,
            link: None,
            heard: None,
            asking: false,
            ordering: None,
            unresized: 0,
        });
    }

    pub(crate) fn tell_task(&mut self, vm: usize, event: CoreEvent) {
        let at = self.moment();
        if let Some(task) = self.vms[vm].task.as_mut() {
            task.core.handle(at, event);
        }
        self.drive_task(vm);
    }

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
        let result = match answer {
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
        };
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
