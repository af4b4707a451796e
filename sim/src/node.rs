//! The nodes: pods bound to one get a QEMU, its end is told in the pod's status, and a pod that is
//! to go is stopped. This is the world's kubelet, without chance of its own but for how long a boot
//! takes.

use std::collections::VecDeque;

use neonvm_runner::config::Accel;
use neonvm_runner::core::shape::{CpuControl, shape};
use neonvm_runner::core::vm_args::vm_spec;
use protocol::runner::{ExitReason, ExitReport};
use protocol::time::Span;
use protocol::vm::Guest;
use serde_json::json;

use crate::event::{Chore, Event, PodId};
use crate::journal::{Note, Part};
use crate::machine::{Machine, MonitorProcess};
use crate::monitor::GuestMonitor;
use crate::rng::MILLION;
use crate::store::{Change, Kind, Object};
use crate::watch::number_of;
use crate::world::World;

/// Between two readings of memory use in a guest. The shipped 100 ms would make nine of ten steps a
/// reading.
const SAMPLE_INTERVAL: Span = Span::from_secs(1);
/// Shortest and longest boot of a guest.
pub(crate) const BOOT_LASTS: (Span, Span) = (Span::from_secs(2), Span::from_secs(9));
/// Shortest and longest time that a node takes to stop a pod.
pub(crate) const STOP_LASTS: (Span, Span) = (Span::from_millis(100), Span::from_secs(3));

impl World {
    /// The node looks at a change of a pod.
    pub(crate) fn node_works(&mut self, change: &Change) {
        if change.kind != Kind::Pod {
            return;
        }
        let object = &change.object;
        let Some(vm) = self.vm_named(object.meta("name")) else {
            return;
        };
        let Some(node) = object.value["spec"]["nodeName"]
            .as_str()
            .and_then(number_of)
        else {
            // Not bound yet: nobody has to stop it.
            if !change.gone && !object.meta("deletionTimestamp").is_empty() {
                let pod = id_of(object);
                self.chore_after(Span::from_millis(50), vm, pod, Chore::Stop);
            }
            return;
        };
        if change.gone {
            return;
        }
        let pod = id_of(object);
        let known = self.vms[vm]
            .machine
            .as_ref()
            .is_some_and(|machine| machine.pod == pod);
        if !object.meta("deletionTimestamp").is_empty() {
            let delay = self.rng.span(STOP_LASTS.0, STOP_LASTS.1);
            return self.chore_after(delay, vm, pod, Chore::Stop);
        }
        if !known && object.pod().status.phase.is_empty() {
            self.vms[vm].bound.clone_from(&pod.uid);
            if self.vms[vm].node.replace(node) != Some(node) {
                self.note(Note::Bound { vm, node });
                self.checks.touch(vm);
            }
            let delay = self.rng.millis(20, 200);
            self.chore_after(delay, vm, pod, Chore::Start);
        }
    }

    fn chore_after(&mut self, delay: Span, vm: usize, pod: PodId, chore: Chore) {
        self.after(delay, Event::Chore { vm, pod, chore });
    }

    pub(crate) fn chore(&mut self, vm: usize, pod: &PodId, chore: Chore) {
        match chore {
            Chore::Start => self.boot(vm, pod),
            Chore::Ready => self.guest_is_up(vm, pod),
            Chore::Stop => self.stop(vm, pod),
        }
    }

