//! Looks at everything that changed in a step.

use super::Violation;
use crate::world::World;

impl World {
    /// Looks at everything that changed in this step.
    ///
    /// # Errors
    /// What does not hold.
    pub(crate) fn check(&mut self) -> Result<(), Violation> {
        for vm in std::mem::take(&mut self.checks.touched) {
            self.order_holds(vm);
            self.overrun_ends(vm);
            if self.options.requests {
                self.n41_a_guest_has_no_more_than_its_pod_requests(vm);
                self.cpus_plugged_ahead_take_no_time(vm);
            }
            if let Some(node) = self.vms[vm].node {
                self.checks.nodes.insert(node);
            }
        }
        for node in std::mem::take(&mut self.checks.nodes) {
            self.never_overcommit(node);
            self.n06_held_covers_actual(node);
        }
        if self.schedulers.len() > 1 {
            self.n45_one_leads();
        }
        self.checks.violation.take().map_or(Ok(()), Err)
    }

    /// Counts a check, so that a run can say that it made some.
    pub(super) fn checked(&mut self) {
        self.checks.made += 1;
    }
}
