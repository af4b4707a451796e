//! Environment of the measured guest: under `bellows up` of this machine, or in a pod of a cluster.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bellows_tests::cluster::{Cluster, nodes_or_skip};
use bellows_tests::guest::Guest;
use bellows_tests::patience::wait_for;
use bellows_tests::runner_state::runner_state;
use bellows_tests::site::{Site, postgres_vm};
use bellows_tests::vms::Vms;
use nix::unistd::Pid;
use protocol::runner::{QuotaState, RunnerState};
use serde_json::{Value, json};

use super::quota::group_of;

/// The VM that is measured.
pub(crate) const VM: &str = "bench";
/// Longest time until a guest is running or gone.
const PATIENCE: Duration = Duration::from_secs(180);
/// By how much the guest's CPUs are over-committed in a cluster.
const OVERCOMMIT: u32 = 8;
/// A runner's directory in its pod.
const RUNDIR: &str = "vm/images/run";

/// See the module.
pub(crate) enum Environment {
    /// Under `bellows up`.
    Machine(Box<Site>),
    /// In a cluster, on whose network this process is.
    Cluster(Box<Pods>),
}

/// A cluster and its VMs.
pub(crate) struct Pods {
    cluster: Cluster,
    vms: Vms,
    /// Directory of the cluster. It is dropped after the cluster.
    _dir: tempfile::TempDir,
}

impl Environment {
    pub(crate) async fn machine() -> Result<Self> {
        Ok(Self::Machine(Box::new(Site::fresh().await?)))
    }

    /// A cluster of one node with all our components.
    pub(crate) async fn cluster() -> Result<Self> {
        let (programs, kit) =
            nodes_or_skip("bench cluster").context("there is nothing to make a cluster of")?;
        let dir = tempfile::tempdir()?;
        let cluster = Cluster::with_our_images(programs, &kit, dir.path(), 1).await?;
        cluster.deploy().await.with_context(|| cluster.logs())?;
        let vms = Vms::new(cluster.enter().await?);
        Ok(Self::Cluster(Box::new(Pods {
            cluster,
            vms,
            _dir: dir,
        })))
    }

    /// The name of the benchmark here.
    pub(crate) fn bench(&self) -> &'static str {
        match self {
            Self::Machine(_) => "resize",
            Self::Cluster(_) => "cluster",
        }
    }

    pub(crate) fn vms(&self) -> Vms {
        match self {
            Self::Machine(site) => site.vms(),
            Self::Cluster(pods) => pods.vms.clone(),
        }
    }

    /// The VM that is measured, at its smallest.
    pub(crate) fn object(&self) -> Value {
        let mut object = postgres_vm(VM, (1000, 1000, 4000), (1, 1, 4), false);
        if let Self::Cluster(_) = self {
            object["spec"]["guest"]["rootDisk"]["image"] = json!("bellows/vm-postgres:15");
            // The node is this machine, which is smaller than the largest size. No other VM runs.
            object["spec"]["overcommit"] = json!({"cpu": OVERCOMMIT});
        }
        object
    }

    /// Ends the guest and waits until it is gone.
    pub(crate) async fn end_guest(&self) -> Result<()> {
        self.vms().delete(VM, PATIENCE).await?;
        if let Self::Cluster(pods) = self {
            wait_for("no QEMU", PATIENCE, || async {
                let left = pods.cluster.qemus();
                if left.is_empty() {
                    Ok(())
                } else {
                    Err(format!("{left:?}"))
                }
            })
            .await?;
        }
        Ok(())
    }

    /// The runner's directory as this process sees it.
    pub(crate) async fn rundir(&self) -> Result<PathBuf> {
        match self {
            Self::Machine(site) => site.rundir(VM).await,
            Self::Cluster(pods) => {
                let qemu = pods.qemu()?;
                Ok(Path::new("/proc")
                    .join(qemu.to_string())
                    .join("root")
                    .join(RUNDIR))
            }
        }
    }

    /// Process of the runner.
    pub(crate) async fn runner_process(&self) -> Result<Pid> {
        match self {
            Self::Machine(_) => runner_of(&self.rundir().await?),
            // In its pod the runner is the parent of QEMU.
            Self::Cluster(pods) => parent(pods.qemu()?),
        }
    }

    /// The control group of QEMU's own whose quota holds the guest, where there is one. Looked up
    /// before a step, because all processes are searched for it in a cluster.
    pub(crate) async fn quota_group(&self) -> Result<Option<PathBuf>> {
        let state = self.runner().await?;
        let QuotaState::Enforced { .. } = state.quota else {
            return Ok(None);
        };
        let qemu = match self {
            Self::Machine(_) => i32::try_from(state.qemu_pid.context("QEMU runs")?)?,
            Self::Cluster(pods) => pods.qemu()?,
        };
        group_of(qemu).map(Some)
    }

    /// The guest at this address.
    pub(crate) fn guest(&self, ip: IpAddr) -> Result<Guest> {
        match self {
            Self::Machine(_) => Guest::new(ip),
            Self::Cluster(pods) => {
                let network = format!("/proc/{}/ns/net", pods.qemu()?);
                Guest::in_pod(ip, Path::new(&network))
            }
        }
    }

    /// State of the runner.
    pub(crate) async fn runner(&self) -> Result<RunnerState> {
        runner_state(&self.rundir().await?).await
    }

    /// Recorded stages of resizes. `None` if no instance serves them.
    pub(crate) async fn resizes(&self) -> Result<Option<Value>> {
        let Self::Machine(site) = self else {
            return Ok(None);
        };
        let arguments = ["resizes", "--vm", VM, "--last", "200", "--output", "json"];
        Ok(Some(serde_json::from_str(
            &site.bellows(&arguments).await?,
        )?))
    }
}

impl Pods {
    /// The only QEMU there is.
    fn qemu(&self) -> Result<i32> {
        let all = self.cluster.qemus();
        ensure!(all.len() == 1, "there are QEMUs {all:?}");
        all.first().copied().context("there is none")
    }
}

fn parent(pid: i32) -> Result<Pid> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    Ok(Pid::from_raw(
        line.context("it has a parent")?.trim().parse()?,
    ))
}

fn runner_of(rundir: &Path) -> Result<Pid> {
    let wanted = rundir.to_string_lossy().into_owned();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        let words: Vec<String> = line
            .split(|byte| *byte == 0)
            .map(|w| String::from_utf8_lossy(w).into_owned())
            .collect();
        if words.contains(&wanted) && !words[0].contains("qemu") {
            return Ok(Pid::from_raw(pid));
        }
    }
    anyhow::bail!("no runner process for {wanted}")
}
