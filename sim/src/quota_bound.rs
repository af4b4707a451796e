//! Bound of a machine's CPU quota, which the checks compare the quota with.

use neonvm_runner::core::quota::MEMORY_ALLOWANCE;
use protocol::time::Timestamp;
use protocol::units::MilliCpu;

/// Upper bound of a machine's CPU quota. It follows from the orders to its runners.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuotaBound {
    /// Whether the guest boots. Then the quota is that of its largest size.
    pub boots: bool,
    /// Limit of the newest order.
    pub ordered: MilliCpu,
    /// Limit of the order before. It holds while CPUs or memory leave.
    pub before: MilliCpu,
    /// Time of the newest order.
    pub at: Timestamp,
}

impl QuotaBound {
    /// Bound of a guest that begins to boot.
    pub(crate) fn at_boot(cpu: MilliCpu) -> Self {
        Self {
            boots: true,
            ordered: cpu,
            before: cpu,
            at: Timestamp(0),
        }
    }

    /// A new runner takes the machine over. It has no record of the order before the newest.
    pub(crate) fn taken_over(&mut self, is_up: bool) {
        self.boots &= !is_up;
        self.before = self.ordered;
    }

    /// Another size is ordered.
    pub(crate) fn ordered(&mut self, cpu: MilliCpu, now: Timestamp) {
        self.before = std::mem::replace(&mut self.ordered, cpu);
        self.at = now;
    }

    /// Highest quota during a reduction. It is 0 once the allowance for memory has passed.
    pub(crate) fn on_the_way_down(&self, now: Timestamp) -> MilliCpu {
        if now.since(self.at) <= MEMORY_ALLOWANCE {
            self.before
        } else {
            MilliCpu(0)
        }
    }
}
