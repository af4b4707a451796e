//! The scheduler's process: the shipped core places pods and sends VMs away from nodes under
//! pressure.

mod turns;

use scheduler::core::Core;

#[derive(Default)]
pub(crate) struct SchedulerPart {
    core: Option<Core>,
    epoch: u64,
    seen: usize,
    /// Migrations it has begun.
    pub(crate) begun: u32,
}
