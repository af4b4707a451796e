//! What a machine's quota may be: what its checks hold it to.

use neonvm_runner::core::quota::MEMORY_ALLOWANCE;
use protocol::time::Timestamp;
use protocol::units::MilliCpu;

/// What a machine's quota may be, by what was ordered of its runners.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuotaLeave {
    /// The guest boots: it has the speed of its largest size.
    pub boots: bool,
    /// The limit ordered last.
    pub ordered: MilliCpu,
    /// The one before that, which holds while CPUs or memory leave.
    pub before: MilliCpu,
    /// When it was ordered.
    pub at: Timestamp,
}

impl QuotaLeave {
    /// Of a guest that begins to boot.
    pub(crate) fn at_boot(cpu: MilliCpu) -> Self {
        Self {
            boots: true,
            ordered: cpu,
            before: cpu,
            at: Timestamp(0),
        }
    }

    /// A runner begins, and knows nothing of the order before the last one.
    pub(crate) fn taken_over(&mut self, is_up: bool) {
        self.boots &= !is_up;
        self.before = self.ordered;
    }

    /// Another size is ordered.
    pub(crate) fn ordered(&mut self, cpu: MilliCpu, now: Timestamp) {
        self.before = std::mem::replace(&mut self.ordered, cpu);
        self.at = now;
    }

    /// The most a guest may have that is on its way down.
    pub(crate) fn on_the_way_down(&self, now: Timestamp) -> MilliCpu {
        if now.since(self.at) <= MEMORY_ALLOWANCE {
            self.before
        } else {
            MilliCpu(0)
        }
    }
}
