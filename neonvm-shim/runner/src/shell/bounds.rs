//! Limits of QEMU's memory and processes: see [`crate::core::memory_bound`].

use neonvm_quota::BoundGroup;
use protocol::units::Bytes;
use tracing::warn;

use super::process::ProcessId;
use super::record::Record;
use super::supervisor::Supervisor;
use crate::config::RunnerConfig;
use crate::core::memory_bound::bound;
use crate::core::walls::{Wall, WallState};

/// The cgroup, and the memory limit in force.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    group: Option<BoundGroup>,
    memory: Option<Bytes>,
}

impl Bounds {
    /// Moves QEMU and the guest's network process into the cgroup of the record, if it has one. The
    /// record gets the result.
    pub(super) fn join(config: &RunnerConfig, record: &mut Record) -> Self {
        let Some(path) = record.cgroup.clone().filter(|_| config.walls.is_some()) else {
            return Self::default();
        };
        let mut processes = [record.qemu, record.passt].into_iter().flatten();
        let joined = BoundGroup::make(&path).and_then(|group| {
            processes.try_for_each(|process| group.join(process.pid))?;
            Ok(group)
        });
        record.walls.retain(|state| state.wall != Wall::Memory);
        match joined {
            Ok(group) => {
                record.walls.push(WallState::stands(Wall::Memory));
                Self {
                    group: Some(group),
                    memory: None,
                }
            }
            Err(error) => {
                let why = daemon_kit::chain(&error);
                warn!(
                    why,
                    "QEMU's memory and processes are not bounded by the kernel"
                );
                record.walls.push(WallState::missing(Wall::Memory, why));
                Self::default()
            }
        }
    }

    fn add(&self, process: ProcessId) {
        let Some(group) = &self.group else { return };
        if let Err(error) = group.join(process.pid) {
            let (pid, error) = (process.pid, daemon_kit::chain(&error));
            warn!(
                pid,
                error, "a process of the guest's is not bounded by the kernel"
            );
        }
    }

    pub(super) fn remove(&mut self) {
        if let Some(group) = self.group.take() {
            group.remove();
        }
    }
}

impl Supervisor {
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
        let Some(group) = &self.bounds.group else {
            return;
        };
        let ordered = self.sizer.target().memory;
        let wanted = bound(ordered, self.sizer.memory(), self.record.accel);
        if self.bounds.memory == Some(wanted) {
            return;
        }
        if let Err(error) = group.set(wanted.0) {
            let error = daemon_kit::chain(&error);
            warn!(error, bytes = wanted.0, "bound of memory not written");
        }
        self.bounds.memory = Some(wanted);
    }
}
