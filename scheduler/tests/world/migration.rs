//! Migrations: a VM has two pods for a while, and its guest may need the room of both.
//!
//! The size stands still meanwhile: the controller orders nothing. The agent may still lower what
//! its VM uses, and a patch that was permitted before may still land.

use scheduler::core::event::Event;
use scheduler::core::view::PodRole;

use super::{Guest, PodObject, World, nth};

/// How a migration ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The guest runs in the target.
    Succeeded,
    /// The guest stayed in the source.
    Failed,
}

impl World {
    /// A migration begins, or one that runs ends.
    pub(super) fn migrates(&mut self, which: u8, how: u8) {
        if how.is_multiple_of(2) {
            self.migration_begins(which);
        } else {
            let end = if how % 8 == 1 {
                End::Failed
            } else {
                End::Succeeded
            };
            self.migration_ends(which, end);
        }
    }

    /// A VM at rest gets a second pod, which the scheduler is to place.
    pub(super) fn migration_begins(&mut self, which: u8) {
        let Some(name) = nth(&self.vms, which) else {
            return;
        };
        let vm = &self.vms[&name];
        let home = vm.report.clone().unwrap_or_default();
        let source = self.pods.get(&home.pod);
        let guest = self.guests.get(&home.pod);
        let is_placed = source.is_some_and(|pod| pod.node.is_some() && !pod.deleting);
        let is_at_rest = guest.is_some_and(|guest| guest.has == vm.in_use)
            && guest.is_some_and(|guest| guest.ordered == vm.in_use)
            && home.revision == vm.revision;
        let is_asking = self.requests.iter().any(|(of, _, _)| *of == name)
            || self.tickets.values().any(|(of, _, _)| *of == name);
        if self.targets.contains_key(&name) || !is_placed || !is_at_rest || is_asking {
            return;
        }
        let mut target = PodObject::of(vm);
        self.serial += 1;
        target.name = format!("{}-to{}", target.name, self.serial);
        target.uid = format!("{}-to{}", target.uid, self.serial);
        target.role = PodRole::Target;
        self.guests
            .insert(target.name.clone(), Guest::new(vm.in_use));
        let target_name = target.name.clone();
        self.targets.insert(name, target_name.clone());
        self.pods.insert(target_name.clone(), target);
        self.has_role(&home.pod, PodRole::Source);
        self.pod_changed(&target_name);
        self.note("migration");
    }

    fn migration_ends(&mut self, which: u8, end: End) {
        let Some(name) = nth(&self.targets, which) else {
            return;
        };
        let target = self.targets[&name].clone();
        let source = self.vms[&name].report.clone().unwrap_or_default().pod;
        let is_placed = self.pods[&target].node.is_some();
        if end == End::Succeeded && !is_placed {
            return;
        }
        self.targets.remove(&name);
        let (stays, goes) = match end {
            End::Succeeded => (target, source),
            End::Failed => (source, target),
        };
        if end == End::Succeeded {
            self.lives_in(&name, &stays);
        }
        self.has_role(&stays, PodRole::Settled);
        self.guests.remove(&goes);
        if let Some(pod) = self.pods.remove(&goes) {
            self.streams[0].push_back(Event::PodDeleted(pod.uid));
        }
        self.note(match end {
            End::Succeeded => "migration succeeded",
            End::Failed => "migration failed",
        });
    }

    /// The VM has moved: the agent of the new node takes it over.
    fn lives_in(&mut self, vm: &str, pod: &str) {
        self.agent_is_replaced(vm.to_owned());
        // The connections of the agent on the old node have ended.
        self.late_requests.retain(|(of, _)| of != vm);
        if let Some(agent) = self.agents.get_mut(vm) {
            agent.moves_to(pod.to_owned());
        }
        if let Some(object) = self.vms.get_mut(vm) {
            object.report.get_or_insert_default().pod = pod.to_owned();
        }
        self.vm_changed(vm);
    }

    fn has_role(&mut self, pod: &str, role: PodRole) {
        if let Some(object) = self.pods.get_mut(pod) {
            object.role = role;
            self.pod_changed(pod);
        }
    }

    /// Whether the VM of a pod has another one.
    pub(super) fn is_migrating(&self, pod: &PodObject) -> bool {
        self.vm_of(pod)
            .is_some_and(|vm| self.targets.contains_key(&vm.name))
    }
}
