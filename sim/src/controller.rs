//! The controller's process: one shipped core per VM, its watches, its calls, and its link to the runners.
//!
//! As in its shell, a VM is worked on as long as the watch knows it, pods are passed on by the label that names their VM,
//! and one link is held to the runner the core wants to hear (`neonvm-shim/controller/src/shell/{hub,worker,link}.rs`).

use std::collections::BTreeMap;

use neonvm_controller::Settings;
use neonvm_controller::core::{
    Action, Event as CoreEvent, Kind as Doing, Moment, Refusal, Reply, VmCore,
};
use protocol::annotations::LABEL_VM_NAME;
use protocol::runner::{RunnerState, SizeOrder};
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;
use serde_json::json;

use crate::event::{Answer, Call, Caller, Event, Operation, Sleeper};
use crate::faults::{Fate, Link};
use crate::journal::{Note, Part};
use crate::options::Sabotage;
use crate::store::{Change, Kind, Object};
use crate::world::World;

/// An order that is not answered in this time failed.
const ORDER_PATIENCE: Span = Span::from_secs(5);
/// Pause before a runner that does not answer is asked again.
const ASK_AGAIN: Span = Span::from_millis(250);
/// Actions a core may start at one instant.
const ACTIONS_AT_ONCE: usize = 64;

