//! Counters of states that the scheduler did not write. Each is a state that only a forged or
//! foreign write explains.

use serde::Serialize;

use crate::core::view::VmView;

/// Counters of states that the scheduler did not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Anomalies {
    /// Times that a VM's approved annotation went above the VM's maximum.
    pub approved_above_max: u64,
}

impl Anomalies {
    /// Counts a new state of a VM, observed after `old`.
    pub(super) fn vm_observed(&mut self, old: Option<&VmView>, new: &VmView) {
        let was_above =
            old.is_some_and(|old| old.approved_above_max && old.approved_text == new.approved_text);
        if new.approved_above_max && !was_above {
            self.approved_above_max += 1;
        }
    }
}
