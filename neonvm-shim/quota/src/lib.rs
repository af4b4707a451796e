//! QEMU's cgroup, for its CPU quota and for the limits of its memory and processes. It is below the
//! root of a machine's hierarchy, or in the group of QEMU's container. Versions 1 and 2 are
//! supported.
//!
//! A separate crate, so that a guest, whose cgroups are of version 2, can run its tests.

#![forbid(unsafe_code)]

mod bounds;
mod own;

use cgroups_rs::CgroupPid;
use cgroups_rs::fs::cgroup::{CGROUP_MODE_DOMAIN_INVALID, CGROUP_MODE_THREADED};
use cgroups_rs::fs::cpu::CpuController;
use cgroups_rs::fs::hierarchies;
use cgroups_rs::fs::{Cgroup, Controller};
use protocol::units::MilliCpu;

pub use bounds::BoundGroup;
pub use own::OwnGroupError;

/// Period of the quota in microseconds.
const PERIOD_US: u64 = 100_000;
/// Smallest quota of the kernel in microseconds.
const MIN_QUOTA_US: u64 = 1_000;

/// Errors of making, joining or limiting a cgroup.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The group could not be made.
    #[error("cannot make cgroup {0}")]
    Make(String, #[source] cgroups_rs::fs::error::Error),
    /// The group of this process cannot be used.
    #[error("no cgroup can be made in this process's own")]
    Own(#[from] OwnGroupError),
    /// The group cannot contain processes.
    #[error("cannot make cgroup {0} one of threads")]
    Threaded(String, #[source] cgroups_rs::fs::error::Error),
    /// The hierarchy has no CPU controller at this place.
    #[error("cgroup {0} has no cpu controller")]
    NoController(String),
    /// The hierarchy has no controller of memory or processes at this place.
    #[error("cgroup {0} has no memory controller, or no pids controller")]
    NoBounds(String),
    /// A limit could not be written.
    #[error("cannot write a bound of memory or processes")]
    Bound(#[source] cgroups_rs::fs::error::Error),
    /// The process of this id could not be moved in.
    #[error("cannot move process {0} into its cgroup")]
    Join(u32, #[source] cgroups_rs::fs::error::Error),
    /// This quota in microseconds could not be written.
    #[error("cannot write a CPU quota of {0} us")]
    Quota(u64, #[source] cgroups_rs::fs::error::Error),
}

/// A cgroup with a CPU quota.
#[derive(Debug)]
pub struct QuotaGroup {
    cpu: CpuController,
    /// Path below the hierarchy's root.
    pub path: String,
}

impl QuotaGroup {
    /// Makes the group in the one of this process, or uses an existing one. In a container that is
    /// the container's own.
    ///
    /// # Errors
    /// [`CgroupError::Own`], and those of [`Self::make`].
    pub fn make_in_own(name: &str) -> Result<Self, CgroupError> {
        Self::make(&own::open()?.join(name).to_string_lossy())
    }

    /// Makes the group, or uses an existing one. `path` is relative to the hierarchy's root.
    ///
    /// # Errors
    /// [`CgroupError::Make`], [`CgroupError::NoController`], [`CgroupError::Threaded`].
    pub fn make(path: &str) -> Result<Self, CgroupError> {
        let group = Cgroup::new_with_specified_controllers(
            hierarchies::auto(),
            path,
            Some(vec!["cpu".to_owned()]),
        )
        .map_err(|error| CgroupError::Make(path.to_owned(), error))?;
        let cpu: Option<&CpuController> = group.controller_of();
        let cpu = cpu
            .cloned()
            .ok_or_else(|| CgroupError::NoController(path.to_owned()))?;
        // In version 2 a group with processes of its own can delegate only the CPU controller, and
        // only to threaded groups.
        let kind = cpu.get_cgroup_type();
        if kind.is_ok_and(|kind| kind == CGROUP_MODE_DOMAIN_INVALID) {
            cpu.set_cgroup_type(CGROUP_MODE_THREADED)
                .map_err(|error| CgroupError::Threaded(path.to_owned(), error))?;
        }
        Ok(Self {
            cpu,
            path: path.to_owned(),
        })
    }

    /// Moves a process in, with all its threads.
    ///
    /// # Errors
    /// [`CgroupError::Join`].
    pub fn join(&self, pid: u32) -> Result<(), CgroupError> {
        self.cpu
            .add_task_by_tgid(&CgroupPid {
                pid: u64::from(pid),
            })
            .map_err(|error| CgroupError::Join(pid, error))
    }

    /// Writes the quota: `limit` times `percent`, but at most the parent's. Returns the limit in
    /// force, without the factor.
    ///
    /// # Errors
    /// [`CgroupError::Quota`].
    pub fn set(&self, limit: MilliCpu, percent: u32) -> Result<MilliCpu, CgroupError> {
        let wanted = quota_us(limit, percent);
        let quota = self.quota_above().map_or(wanted, |above| wanted.min(above));
        let signed = i64::try_from(quota).unwrap_or(i64::MAX);
        self.cpu
            .set_cfs_quota_and_period(Some(signed), Some(PERIOD_US))
            .map_err(|error| CgroupError::Quota(quota, error))?;
        Ok(if quota == wanted {
            limit
        } else {
            limit_of(quota, percent)
        })
    }

    /// Version 1 refuses a quota above the parent's, which is a pod's own limit; version 2 enforces
    /// both.
    fn quota_above(&self) -> Option<u64> {
        let above = self.cpu.path().parent().filter(|_| !self.cpu.v2())?;
        let read = |name: &str| {
            std::fs::read_to_string(above.join(name))
                .ok()?
                .trim()
                .parse::<u64>()
                .ok()
        };
        // Without a limit the quota is -1, which does not parse.
        let (quota, period) = (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?);
        quota.saturating_mul(PERIOD_US).checked_div(period)
    }

    /// Removes the group, which must be empty.
    pub fn remove(self) {
        // A group that stays behind is empty and costs nothing.
        let _ = self.cpu.delete();
    }
}

/// Microseconds per [`PERIOD_US`] for a limit and a factor in per cent.
fn quota_us(limit: MilliCpu, percent: u32) -> u64 {
    let strict = u64::from(limit.0).saturating_mul(PERIOD_US / 1000);
    (strict.saturating_mul(u64::from(percent)) / 100).max(MIN_QUOTA_US)
}

/// Limit of a quota from [`quota_us`].
fn limit_of(quota_us: u64, percent: u32) -> MilliCpu {
    let strict = quota_us.saturating_mul(100) / u64::from(percent.max(1));
    let milli = strict.saturating_mul(1000) / PERIOD_US;
    MilliCpu(u32::try_from(milli).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_records::{Missing, skip};

    /// Requirement: N20
    #[test]
    fn quota_is_the_limit_times_the_factor() {
        assert_eq!(quota_us(MilliCpu(250), 100), 25_000);
        assert_eq!(quota_us(MilliCpu(2000), 100), 200_000);
        assert_eq!(quota_us(MilliCpu(250), 400), 100_000);
        assert_eq!(
            quota_us(MilliCpu(1), 100),
            1_000,
            "the kernel takes no less"
        );
        assert_eq!(limit_of(25_000, 100), MilliCpu(250));
        assert_eq!(limit_of(100_000, 400), MilliCpu(250));
    }

    /// A group for this test; `None` after the line that it is skipped.
    fn group(test: &str, name: &str) -> Option<QuotaGroup> {
        match QuotaGroup::make(&format!("bellows-test/{name}-{}", std::process::id())) {
            Ok(group) => Some(group),
            Err(error) => {
                skip(test, Missing::Cgroup, &error.to_string());
                None
            }
        }
    }

    /// Requirement: N20
    /// The kernel of version 1 refuses more than the parent has. Before the fix a guest kept its
    /// former quota.
    #[test]
    fn lower_quota_of_the_parent_also_holds() {
        let test = "lower_quota_of_the_parent_also_holds";
        let Some(above) = group(test, "above") else {
            return;
        };
        let below = QuotaGroup::make(&format!("{}/below", above.path)).unwrap();
        assert_eq!(below.set(MilliCpu(2000), 100).unwrap(), MilliCpu(2000));
        assert_eq!(below.set(MilliCpu(250), 100).unwrap(), MilliCpu(250));
        above.set(MilliCpu(500), 100).unwrap();
        let held = MilliCpu(if above.cpu.v2() { 2000 } else { 500 });
        assert_eq!(below.set(MilliCpu(2000), 100).unwrap(), held);
        assert_eq!(below.set(MilliCpu(250), 100).unwrap(), MilliCpu(250));
        below.remove();
        above.remove();
    }
}
