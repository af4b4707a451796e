//! Finds the cgroup of this process, as its container shows it.
//!
//! A container runtime mounts the container's own group, and nothing above it, read-only at
//! `/sys/fs/cgroup`. With CAP_SYS_ADMIN it can be made writable; that reaches no other container.
//! If the whole hierarchy is mounted instead (a `hostPath`), the group is somewhere below. With a
//! cgroup namespace the group cannot be found there.

use std::path::{Component, Path, PathBuf};

use nix::mount::{MsFlags, mount};
use procfs::process::{MountInfo, Process};
use procfs::{ProcError, ProcessCGroups};

const CPU: &str = "cpu";

/// Errors of finding or preparing the group.
#[derive(Debug, thiserror::Error)]
pub enum OwnGroupError {
    /// A file below `/proc` cannot be read.
    #[error("cannot read the list of mounts")]
    Read(#[from] ProcError),
    /// No cgroup file system with the CPU controller is mounted.
    #[error("no cgroup with a cpu controller is mounted")]
    NotMounted,
    /// The mount at this path does not contain the group.
    #[error("the mount at {0} does not contain this process's cgroup {1}")]
    NotShown(PathBuf, String),
    /// The mount is read-only and cannot be made writable.
    #[error(
        "cannot make {0} writable, for which the pod needs CAP_SYS_ADMIN and no security profile against mounts"
    )]
    ReadOnly(PathBuf, #[source] nix::Error),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct CgroupMount {
    /// Mount point of its hierarchy.
    mounted: PathBuf,
    /// Path of the group below the mount point; empty if the mount shows the group only.
    below: PathBuf,
    /// Whether the mount is read-only.
    read_only: bool,
}

/// Finds the group and makes its mount writable. Returns its path below the mount point of its
/// hierarchy; empty if the group itself is mounted.
///
/// # Errors
/// [`OwnGroupError`]; the guest then runs without a quota.
pub(super) fn open() -> Result<PathBuf, OwnGroupError> {
    let process = Process::myself()?;
    let place = find(&process.mountinfo()?.0, &process.cgroups()?)?;
    if place.read_only {
        let flags = MsFlags::MS_REMOUNT
            | MsFlags::MS_BIND
            | MsFlags::MS_NOSUID
            | MsFlags::MS_NODEV
            | MsFlags::MS_NOEXEC;
        let none: Option<&Path> = None;
        mount(none, &place.mounted, none, flags, none)
            .map_err(|error| OwnGroupError::ReadOnly(place.mounted, error))?;
    }
    Ok(place.below)
}

/// Version 1 if it has the controller, as on a host with both, else version 2.
fn find(mounts: &[MountInfo], groups: &ProcessCGroups) -> Result<CgroupMount, OwnGroupError> {
    let v1 = mounts
        .iter()
        .find(|mount| mount.fs_type == "cgroup" && mount.super_options.contains_key(CPU));
    let v2 = || mounts.iter().find(|mount| mount.fs_type == "cgroup2");
    let mount = v1.or_else(v2).ok_or(OwnGroupError::NotMounted)?;
    let group = groups.0.iter().find(|group| match v1 {
        Some(_) => group.controllers.iter().any(|name| name == CPU),
        None => group.hierarchy == 0,
    });
    let path = &group.ok_or(OwnGroupError::NotMounted)?.pathname;
    let not_shown = || OwnGroupError::NotShown(mount.mount_point.clone(), path.clone());
    let below = Path::new(path)
        .strip_prefix(&mount.root)
        .map_err(|_| not_shown())?;
    // A path above the root of a namespace is "..".
    let is_named = below
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    if !is_named {
        return Err(not_shown());
    }
    Ok(CgroupMount {
        mounted: mount.mount_point.clone(),
        below: below.to_owned(),
        read_only: mount.mount_options.contains_key("ro"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfs::FromRead;
    use procfs::process::MountInfos;

    fn found(mounts: &str, groups: &str) -> Result<CgroupMount, OwnGroupError> {
        let mounts = MountInfos::from_read(mounts.as_bytes()).unwrap();
        let groups = ProcessCGroups::from_read(groups.as_bytes()).unwrap();
        find(&mounts.0, &groups)
    }

    fn place(mounted: &str, below: &str, read_only: bool) -> CgroupMount {
        CgroupMount {
            mounted: mounted.into(),
            below: below.into(),
            read_only,
        }
    }

    const V2: &str = "40 30 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate";
    const V1: &str = "\
41 40 0:29 /kubepods/pod1/c1 /sys/fs/cgroup/memory ro,nosuid,nodev,noexec - cgroup cgroup rw,memory
42 40 0:30 /kubepods/pod1/c1 /sys/fs/cgroup/cpu,cpuacct ro,nosuid,nodev,noexec - cgroup cgroup rw,cpu,cpuacct
43 40 0:31 /x /sys/fs/cgroup/unified ro,nosuid - cgroup2 cgroup2 rw";
    const V1_GROUPS: &str = "5:memory:/kubepods/pod1/c1\n2:cpu,cpuacct:/kubepods/pod1/c1\n0::/x\n";

    /// Requirement: N20
    #[test]
    fn container_with_its_own_group_mounted_finds_it() {
        let own = place("/sys/fs/cgroup", "", true);
        assert_eq!(found(V2, "0::/\n").unwrap(), own);
        let own = place("/sys/fs/cgroup/cpu,cpuacct", "", true);
        assert_eq!(found(V1, V1_GROUPS).unwrap(), own);
    }

    /// Requirement: N20
    #[test]
    fn group_is_below_a_mount_of_the_whole_hierarchy() {
        let whole = "42 40 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu";
        let below = place("/sys/fs/cgroup/cpu", "kubepods/pod1/c1", false);
        assert_eq!(found(whole, V1_GROUPS).unwrap(), below);
        let whole = "40 30 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw";
        let below = place("/sys/fs/cgroup", "a.slice/b.scope", false);
        assert_eq!(found(whole, "0::/a.slice/b.scope\n").unwrap(), below);
    }

    #[test]
    fn ambiguous_group_is_not_guessed() {
        let whole = "40 30 0:26 /../../.. /sys/fs/cgroup rw - cgroup2 cgroup rw";
        let error = found(whole, "0::/\n").unwrap_err();
        assert!(matches!(error, OwnGroupError::NotShown(..)), "{error}");
        let error = found(V2, "0::/../other\n").unwrap_err();
        assert!(matches!(error, OwnGroupError::NotShown(..)), "{error}");
        let error = found("", "0::/\n").unwrap_err();
        assert!(matches!(error, OwnGroupError::NotMounted), "{error}");
    }
}