    fn boot(&mut self, vm: usize, pod: &PodId) {
        let is_there = self
            .pod(pod)
            .is_some_and(|pod| pod.meta("deletionTimestamp").is_empty());
        let name = self.vms[vm].name.clone();
        if !is_there
            || self.vms[vm]
                .machine
                .as_ref()
                .is_some_and(|machine| machine.pod == *pod)
        {
            return;
        }
        let Some(object) = self.store.get(Kind::Vm, &name).cloned() else {
            return;
        };
        let accel = if vm.is_multiple_of(4) {
            Accel::Tcg
        } else {
            Accel::Kvm
        };
        let Some(guest) = self.guest_of(pod, &object) else {
            return;
        };
        let Ok(shape) = shape(&guest, CpuControl::Plug, accel) else {
            return;
        };
        let id = self.number();
        self.note(Note::Boots { vm, machine: id });
        self.vms[vm].machine = Some(Machine::new(id, pod.clone(), shape));
        self.checks.touch(vm);
        self.pod_status(pod, &json!({"phase": "Running", "podIP": format!("127.1.{}.{}", vm / 250 + 1, vm % 250 + 1)}));
        self.start_runner(vm);
        let delay = self.rng.span(BOOT_LASTS.0, BOOT_LASTS.1);
        self.after(
            delay,
            Event::Chore {
                vm,
                pod: pod.clone(),
                chore: Chore::Ready,
            },
        );
    }

    /// What a runner is told to build. Where it matters what the pod requests, that is what its pod
    /// was made with, as in its shell.
    fn guest_of(&self, pod: &PodId, vm: &Object) -> Option<Guest> {
        if !self.options.requests {
            return Some(vm.vm().spec.guest.clone());
        }
        let args = &self.pod(pod)?.value["spec"]["containers"][0]["args"];
        let args: Vec<String> = serde_json::from_value(args.clone()).ok()?;
        Some(vm_spec(&args).ok()?.guest)
    }

    /// The pod, unless it is gone; another one may have its name.
    fn pod(&self, id: &PodId) -> Option<&Object> {
        let pod = self.store.get(Kind::Pod, &id.name);
        pod.filter(|pod| pod.meta("uid") == id.uid)
    }

    fn pod_status(&mut self, pod: &PodId, status: &serde_json::Value) {
        // A pod that is gone has no status to write.
        if self.pod(pod).is_some() {
            let patch = json!({"status": status});
            let _written = self.store.merge(Kind::Pod, &pod.name, &patch);
        }
    }

    fn guest_is_up(&mut self, vm: usize, pod: &PodId) {
        let Some(machine) = self.vms[vm]
            .machine
            .as_mut()
            .filter(|machine| machine.pod == *pod)
        else {
            return;
        };
        if machine.ended.is_some() {
            return;
        }
        machine.is_up = true;
        let container = neonvm_controller::core::pod::CONTAINER;
        self.pod_status(
            pod,
            &json!({"containerStatuses": [{"name": container, "ready": true}]}),
        );
        self.start_monitor(vm);
        self.memory_shall_move(vm);
        self.guest_reports(vm, Span::from_millis(5));
    }

    /// A monitor starts in a guest that is up.
    pub(crate) fn start_monitor(&mut self, vm: usize) {
        let id = self.number();
        let Some(machine) = self.vms[vm]
            .machine
            .as_mut()
            .filter(|machine| machine.is_up)
        else {
            return;
        };
        if machine.monitor.is_none() {
            let core = GuestMonitor::new(SAMPLE_INTERVAL);
            machine.monitor = Some(MonitorProcess {
                id,
                core,
                alarm: None,
                connection: None,
                inbox: VecDeque::new(),
            });
        }
    }

    pub(crate) fn crash_monitor(&mut self, vm: usize) {
        let Some(machine) = self.vms[vm].machine.as_mut() else {
            return;
        };
        machine.monitor = None;
        self.monitor_counts(vm);
        let open: Vec<u64> = self.vms[vm].connections.keys().copied().collect();
        for connection in open {
            self.break_connection(vm, connection);
        }
    }

