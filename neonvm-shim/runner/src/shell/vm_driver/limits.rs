//! The driver's part of QEMU's limits: the memory limit, the CPU quota, and the network process.

use protocol::runner::QuotaState;
use protocol::units::MilliCpu;
use tracing::warn;

use super::VmDriver;
use crate::core::memory_bound::bound;
use crate::shell::process::ProcessId;

impl VmDriver {
    /// The guest has another network process.
    pub(super) fn take_network(&mut self, process: ProcessId) {
        self.bounds.add(process);
        self.metrics.network_restarted();
        self.record.passt = Some(process);
        self.save();
    }

    /// Sets the limit for the guest's present size: before a growth begins, after a shrink has
    /// ended.
    pub(super) fn bound_memory(&mut self) {
        let ordered = self.sizer.target().memory;
        let wanted = bound(ordered, self.sizer.memory(), self.record.accel);
        self.bounds.set_memory(wanted);
    }

    pub(super) fn set_quota(&mut self, limit: MilliCpu) {
        let Some(group) = &self.group else { return };
        match group.set(limit, self.config.cpu_quota_percent) {
            Ok(limit) => self.quota = QuotaState::Enforced { milli: limit.0 },
            Err(error) => {
                let reason = daemon_kit::chain(&error);
                warn!(reason, "CPU limit is not enforced");
                self.quota = QuotaState::Unavailable { reason };
            }
        }
        self.show_quota();
    }

    /// Sets the metric of a missing quota.
    pub(in crate::shell) fn show_quota(&self) {
        let is_missing = matches!(self.quota, QuotaState::Unavailable { .. });
        let is_asked_for = self.record.cgroup.is_some();
        self.metrics.quota_missing(is_asked_for && is_missing);
    }
}
