//! Limits of memory and processes, in a cgroup of version 1 or 2.

use cgroups_rs::CgroupPid;
use cgroups_rs::fs::hierarchies;
use cgroups_rs::fs::memory::MemController;
use cgroups_rs::fs::pid::PidController;
use cgroups_rs::fs::{Cgroup, Controller, MaxValue};

use crate::CgroupError;

/// Most threads and processes. QEMU has one per CPU, and 64 for its disks.
const MOST_TASKS: i64 = 1024;

/// A cgroup with limits of memory and of the number of tasks.
#[derive(Debug)]
pub struct BoundGroup {
    memory: MemController,
    pids: PidController,
}

impl BoundGroup {
    /// Makes the group, or uses an existing one. `path` is relative to the hierarchy's root.
    ///
    /// # Errors
    /// [`CgroupError::Make`], [`CgroupError::NoBounds`].
    pub fn make(path: &str) -> Result<Self, CgroupError> {
        let group = Cgroup::new_with_specified_controllers(
            hierarchies::auto(),
            path,
            Some(vec!["memory".to_owned(), "pids".to_owned()]),
        )
        .map_err(|error| CgroupError::Make(path.to_owned(), error))?;
        let (memory, pids) = (group.controller_of(), group.controller_of());
        let missing = || CgroupError::NoBounds(path.to_owned());
        let memory: &MemController = memory.ok_or_else(missing)?;
        let pids: &PidController = pids.ok_or_else(missing)?;
        pids.set_pid_max(MaxValue::Value(MOST_TASKS))
            .map_err(CgroupError::Bound)?;
        Ok(Self {
            memory: memory.clone(),
            pids: pids.clone(),
        })
    }

    /// Moves a process in, with all its threads. Memory that it has stays charged to its earlier
    /// group.
    ///
    /// # Errors
    /// [`CgroupError::Join`].
    pub fn join(&self, pid: u32) -> Result<(), CgroupError> {
        let process = CgroupPid {
            pid: u64::from(pid),
        };
        let joined = self.memory.add_task_by_tgid(&process);
        joined
            .and_then(|()| self.pids.add_task_by_tgid(&process))
            .map_err(|error| CgroupError::Join(pid, error))
    }

    /// Sets the memory limit in bytes. A limit below the usage makes the kernel reclaim memory.
    ///
    /// # Errors
    /// [`CgroupError::Bound`].
    pub fn set(&self, bytes: u64) -> Result<(), CgroupError> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.memory.set_limit(bytes).map_err(CgroupError::Bound)
    }

    /// Removes the group, which must be empty.
    pub fn remove(self) {
        // A group that stays behind is empty and costs nothing.
        let _ = self.memory.delete();
        let _ = self.pids.delete();
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use test_records::{Missing, skip};

    use super::*;

    #[test]
    fn process_above_its_memory_limit_is_killed() {
        let test = "process_above_its_memory_limit_is_killed";
        let group = match BoundGroup::make(&format!("bellows-test/bound-{}", std::process::id())) {
            Ok(group) => group,
            Err(error) => return skip(test, Missing::Cgroup, &error.to_string()),
        };
        group.set(64 << 20).unwrap();
        let taking = |mib: u32| {
            // It waits for a line, so that it is in the group before it allocates.
            let script = format!("read go; head -c {mib}m /dev/zero | tail -c 1000m > /dev/null");
            let mut child = Command::new("sh")
                .args(["-c", &script])
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            group.join(child.id()).unwrap();
            drop(child.stdin.take().map(|mut stdin| {
                use std::io::Write as _;
                stdin.write_all(b"go\n")
            }));
            child.wait().unwrap().success()
        };
        assert!(taking(16), "less than the bound");
        assert!(!taking(400), "more than the bound");
        group.remove();
    }
}
