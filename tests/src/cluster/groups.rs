//! Control groups of a cluster: their names, their members and their removal.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use procfs::process::Process;

/// Interval between two looks at something that another process changes.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Longest time for which control groups of killed processes may stay in use.
const GROUPS_PATIENCE: Duration = Duration::from_secs(20);

const HIERARCHIES: &str = "/sys/fs/cgroup";

/// Prefix of the names of all clusters' control groups.
const GROUP: &str = "bellows-cluster-";

/// The name of a cluster's control group, the same for the same directory.
pub(super) fn group(dir: &Path) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in dir.as_os_str().as_encoded_bytes() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{GROUP}{hash:016x}")
}

/// Whether a process is in the control group of this name, or in one below it.
pub(super) fn is_in_group(process: &Process, name: &str) -> bool {
    let groups = process.cgroups().into_iter().flat_map(|groups| groups.0);
    let mut paths = groups.map(|group| group.pathname);
    paths.any(|path| path.split('/').any(|part| part == name))
}

/// Waits until no process is in the control groups of the cluster in `dir`, and removes them.
pub(super) fn remove_groups(dir: &Path) -> Result<()> {
    let name = group(&dir.canonicalize().unwrap_or_else(|_| dir.to_owned()));
    let began = Instant::now();
    loop {
        let left = groups().into_iter().filter(|group| group.ends_with(&name));
        let left: Vec<PathBuf> = left.filter(|group| !remove_tree(group)).collect();
        match left.first() {
            None => return Ok(()),
            Some(group) if began.elapsed() > GROUPS_PATIENCE => {
                bail!("{} is still in use", group.display())
            }
            // The killed processes in it are still ending.
            Some(_) => std::thread::park_timeout(POLL_INTERVAL),
        }
    }
}

/// Removes the unused control groups of clusters that were killed.
pub(super) fn sweep_groups() {
    for group in groups() {
        if is_unused(&group) {
            remove_tree(&group);
        }
    }
}

/// The control groups of all clusters, in all hierarchies.
fn groups() -> Vec<PathBuf> {
    let list = |dir: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).into_iter().flatten();
        entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect()
    };
    let top = list(Path::new(HIERARCHIES));
    let below = top.iter().flat_map(|dir| list(dir)).collect::<Vec<_>>();
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(GROUP) && path.is_dir()
    };
    top.into_iter().chain(below).filter(is_ours).collect()
}

fn is_unused(group: &Path) -> bool {
    let is_empty =
        std::fs::read_to_string(group.join("cgroup.procs")).is_ok_and(|list| list.is_empty());
    is_empty && directories(group).iter().all(|inner| is_unused(inner))
}

/// Removes a group and its subgroups, except those in use. Returns whether it is gone.
fn remove_tree(group: &Path) -> bool {
    for inner in directories(group) {
        remove_tree(&inner);
    }
    std::fs::remove_dir(group).is_ok() || !group.exists()
}

fn directories(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let inner = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    inner.map(|entry| entry.path()).collect()
}