    /// The guest ends by itself.
    pub(crate) fn guest_ends(&mut self, vm: usize, why: &str) {
        let Some(machine) = self.vms[vm]
            .machine
            .as_mut()
            .filter(|machine| machine.ended.is_none())
        else {
            return;
        };
        machine.ended = Some(ExitReport {
            success: false,
            reason: ExitReason::GuestPanic,
            code: Some(1),
            message: why.to_owned(),
        });
        machine.is_up = false;
        let (id, pod) = (machine.id, machine.pod.clone());
        // Its pod has ended: it takes nothing of the node any more.
        self.vms[vm].node = None;
        self.note(Note::Ends { vm, machine: id });
        self.checks.touch(vm);
        self.crash_monitor(vm);
        self.drive_runner(vm);
        let container = neonvm_controller::core::pod::CONTAINER;
        let state = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": why}});
        self.pod_status(
            &pod,
            &json!({"phase": "Failed", "containerStatuses": [{"name": container, "ready": false, "state": state}]}),
        );
        if self.rng.chance(MILLION / 2) {
            self.crash_runner(vm);
        }
    }

    fn stop(&mut self, vm: usize, pod: &PodId) {
        let machine = self.vms[vm].machine.as_ref();
        if machine.is_some_and(|machine| machine.pod == *pod) {
            self.crash_monitor(vm);
            self.vms[vm].machine = None;
            self.runner_has_news(vm);
        }
        if self.vms[vm].bound == pod.uid {
            // Nothing of this pod runs, or will: it takes nothing of the node any more, whether or
            // not it ever booted.
            self.vms[vm].node = None;
            self.checks.touch(vm);
        }
        if self.pod(pod).is_some() {
            self.store.remove(Kind::Pod, &pod.name);
        }
    }

    // ---- crashes and starts of all parts ----

    /// Starts a part again.
    pub(crate) fn start(&mut self, part: Part) {
        if self.is_up(part) {
            return;
        }
        self.note(Note::Start(part));
        match part {
            Part::Agent(node) => self.start_agent(node),
            Part::Scheduler(replica) => self.start_scheduler(replica),
            Part::Controller => self.start_controller(),
            Part::Runner(vm) => self.start_runner(vm),
            Part::Monitor(vm) => self.start_monitor(vm),
        }
    }

    /// Ends a part as `kill -9` does, and starts it again after a while.
    pub(crate) fn crash(&mut self, part: Part, pause: Span) {
        if !self.is_up(part) {
            return;
        }
        self.note(Note::Crash(part));
        self.tally.count(match part {
            Part::Agent(_) => "agent crash",
            Part::Scheduler(_) => "scheduler crash",
            Part::Controller => "controller crash",
            Part::Runner(_) => "runner crash",
            Part::Monitor(_) => "monitor crash",
        });
        match part {
            Part::Agent(node) => self.crash_agent(node),
            Part::Scheduler(replica) => self.crash_scheduler(replica),
            Part::Controller => self.crash_controller(),
            Part::Runner(vm) => self.crash_runner(vm),
            Part::Monitor(vm) => self.crash_monitor(vm),
        }
        self.after(pause, Event::Start(part));
    }
}

fn id_of(pod: &Object) -> PodId {
    PodId {
        name: pod.meta("name").to_owned(),
        uid: pod.meta("uid").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Level, Options};

    const NAME: &str = "vm-0000-abcde";

    fn bound_pod(world: &mut World) -> PodId {
        let pod = json!({"metadata": {"name": NAME}, "spec": {}, "status": {}});
        let pod = world
            .store
            .create(Kind::Pod, pod, world.wall())
            .expect("the name is free");
        let id = id_of(&pod);
        assert!(world.store.bind(NAME, &id.uid, "node-000").is_ok());
        world.tell_changes();
        id
    }

    #[test]
    fn a_stop_left_over_from_one_pod_leaves_the_next_of_its_name_alone() {
        let mut world = World::new(Options::short(1, Level::None, 1));
        let first = bound_pod(&mut world);
        world.stop(0, &first);
        assert!(world.pod(&first).is_none());
        assert_eq!(world.vms[0].node, None, "it never booted and is gone");
        let second = bound_pod(&mut world);
        world.stop(0, &first);
        assert!(world.pod(&second).is_some());
        assert_eq!(world.vms[0].node, Some(0));
        world.stop(0, &second);
        assert!(world.store.get(Kind::Pod, NAME).is_none());
        assert_eq!(world.vms[0].node, None);
    }
}
