//! Limits of QEMU's memory and processes: see [`crate::core::memory_bound`].

use neonvm_quota::BoundGroup;
use protocol::units::Bytes;
use tracing::warn;

use super::process::ProcessId;
use super::record::Record;
use crate::config::RunnerConfig;
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

    pub(super) fn add(&self, process: ProcessId) {
        let Some(group) = &self.group else { return };
        if let Err(error) = group.join(process.pid) {
            let (pid, error) = (process.pid, daemon_kit::chain(&error));
            warn!(
                pid,
                error, "a process of the guest's is not bounded by the kernel"
            );
        }
    }

    /// Sets the memory limit in bytes, if there is a cgroup and the limit has changed.
    pub(super) fn set_memory(&mut self, wanted: Bytes) {
        let Some(group) = &self.group else { return };
        if self.memory == Some(wanted) {
            return;
        }
        if let Err(error) = group.set(wanted.0) {
            let error = daemon_kit::chain(&error);
            warn!(error, bytes = wanted.0, "memory limit not written");
        }
        self.memory = Some(wanted);
    }

    pub(super) fn remove(&mut self) {
        if let Some(group) = self.group.take() {
            group.remove();
        }
    }
}
