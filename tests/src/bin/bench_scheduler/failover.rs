//! Two replicas, the embedded API server and one Lease as shipped: the time without permitted
//! increases when the leader ends. With very many VMs these are simulated (`api`), and only the
//! Lease is real.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bellows_tests::kubeconfig::client_of;
use bellows_tests::patience::wait_for;
use bellows_tests::process::Process;
use bellows_tests::site::vm_resource;
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::api::{Played, PlayedApi, name};
use super::readiness::addresses;

/// End of the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Kill,
    /// SIGTERM. The leader hands over.
    Term,
}

/// Longest gap that is waited for.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two attempts of the client.
const PACE: Duration = Duration::from_millis(2);
/// A follower that has just come is left alone for so long, as in a rolling update, and until it
/// has listed all.
const SETTLE: Duration = Duration::from_secs(3);
/// Log line of a follower that is ready to take over.
const LISTED: &str = "all is listed for a hand-over";

struct Site {
    dir: TempDir,
    bin_dir: PathBuf,
    http: reqwest::Client,
    started: usize,
    permit: u32,
    kubeconfig: PathBuf,
    /// Pod of the permit requests.
    pod: String,
    _api: Process,
}

struct Replica {
    process: Process,
    permits: String,
    ready: String,
}

#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// Milliseconds from each leader's end to the first increase permitted by the other.
    pub(super) gaps: Vec<f64>,
    /// Bytes resident in each follower that had listed all.
    pub(super) waiting: Vec<u64>,
}

/// Ends leaders repeatedly, with a number of VMs known.
pub(super) async fn gaps(bin_dir: &Path, end: End, rounds: usize, vms: usize) -> Result<Gaps> {
    let mut site = Site::start(bin_dir, vms).await?;
    let mut leader = site.replica()?;
    site.grown(&leader, Instant::now()).await?;
    let mut follower = site.replica()?;
    let mut found = Gaps::default();
    for _ in 0..rounds {
        tokio::time::sleep(SETTLE).await;
        site.until_listed(&follower).await?;
        found.waiting.push(follower.process.rss()?);
        site.grown(&leader, Instant::now()).await?;
        let began = Instant::now();
        match end {
            End::Kill => drop(leader),
            End::Term => leader.process.terminate()?,
        }
        found.gaps.push(site.grown(&follower, began).await?);
        leader = follower;
        follower = site.replica()?;
    }
    Ok(found)
}

