//! The power state of a VM: `bellows.dev/power-state: stopped` keeps it without a pod. Object and
//! disk stay.
//!
//! Condition `Stopped` records that a VM has no pod for this reason. Such a VM starts again when
//! the annotation goes, under any restart policy.

use protocol::annotations::{ANNOTATION_POWER_STATE, POWER_STOPPED};
use protocol::vm::{VirtualMachine, VmPhase};

use super::action::Action;
use super::conditions;
use super::draft::Draft;
use super::view::PodView;
use super::vm_event::VmEvent;

/// Whether a VM is to have no pod.
#[must_use]
pub fn is_to_be_off(vm: &VirtualMachine) -> bool {
    let state = vm.metadata.annotations.get(ANNOTATION_POWER_STATE);
    state.is_some_and(|state| state == POWER_STOPPED)
}

impl Draft<'_> {
    /// Whether the VM's phase is decided by its power state: it is to be off, or comes back from
    /// that.
    pub(super) fn power(&mut self) -> bool {
        if is_to_be_off(self.vm) {
            self.switch_off();
            return true;
        }
        self.is_off() && self.switch_on()
    }

    fn is_off(&self) -> bool {
        let mut conditions = self.stored.conditions.iter();
        conditions.any(|one| one.kind == conditions::STOPPED && one.status == "True")
    }

    /// Deletes the pod. The VM is off once the API server reports that the pod is gone.
    fn switch_off(&mut self) {
        if !self.status.pod_name.is_empty() {
            match self.input.pod {
                PodView::Unknown => {
                    return self.actions.push(Action::ReadPod {
                        name: self.status.pod_name.clone(),
                    });
                }
                PodView::Present(pod) if self.owns(pod) => {
                    if pod.metadata.deletion_timestamp.is_none() {
                        self.delete_pod(pod);
                    }
                    return;
                }
                PodView::Absent | PodView::Present(_) => {}
            }
        }
        let status = &mut self.status;
        status.phase = VmPhase::Succeeded;
        status.pod_name.clear();
        status.pod_ip.clear();
        status.node.clear();
        status.cpus = None;
        status.memory_size = None;
        let why = format!("stopped on request: annotation {ANNOTATION_POWER_STATE}");
        self.available(false, &why);
        let (list, wall) = (&mut self.status.conditions, self.input.at.wall);
        conditions::set(list, conditions::STOPPED, "True", &why, wall);
        conditions::clear(list, conditions::DEGRADED, wall);
        if !self.is_off() {
            self.events.push(VmEvent::Stopped);
        }
    }

    fn switch_on(&mut self) -> bool {
        let wall = self.input.at.wall;
        conditions::clear(&mut self.status.conditions, conditions::STOPPED, wall);
        self.status.phase = VmPhase::Pending;
        self.events.push(VmEvent::Started);
        true
    }
}
