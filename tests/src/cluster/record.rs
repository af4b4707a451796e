//! Processes of a cluster, recorded in a file in its directory, so that another command can end
//! exactly those.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::files::private_file;

/// Longest time until a killed process is gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process of a control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The network between nodes, held open by a process.
    Switch,
    /// The store of the API server, `etcd`.
    Etcd,
    /// The API server, `kube-apiserver`.
    ApiServer,
    /// Kubernetes' controllers, `kube-controller-manager`.
    Controllers,
    /// Kubernetes' scheduler, `kube-scheduler`.
    Scheduler,
    /// The relay from this machine to the API server on the nodes' network.
    Relay,
    /// A node of this number, with everything that runs on it.
    Node(u8),
}

impl Part {
    /// Name of the program.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Self::Switch => "switch",
            Self::Relay => "relay",
            Self::Node(1) => "node-1",
            Self::Node(2) => "node-2",
            Self::Node(_) => "node",
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::Controllers => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
        }
    }

    /// CPU request of the component's pod in kubeadm, in thousandths. It is the component's share
    /// of a busy machine. Source: kubeadm's static pods.
    #[must_use]
    pub(super) const fn milli_cpu(self) -> u32 {
        match self {
            Self::ApiServer => 250,
            Self::Controllers => 200,
            _ => 100,
        }
    }
}

/// A started process. The kernel reuses PIDs, but not with the same start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) part: Part,
    pub(super) pid: i32,
    started_ticks: u64,
}

impl Known {
    /// The process of this number, which runs.
    pub(super) fn of(part: Part, pid: u32) -> Result<Self> {
        let pid = i32::try_from(pid).context("a process id")?;
        let started_ticks = started(pid).context("it has ended already")?;
        Ok(Self {
            part,
            pid,
            started_ticks,
        })
    }

    /// Whether it runs. A process that has ended and was not waited for does not.
    pub(super) fn runs(self) -> bool {
        started(self.pid) == Some(self.started_ticks)
    }

    fn resident_mib(self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: u64 = line?.split_whitespace().next()?.parse().ok()?;
        Some(kib >> 10)
    }

    /// Kills the process and waits until it is gone. Its data is thrown away, and a graceful
    /// kube-apiserver would wait for every watch.
    pub(super) fn kill(self) -> Result<()> {
        if !self.runs() {
            return Ok(());
        }
        kill(Pid::from_raw(self.pid), Signal::SIGKILL)?;
        let began = Instant::now();
        while self.runs() {
            if began.elapsed() > PATIENCE {
                bail!("{} ({}) does not end", self.part.program(), self.pid);
            }
            // Poll interval of a level-triggered wait.
            std::thread::park_timeout(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// Ticks from boot to the start of a process that runs.
fn started(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, which may hold anything, ends with the last parenthesis.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let is_dead = matches!(fields.next()?, "Z" | "X");
    let ticks = fields.nth(18)?.parse().ok()?;
    (!is_dead).then_some(ticks)
}

fn path(dir: &Path) -> PathBuf {
    dir.join("processes.json")
}

/// Writes down which processes belong to the cluster in `dir`.
pub(super) fn write(dir: &Path, known: &[Known]) -> Result<()> {
    private_file(&path(dir), &serde_json::to_string_pretty(known)?)
}

fn read(dir: &Path) -> Result<Vec<Known>> {
    match std::fs::read_to_string(path(dir)) {
        Ok(text) => serde_json::from_str(&text)
            .with_context(|| format!("{} is damaged", path(dir).display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path(dir).display())),
    }
}

/// The parts of the cluster in `dir` that run, with their process ids and resident MiB.
///
/// # Errors
/// When its record cannot be read.
pub fn running(dir: &Path) -> Result<Vec<(Part, i32, u64)>> {
    let known = read(dir)?.into_iter().filter(|known| known.runs());
    Ok(known
        .map(|known| (known.part, known.pid, known.resident_mib().unwrap_or(0)))
        .collect())
}

/// Ends the processes that were started for the cluster in `dir`, and no others. Returns those that
/// ran.
///
/// # Errors
///
/// If the record cannot be read, or a process cannot be ended.
pub fn end(dir: &Path) -> Result<Vec<Part>> {
    let mut ended = Vec::new();
    // Clients end first, so that they log no lost connection.
    for known in read(dir)?.into_iter().rev().filter(|known| known.runs()) {
        known.kill()?;
        ended.push(known.part);
    }
    super::groups::remove_groups(dir)?;
    write(dir, &[])?;
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_started_processes_are_ended() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut child = Command::new("sleep").arg("1000").spawn().expect("starts");
        let known = Known::of(Part::Etcd, child.id()).expect("it runs");
        let another = Known {
            started_ticks: known.started_ticks + 1,
            ..known
        };
        write(dir.path(), &[another]).expect("writes");
        assert!(running(dir.path()).expect("reads").is_empty());
        assert!(end(dir.path()).expect("ends").is_empty());
        assert!(known.runs(), "another process of that number was ended");

        write(dir.path(), &[known]).expect("writes");
        assert_eq!(running(dir.path()).expect("reads").len(), 1);
        assert_eq!(end(dir.path()).expect("ends"), [Part::Etcd]);
        assert!(!known.runs());
        assert!(!child.wait().expect("waits").success());
        assert!(end(dir.path()).expect("ends").is_empty());
    }

    #[test]
    fn a_damaged_record_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(running(dir.path()).expect("nothing was started").is_empty());
        private_file(&path(dir.path()), "[{").expect("writes");
        let error = end(dir.path()).expect_err("it is damaged").to_string();
        assert!(error.contains("processes.json is damaged"), "{error}");
    }
}
