//! The guests of VMs' pods, the controller that orders their sizes, and the status it writes.
//!
//! The controller keeps the promises that the scheduler counts on
//! (`neonvm-shim/controller/src/core/phases.rs`):
//!
//! * the pod says a size before its guest is ordered to have it, and says less only after the
//!   status did;
//! * the status says less than before only of a guest that is ordered to have the size wanted.
//!
//! All else is as late as it likes: the VM it works on, the report it has from the runner, and both
//! watches.

use protocol::units::Resources;

use super::objects::Report;
use super::{World, nth};

/// A guest and what its controller knows of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guest {
    /// What it has.
    pub(crate) has: Resources,
    /// What its runner is to make of it.
    pub(crate) ordered: Resources,
    /// Size and revision of the VM that the controller works on.
    seen: (Resources, u64),
    /// What the runner reported last: what the guest had, and was ordered to have.
    heard: (Resources, Resources),
}

impl Guest {
    pub(crate) fn new(size: Resources) -> Self {
        Self {
            has: size,
            ordered: size,
            seen: (size, 0),
            heard: (size, size),
        }
    }

    /// The most it has now, or will have by the order it was given.
    pub(crate) fn most(&self) -> Resources {
        self.has.field_max(self.ordered)
    }

    fn moves(&mut self, how: u8) {
        let to = |has: u64, ordered: u64, step: u64| match how & 3 {
            0..=2 => ordered,
            _ if has < ordered => ordered.min(has + step),
            _ => ordered.max(has.saturating_sub(step)),
        };
        if how & 4 == 0 {
            let cpu = to(self.has.cpu.0.into(), self.ordered.cpu.0.into(), 250);
            self.has.cpu.0 = u32::try_from(cpu).unwrap_or(u32::MAX);
        }
        if how & 8 == 0 {
            self.has.mem.0 = to(self.has.mem.0, self.ordered.mem.0, 1 << 30);
        }
    }
}

impl World {
    /// A guest comes closer to what was ordered, in one resource or both.
    pub(super) fn guest_moves(&mut self, which: u8, how: u8) {
        if let Some(guest) = nth(&self.guests, which).and_then(|pod| self.guests.get_mut(&pod)) {
            guest.moves(how);
        }
    }

    /// The controller orders what its VM wants, or hears its runner and writes the status, or lets
    /// the pod say less too.
    pub(super) fn controller_works(&mut self, which: u8, how: u8) {
        let steps = match how % 4 {
            0 | 1 => 0..3,
            2 => 3..5,
            _ => 3..6,
        };
        steps.for_each(|step| self.controller_step(which, step));
    }

    /// The controller does one thing for one VM.
    pub(super) fn controller_step(&mut self, which: u8, step: u8) {
        let Some(name) = nth(&self.guests, which) else {
            return;
        };
        // Of a VM that migrates it leaves the size alone.
        if self.is_migrating(&self.pods[&name]) {
            return;
        }
        // Of a VM that is gone it deletes the pod, later.
        let Some(vm) = self.vm_of(&self.pods[&name]) else {
            return;
        };
        let (vm_name, now) = (vm.name.clone(), (vm.in_use, vm.revision));
        let mut guest = self.guests[&name];
        let told = self.pods[&name].told;
        match step {
            0 => guest.seen = now,
            1 => self.pod_says(&name, told.field_max(guest.seen.0)),
            2 if !guest.seen.0.has_field_above(told) => {
                guest.ordered = guest.seen.0;
                guest.heard = (guest.has, guest.ordered);
            }
            3 => guest.heard = (guest.has, guest.ordered),
            4 => self.report(&name, &vm_name, guest),
            5 if self.is_reported(&vm_name, guest) => {
                self.pod_says(&name, guest.heard.0.field_max(guest.ordered));
            }
            _ => {}
        }
        self.guests.insert(name, guest);
    }

    fn pod_says(&mut self, name: &str, size: Resources) {
        let pod = self.pods.get_mut(name).expect("a guest has a pod");
        if pod.told != size {
            pod.told = size;
            self.pod_changed(name);
        }
    }

    fn report(&mut self, pod: &str, vm_name: &str, guest: Guest) {
        let Guest { seen, heard, .. } = guest;
        let vm = self.vms.get_mut(vm_name).expect("it was looked up");
        let old = vm.report.clone().unwrap_or_default();
        let is_ordered = heard.1 == seen.0;
        let size = if is_ordered {
            heard.0
        } else {
            heard.0.field_max(old.size)
        };
        let reached = is_ordered && heard.0 == heard.1;
        let revision = if reached { seen.1 } else { old.revision };
        let report = Report {
            pod: pod.to_owned(),
            size,
            revision,
        };
        if vm.report.as_ref() != Some(&report) {
            vm.report = Some(report);
            self.vm_changed(vm_name);
            self.note("report");
        }
    }

    /// Whether the status says what the runner reported last, of the size wanted.
    fn is_reported(&self, vm: &str, guest: Guest) -> bool {
        let report = self.vms[vm].report.as_ref();
        guest.heard.1 == guest.seen.0 && report.is_some_and(|report| report.size == guest.heard.0)
    }
}