/// The process.
#[derive(Debug, Default)]
pub struct ControllerPart {
    /// Whether it runs.
    pub up: bool,
    /// Counts its lives.
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
    link: Option<String>,
    /// The generation heard last.
    heard: Option<u64>,
    /// A question is open.
    asking: bool,
    /// An order waits for its answer.
    ordering: bool,
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
                    CoreEvent::PodGone {
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
                    CoreEvent::PodGone {
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
        let seed = self.dice.below(u64::MAX);
        self.vms[vm].task = Some(Task {
            core: VmCore::new(Settings::one_machine(), seed),
            alarm: None,
            link: None,
            heard: None,
            asking: false,
            ordering: false,
        });
    }

    fn tell_task(&mut self, vm: usize, event: CoreEvent) {
        let at = self.moment();
        if let Some(task) = self.vms[vm].task.as_mut() {
            task.core.handle(at, event);
        }
        self.drive_task(vm);
    }

    pub(crate) fn drive_task(&mut self, vm: usize) {
        let at = self.moment();
        self.follow_runner(vm);
        for _ in 0..ACTIONS_AT_ONCE {
            let Some(task) = self.vms[vm].task.as_mut() else {
                return;
            };
            let Some(action) = task.core.poll_action(at) else {
                while task.core.poll_note().is_some() {}
                task.core.take_stages();
                let (epoch, deadline) = (self.controller.epoch, task.core.poll_deadline());
                return self.set_alarm(Sleeper::Controller(vm, epoch), deadline);
            };
            self.begin(vm, action, at);
        }
        self.checks.fail(
            "n05_level_triggered_without_spinning",
            Some(vm),
            "the controller's core never stops".into(),
        );
    }

    /// What needs no call is done at once.
    fn answer(&mut self, vm: usize, kind: Doing, began: Moment, reply: Reply) {
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
            Action::SetSize { pod, order } => return self.order(vm, pod, order, began),
            // Nothing migrates in this world.
            Action::ReadTaker { .. } => return self.answer(vm, kind, began, Reply::Taker(None)),
            // No VM of this world asks for a certificate or an address, and no pod requests what its VM has.
            Action::EnsureSshSecret { .. }
            | Action::PlugAhead { .. }
            | Action::EnsureRunnerSecret { .. }
            | Action::TakeAddress { .. }
            | Action::ReleaseAddress { .. }
            | Action::Certificate { .. } => {
                return self.answer(vm, kind, began, Reply::SecretReady);
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
            Action::PatchPodMetadata { name, ops } | Action::ResizePod { name, ops } => {
                Operation::PatchPod(name, json!(ops))
            }
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
        answer: Answer,
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
            Answer::Object(object) if about_vm => Ok(Reply::Vm(Box::new(object.vm().clone()))),
            Answer::Object(object) => Ok(Reply::Pod(Box::new(object.pod().clone()))),
            Answer::Status(404, _) if about_vm => Err(Refusal::Gone),
            Answer::Status(404, _) if kind != Doing::CreatePod => Ok(Reply::PodGone(pod_name())),
            Answer::Status(409, _) if about_vm => Err(Refusal::Conflict),
            Answer::Status(status, why) => {
                failed(why, (400..500).contains(&status) && status != 429)
            }
            Answer::Nothing => failed("no answer".into(), false),
        };
        self.tell_task(
            vm,
            CoreEvent::Done {
                kind,
                began,
                result,
            },
        );
    }

    // ---- the link to the runner ----

    /// Holds a link to the runner the core wants to hear, and to no other.
    fn follow_runner(&mut self, vm: usize) {
        let Some(task) = self.vms[vm].task.as_mut() else {
            return;
        };
        let target = task.core.link_target().map(str::to_owned);
        if target != task.link {
            task.link = target;
            task.heard = None;
            self.ask_runner(vm, Span::from_millis(1));
        }
    }

    fn ask_runner(&mut self, vm: usize, pause: Span) {
        let epoch = self.controller.epoch;
        let Some(task) = self.vms[vm].task.as_mut() else {
            return;
        };
        if task.link.is_some() && !std::mem::replace(&mut task.asking, true) {
            self.after(pause, Event::News { vm, epoch });
        }
    }

    /// A runner has news: the question that waits for it is answered.
    pub(crate) fn runner_has_news(&mut self, vm: usize) {
        let delay = self.fate(Link::Runner).first().unwrap_or(ASK_AGAIN);
        self.ask_runner(vm, delay);
    }

    pub(crate) fn news(&mut self, vm: usize, epoch: u64) {
        if epoch != self.controller.epoch {
            return;
        }
        let Some(task) = self.vms[vm].task.as_mut() else {
            return;
        };
        task.asking = false;
        let Some(pod) = task.link.clone() else { return };
        let machine = self.vms[vm].machine.as_ref();
        let state = machine.and_then(|machine| machine.shown_to(&pod)).cloned();
        let Some(task) = self.vms[vm].task.as_mut() else {
            return;
        };
        match state {
            Some(state) if task.heard == Some(state.generation) => {}
            Some(state) => {
                task.heard = Some(state.generation);
                let state = Box::new(state);
                self.tell_task(vm, CoreEvent::Runner { pod, state });
            }
            None => {
                task.heard = None;
                self.tell_task(
                    vm,
                    CoreEvent::RunnerSilent {
                        pod,
                        error: "connection refused".into(),
                    },
                );
                self.ask_runner(vm, ASK_AGAIN);
            }
        }
    }

    fn order(&mut self, vm: usize, pod: String, order: SizeOrder, began: Moment) {
        let epoch = self.controller.epoch;
        self.note(Note::Orders {
            vm,
            size: Resources {
                cpu: order.cpu,
                mem: order.memory,
            },
        });
        if let Some(task) = self.vms[vm].task.as_mut() {
            task.ordering = true;
        }
        match self.fate(Link::Runner) {
            Fate::Lost => self.after(
                ORDER_PATIENCE,
                Event::OrderAnswers {
                    vm,
                    epoch,
                    state: None,
                    began,
                },
            ),
            Fate::After(delay) | Fate::Twice(delay, _) => {
                let delay = Span(delay.0.min(ORDER_PATIENCE.0 - 1));
                self.after(
                    delay,
                    Event::OrderArrives {
                        vm,
                        epoch,
                        pod,
                        order,
                        began,
                    },
                );
            }
        }
    }

    pub(crate) fn order_arrives(
        &mut self,
        vm: usize,
        epoch: u64,
        pod: &str,
        order: SizeOrder,
        began: Moment,
    ) {
        // What a dead controller wrote to a local socket was read before the next one speaks, or never.
        if epoch != self.controller.epoch {
            return;
        }
        if self.cheats(Sabotage::DeleteRunning)
            && let Some(uid) = self
                .store
                .get(Kind::Pod, pod)
                .map(|object| object.meta("uid").to_owned())
        {
            let caller = Caller::Controller {
                vm,
                epoch,
                kind: Doing::DeletePod,
                began,
            };
            self.call(Call {
                caller,
                operation: Operation::DeletePod(pod.to_owned(), uid),
                target: None,
            });
        }
        let is_there = self.vms[vm]
            .machine
            .as_ref()
            .is_some_and(|machine| machine.shown_to(pod).is_some());
        let state = if is_there {
            self.runner_ordered(vm, order);
            self.vms[vm]
                .machine
                .as_ref()
                .map(|machine| Box::new(machine.state.clone()))
        } else {
            None
        };
        let delay = self.fate(Link::Runner).first();
        let state = state.filter(|_| delay.is_some());
        let delay = delay.unwrap_or(ORDER_PATIENCE);
        self.after(
            delay,
            Event::OrderAnswers {
                vm,
                epoch,
                state,
                began,
            },
        );
    }

    pub(crate) fn order_answers(
        &mut self,
        vm: usize,
        epoch: u64,
        state: Option<Box<RunnerState>>,
        began: Moment,
    ) {
        let Some(task) = self.vms[vm].task.as_mut().filter(|task| task.ordering) else {
            return;
        };
        if epoch != self.controller.epoch {
            return;
        }
        task.ordering = false;
        let kind = Doing::SetSize;
        let result = state.map(Reply::Runner).ok_or(Refusal::Failed {
            message: "no answer within 5 s".into(),
            permanent: false,
        });
        self.tell_task(
            vm,
            CoreEvent::Done {
                kind,
                began,
                result,
            },
        );
    }
}
