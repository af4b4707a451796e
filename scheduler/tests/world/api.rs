//! The API: calls of the scheduler that are carried out, lost, or carried out late, and what its
//! watches tell of them.

use protocol::permit::NamespacedName;
use protocol::units::Resources;
use scheduler::core::event::{BindOutcome, CallOutcome, Event, VmWrite};

use super::{PodObject, VmObject, World, nth};

/// A call under way at the API.
#[derive(Debug, Clone)]
pub(super) enum Call {
    Write(VmWrite),
    Read(u64, NamespacedName),
    Bind {
        id: u64,
        pod: String,
        uid: String,
        node: String,
    },
}

impl World {
    pub(super) fn bump(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    pub(super) fn vm_changed(&mut self, name: &str) {
        let version = self.bump();
        if let Some(vm) = self.vms.get_mut(name) {
            vm.version = version;
            let event = Event::VmApplied(vm.view());
            self.streams[1].push_back(event);
        }
    }

    pub(super) fn pod_changed(&mut self, name: &str) {
        if let Some(pod) = self.pods.get(name) {
            self.streams[0].push_back(Event::PodApplied(pod.view()));
        }
    }

    pub(super) fn api_acts(&mut self, which: u8) {
        if self.calls.is_empty() {
            return;
        }
        let call = self.calls.remove(usize::from(which) % self.calls.len());
        let outcome = self.execute(&call);
        self.log(|| format!("API: {outcome:?}"));
        self.outcomes.push(outcome);
    }

    pub(super) fn call_times_out(&mut self, which: u8) {
        if self.calls.is_empty() {
            return;
        }
        let call = self.calls.remove(usize::from(which) % self.calls.len());
        let unclear = "time-out".to_owned();
        self.log(|| format!("API: time-out of {call:?}"));
        self.outcomes.push(match &call {
            Call::Write(write) => Event::WriteDone(write.id, CallOutcome::Unclear(unclear)),
            Call::Read(id, _) => Event::ReadDone(*id, CallOutcome::Unclear(unclear)),
            Call::Bind { id, .. } => Event::BindDone(*id, BindOutcome::Unclear(unclear)),
        });
        self.note("call timed out");
        self.ghosts.push(call);
    }

    pub(super) fn ghost_lands(&mut self, which: u8) {
        if self.ghosts.is_empty() {
            return;
        }
        let call = self.ghosts.remove(usize::from(which) % self.ghosts.len());
        let outcome = self.execute(&call);
        self.log(|| format!("API: ghost lands: {outcome:?}"));
        self.note("ghost landed");
    }

    pub(super) fn execute(&mut self, call: &Call) -> Event {
        match call {
            Call::Write(write) => Event::WriteDone(write.id, self.execute_write(write)),
            Call::Read(id, vm) => {
                let found = self.vms.get(&vm.name);
                let outcome = found.map_or(CallOutcome::NotFound, |vm| {
                    CallOutcome::Done(Box::new(vm.view()))
                });
                Event::ReadDone(*id, outcome)
            }
            Call::Bind { id, pod, uid, node } => {
                let found = self.pods.get_mut(pod).filter(|pod| pod.uid == *uid);
                let outcome = match found {
                    None => BindOutcome::Refused("not found".into()),
                    Some(pod) if pod.node.is_some() => BindOutcome::Conflict,
                    Some(pod) => {
                        pod.node = Some(node.clone());
                        BindOutcome::Bound
                    }
                };
                self.pod_changed(pod);
                Event::BindDone(*id, outcome)
            }
        }
    }

    pub(super) fn execute_write(&mut self, write: &VmWrite) -> CallOutcome {
        let Some(vm) = self.vms.get_mut(&write.vm.name) else {
            return CallOutcome::NotFound;
        };
        if vm.version != write.base {
            self.note("write met a newer version");
            return CallOutcome::Conflict;
        }
        assert_eq!(
            vm.approved, write.approved_before,
            "the patch tests what is there"
        );
        let approved: Resources = serde_json::from_str(&write.approved).expect("is readable");
        assert!(
            !approved.has_field_below(vm.in_use),
            "{} is written as approved of {}, which uses {}",
            approved,
            vm.name,
            vm.in_use
        );
        vm.unit = Some(write.unit.clone());
        vm.requested = Some(write.requested.clone());
        vm.approved = Some(write.approved.clone());
        self.vm_changed(&write.vm.name);
        self.note("write");
        CallOutcome::Done(Box::new(self.vms[&write.vm.name].view()))
    }

    /// The VM that owns a pod; none if it is gone, also if there is another one of its name.
    pub(super) fn vm_of(&self, pod: &PodObject) -> Option<&VmObject> {
        let (name, uid) = pod.owner.as_ref()?;
        self.vms.get(name).filter(|vm| vm.uid == *uid)
    }

    pub(super) fn touch_vm(&mut self, which: u8) {
        if let Some(name) = nth(&self.vms, which) {
            self.vm_changed(&name);
        }
    }

    pub(super) fn controller_syncs(&mut self, which: u8) {
        let Some(name) = nth(&self.pods, which) else {
            return;
        };
        if self.is_migrating(&self.pods[&name]) {
            return;
        }
        let vm = self.vm_of(&self.pods[&name]).cloned();
        if let (Some(vm), Some(pod)) = (vm, self.pods.get_mut(&name)) {
            pod.sync(&vm);
            self.pod_changed(&name);
        }
    }
}
