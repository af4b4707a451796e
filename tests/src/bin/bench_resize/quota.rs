//! The control group that holds a guest to its CPUs' time.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

/// Longest time until a quota changes.
const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until the quota of a control group is that of this many CPUs or more; when it was.
pub(crate) async fn has_quota(group: &Path, cpus: u32) -> Result<Instant> {
    let began = Instant::now();
    while !Quota::read(group)?.allows(cpus) {
        ensure!(
            began.elapsed() < PATIENCE,
            "the quota stays {:?}",
            Quota::read(group)
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(Instant::now())
}

/// The control group that shares out a process's CPU time.
pub(crate) fn group_of(pid: i32) -> Result<PathBuf> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let found = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let is_it = controllers.is_empty() || controllers.split(',').any(|it| it == "cpu");
        let group = Path::new("/sys/fs/cgroup")
            .join(controllers)
            .join(path.trim_start_matches('/'));
        (is_it && group.is_dir()).then_some(group)
    });
    found.with_context(|| format!("the control group of {pid}"))
}

/// A quota of CPU time, microseconds.
#[derive(Debug)]
struct Quota {
    /// `None`: as much as there is.
    quota_us: Option<u64>,
    period_us: u64,
    /// The file that a quota is written to, and whether the period stands beside it (cgroup v2).
    file: PathBuf,
    has_period: bool,
}

impl Quota {
    fn read(group: &Path) -> Result<Self> {
        let read = |name: &str| std::fs::read_to_string(group.join(name));
        // Without a limit, version 1 has -1 and version 2 `max`.
        let limit = |text: &str| text.trim().parse::<u64>().ok().filter(|us| *us > 0);
        if let Ok(line) = read("cpu.max") {
            let (quota, period) = line.trim().split_once(' ').context("cpu.max")?;
            return Ok(Self {
                quota_us: limit(quota),
                period_us: period.parse().context("cpu.max")?,
                file: group.join("cpu.max"),
                has_period: true,
            });
        }
        let period = read("cpu.cfs_period_us").context("no quota of CPU time")?;
        Ok(Self {
            quota_us: limit(&read("cpu.cfs_quota_us")?),
            period_us: period.trim().parse().context("cpu.cfs_period_us")?,
            file: group.join("cpu.cfs_quota_us"),
            has_period: false,
        })
    }

    fn allows(&self, cpus: u32) -> bool {
        let wanted = u64::from(cpus) * self.period_us;
        self.quota_us.is_none_or(|quota| quota >= wanted)
    }

    fn write(&self, quota_us: u64) -> Result<()> {
        let text = if self.has_period {
            format!("{quota_us} {}", self.period_us)
        } else {
            quota_us.to_string()
        };
        std::fs::write(&self.file, &text)
            .with_context(|| format!("failed to write {text} to {}", self.file.display()))
    }
}

/// A quota that is raised until this is dropped.
pub(crate) struct Raised(Quota);

impl Raised {
    /// Raises a group's quota to the time of this many CPUs; `None`: it has that already.
    pub(crate) fn to(group: &Path, cpus: u32) -> Result<Option<Self>> {
        let before = Quota::read(group)?;
        if before.allows(cpus) {
            return Ok(None);
        }
        before.write(u64::from(cpus) * before.period_us)?;
        Ok(Some(Self(before)))
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        // A group that has gone needs no quota.
        let _ = self.0.quota_us.map(|quota_us| self.0.write(quota_us));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_of_version_2_is_raised_and_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cpu.max");
        let shown = || std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, "100000 100000\n").unwrap();
        let raised = Raised::to(dir.path(), 4).unwrap();
        assert_eq!(shown(), "400000 100000");
        drop(raised);
        assert_eq!(shown(), "100000 100000");
    }

    #[test]
    fn quota_of_version_1_is_raised_and_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cpu.cfs_quota_us");
        let shown = || std::fs::read_to_string(&file).unwrap();
        std::fs::write(dir.path().join("cpu.cfs_period_us"), "50000\n").unwrap();
        std::fs::write(&file, "50000\n").unwrap();
        let raised = Raised::to(dir.path(), 2).unwrap();
        assert_eq!(shown(), "100000");
        drop(raised);
        assert_eq!(shown(), "50000");
    }

    #[test]
    fn quota_that_is_high_enough_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["400000 100000\n", "max 100000\n"] {
            let file = dir.path().join("cpu.max");
            std::fs::write(&file, text).unwrap();
            assert!(Raised::to(dir.path(), 4).unwrap().is_none());
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
    }

    #[test]
    fn group_without_a_quota_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Raised::to(dir.path(), 4).is_err());
    }
}