impl Site {
    async fn start(bin_dir: &Path, vms: usize) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let mut api = Process::start(
            Command::new(bin_dir.join("neonvm-apiserver"))
                .arg("--state-dir")
                .arg(dir.path())
                .args(["--listen", "127.0.0.1:0"]),
            std::fs::File::create(dir.path().join("api.log"))?,
        )?;
        api.first_line()?;
        let mut path = dir.path().join("kubeconfig");
        let client = client_of(&path).await?;
        let pod = if vms == 1 {
            populate(client).await?;
            "vm-pod".to_owned()
        } else {
            let played = PlayedApi::start(Played {
                count: vms,
                tells: true,
                leases: Some(client),
                core: None,
            })?;
            path = dir.path().join("played.kubeconfig");
            std::fs::write(&path, played.kubeconfig())?;
            format!("{}-pod", name(0))
        };
        Ok(Self {
            kubeconfig: path,
            pod,
            dir,
            bin_dir: bin_dir.to_owned(),
            http: reqwest::Client::builder()
                .timeout(Duration::from_secs(3))
                .build()?,
            started: 0,
            permit: 1,
            _api: api,
        })
    }

    fn replica(&mut self) -> Result<Replica> {
        self.started += 1;
        let name = format!("replica-{}", self.started);
        let mut process = Process::start(
            Command::new(self.bin_dir.join("autoscale-scheduler"))
                .args(["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"])
                .env("SCHEDULER_PERMITS_FOR_ANYONE", "true")
                .args(["--lease", "own", "--lease-host", &name])
                .env("KUBECONFIG", &self.kubeconfig),
            std::fs::File::create(self.dir.path().join(format!("{name}.log")))?,
        )?;
        let (permits, ready) = addresses(&process.first_line()?)?;
        Ok(Replica {
            process,
            ready,
            permits: format!("http://{permits}/"),
        })
    }

    async fn until_listed(&self, follower: &Replica) -> Result<()> {
        wait_for("a follower that has listed all", PATIENCE, || async {
            let answer = self.http.get(&follower.ready).send().await;
            let answer = answer.map_err(|error| error.to_string())?;
            let said = answer.text().await.unwrap_or_default();
            said.contains(LISTED).then_some(()).ok_or(said)
        })
        .await
    }

    /// Asks one replica for one unit more, or less, until it permits more; milliseconds since
    /// `began`.
    async fn grown(&mut self, replica: &Replica, began: Instant) -> Result<f64> {
        while began.elapsed() < PATIENCE {
            let wish = if self.permit == 1 { 2 } else { 1 };
            if let Some(permit) = self.ask(replica, wish).await? {
                let grown = permit > self.permit;
                self.permit = permit;
                if grown {
                    return Ok(began.elapsed().as_secs_f64() * 1e3);
                }
                continue;
            }
            tokio::time::sleep(PACE).await;
        }
        bail!("nobody permits anything any more")
    }

    async fn ask(&self, replica: &Replica, wish: u32) -> Result<Option<u32>> {
        let size =
            |units: u32| json!({"vCPUs": format!("{}m", 250 * units), "mem": format!("{units}Gi")});
        let body = json!({"protoVersion": 7, "pod": {"namespace": "default", "name": self.pod},
            "computeUnit": size(1), "resources": size(wish), "lastPermit": size(self.permit), "metrics": null});
        let Ok(answer) = self
            .http
            .post(&replica.permits)
            .body(body.to_string())
            .send()
            .await
        else {
            return Ok(None);
        };
        if answer.status() != 200 {
            return Ok(None);
        }
        let answer: Value = serde_json::from_str(&answer.text().await?)?;
        let permit: protocol::permit::PluginResponse = serde_json::from_value(answer)?;
        Ok(Some(permit.permit.cpu.0 / 250))
    }
}

/// A node and a running VM.
async fn populate(client: kube::Client) -> Result<()> {
    let core = |kind: &str| ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", kind));
    let guest = json!({"cpus": {"min": "250m", "max": 4, "use": "250m"}, "memorySlotSize": "1Gi",
        "memorySlots": {"min": 1, "max": 16, "use": 1}, "rootDisk": {"image": "x"}});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n-1"},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "100"}}});
    create(&Api::all_with(client.clone(), &core("Node")), node).await?;
    let vm = json!({"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "metadata": {"name": "vm", "namespace": "default", "labels": {"autoscaling.neon.tech/enabled": "true"}},
        "spec": {"schedulerName": "autoscale-scheduler", "guest": guest}});
    let made = create(
        &Api::namespaced_with(client.clone(), "default", &vm_resource()),
        vm,
    )
    .await?;
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "vm-pod", "namespace": "default",
            "labels": {"autoscaling.neon.tech/enabled": "true", "vm.neon.tech/name": "vm"},
            "annotations": {"vm.neon.tech/resources": guest.to_string()},
            "ownerReferences": [{"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": "vm",
                "uid": made.metadata.uid, "controller": true}]},
        "spec": {"schedulerName": "autoscale-scheduler", "nodeName": "n-1",
            "containers": [{"name": "runner", "image": "runner"}]},
        "status": {"phase": "Running"}});
    create(&Api::namespaced_with(client, "default", &core("Pod")), pod).await?;
    Ok(())
}

/// Creates an object, then its status.
async fn create(api: &Api<DynamicObject>, object: Value) -> Result<DynamicObject> {
    let status = object.get("status").cloned();
    let made: DynamicObject = api
        .create(&PostParams::default(), &serde_json::from_value(object)?)
        .await?;
    if let Some(status) = status {
        let name = made.metadata.name.as_deref().context("it has a name")?;
        let status = Patch::Merge(json!({ "status": status }));
        api.patch_status(name, &PatchParams::default(), &status)
            .await?;
    }
    Ok(made)
}
