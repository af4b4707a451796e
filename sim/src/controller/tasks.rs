//! The controller's process, its watches, and the tasks that they feed.
//!
//! As in its shell, a VM is worked on as long as the watch knows it, and pods are passed on by the
//! label that names their VM (`neonvm-shim/controller/src/shell/{hub,worker}.rs`).

use std::collections::BTreeMap;

use neonvm_controller::Settings;
use neonvm_controller::core::{Event as CoreEvent, VmCore};
use protocol::annotations::LABEL_VM_NAME;
use protocol::core::Core as _;
use protocol::time::Span;

use super::Task;
use crate::journal::Part;
use crate::store::{Change, Kind, Object};
use crate::world::World;

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
}
