//! How many vCPU threads a TCG QEMU may still start.
//!
//! A multi-threaded TCG reserves one translation context per possible CPU. Each vCPU thread takes
//! one, an unplug returns none, and QEMU aborts when they run out. So the runner counts plugs. When
//! an unplug would leave too few to reach the largest size again, CPUs are switched off inside the
//! guest instead. Source: observed with QEMU 10.0 (`tcg_register_thread: assertion failed: (n <
//! tcg_max_ctxs)`).

use serde::{Deserialize, Serialize};

/// Lifetime budget of vCPU threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlugBudget {
    total: u32,
    spent: u32,
}

impl PlugBudget {
    /// A budget of `total` threads of which the CPUs at the start have spent some.
    #[must_use]
    pub fn new(total: u32, spent: u32) -> Self {
        Self { total, spent }
    }

    /// Number of vCPU threads that QEMU may still start. At 0 no CPU can be plugged.
    #[must_use]
    pub fn left(self) -> u32 {
        self.total.saturating_sub(self.spent)
    }

    /// The budget after `count` more plugs.
    #[must_use]
    pub fn after(self, count: u32) -> Self {
        Self {
            spent: self.spent.saturating_add(count),
            ..self
        }
    }

    /// Whether `count` of `plugged` CPUs may be unplugged so that `most` can still be reached
    /// afterwards.
    #[must_use]
    pub fn allows_unplug(self, count: u32, plugged: u32, most: u32) -> bool {
        self.left() >= most.saturating_sub(plugged.saturating_sub(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn last_plugs_are_reserved_for_the_largest_size() {
        let budget = PlugBudget::new(4, 2);
        // Two of at most three are plugged: reaching three takes one plug, and two are left.
        assert!(budget.allows_unplug(1, 2, 3));
        let budget = budget.after(1);
        assert!(
            !budget.allows_unplug(1, 2, 3),
            "one left cannot pay for two"
        );
        assert!(budget.allows_unplug(0, 2, 3));
    }

    proptest! {
        /// Whatever the orders, the largest size stays within reach of the budget.
        #[test]
        fn plugs_never_exceed_the_budget(
            most in 1..8_u32,
            spare in 0..12_u32,
            orders in proptest::collection::vec(1..8_u32, 0..60),
        ) {
            let total = most + spare;
            let mut plugged = 1;
            let mut budget = PlugBudget::new(total, plugged);
            let mut made = plugged;
            for order in orders {
                let order = order.min(most);
                if order > plugged {
                    made += order - plugged;
                    budget = budget.after(order - plugged);
                    plugged = order;
                } else if budget.allows_unplug(plugged - order, plugged, most) {
                    plugged = order;
                }
                prop_assert!(made <= total, "{made} of {total}");
                prop_assert!(budget.left() >= most - plugged);
            }
        }
    }
}
