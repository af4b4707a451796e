//! Phases Succeeded and Failed: the end of the pod, and the restart policy.

use protocol::claims::keeps_a_disk;
use protocol::vm::{RestartPolicy, VmPhase};

use crate::core::action::Action;
use crate::core::conditions::{self, BOOTED};
use crate::core::draft::Draft;
use crate::core::view::PodView;
use crate::core::vm_event::VmEvent;

impl Draft<'_> {
    /// Succeeded and Failed: away with the pod, then by the restart policy.
    pub(in crate::core) fn ended(&mut self) {
        if !self.status.pod_name.is_empty() {
            match self.input.pod {
                PodView::Unknown => return self.read_pod(),
                PodView::Absent => {}
                PodView::Present(pod) if !self.owns(pod) => {}
                PodView::Present(pod) => {
                    if pod.metadata.deletion_timestamp.is_none() {
                        return self.delete_pod(pod);
                    }
                    if !pod.metadata.owner_references.is_empty() {
                        let (name, uid) = (pod.metadata.name.clone(), pod.metadata.uid.clone());
                        return self.actions.push(Action::OrphanPod { name, uid });
                    }
                    // A disk that stays is one file: the next QEMU waits until the last has gone.
                    let has_one_disk = keeps_a_disk(&self.vm.spec);
                    if self.input.settings.at_most_one_pod || has_one_disk {
                        return;
                    }
                }
            }
        }
        self.status.pod_name.clear();
        self.status.pod_ip.clear();
        self.status.node.clear();
        self.status.cpus = None;
        self.status.memory_size = None;
        let failed = self.status.phase == VmPhase::Failed;
        let again = match self.vm.spec.restart_policy {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => failed,
            RestartPolicy::Never => false,
        };
        if !again {
            return;
        }
        if self.input.at.now < self.input.restart_at {
            return self.wake_at(self.input.restart_at);
        }
        let wall = self.input.at.wall;
        conditions::clear(&mut self.status.conditions, BOOTED, wall);
        let after = self.status.phase;
        self.status.phase = VmPhase::Pending;
        self.status.restart_count = self.status.restart_count.saturating_add(1);
        self.events.push(VmEvent::Restarted {
            after,
            count: self.status.restart_count,
        });
    }
}
