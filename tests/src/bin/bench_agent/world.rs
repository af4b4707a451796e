//! The processes around the agent and the objects it finds: API server, scheduler, one node, many
//! VMs with their pods.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bellows_tests::kubeconfig::client_of;
use bellows_tests::patience::wait_for;
use bellows_tests::process::Process;
use bellows_tests::site::vm_resource;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::guests::{self, METRICS_PORT, MONITOR_PORT};

/// Largest size of a VM, compute units of 250m and 1 GiB; the smallest is one.
pub(super) const MAX_UNITS: u32 = 8;
/// Concurrent creations of objects.
const CREATE_AT_ONCE: usize = 32;
/// Longest time until a process is ready.
const START: Duration = Duration::from_secs(60);
const NODE: &str = "bench";

/// The processes and guests around the agent.
pub(super) struct World {
    dir: TempDir,
    pub(super) bin_dir: PathBuf,
    block: u8,
    pub(super) client: kube::Client,
    permits: std::net::SocketAddr,
    http: reqwest::Client,
    _scheduler: Process,
    _api: Process,
}

/// What an agent has beyond the shipped configuration.
#[derive(Default)]
pub(super) struct Extra {
    /// Most open files.
    pub open_files: Option<u64>,
    /// Section `policies` of the configuration.
    pub policies: Option<Value>,
    /// Folder of a decision journal.
    pub journal: Option<PathBuf>,
}

/// A running agent.
pub(super) struct Agent {
    pub(super) process: Process,
    log: PathBuf,
    metrics: String,
    /// Addresses of its pages.
    pub(super) servers: [String; 2],
    http: reqwest::Client,
}

impl World {
    /// Starts API server and scheduler, and creates a node with capacity for all VMs.
    pub(super) async fn start(bin_dir: &Path, block: u8) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("bellows-bench-")
            .tempdir()?;
        let mut api = Process::start(
            Command::new(bin_dir.join("neonvm-apiserver"))
                .arg("--state-dir")
                .arg(dir.path())
                .args(["--listen", &format!("127.{block}.0.1:0")]),
            std::fs::File::create(dir.path().join("api.log"))?,
        )?;
        api.first_line()?;
        let kubeconfig = dir.path().join("kubeconfig");
        let client = client_of(&kubeconfig).await?;
        let node = json!({
            "metadata": { "name": NODE },
            "status": {
                "allocatable": { "cpu": "100000", "memory": "100Ti", "pods": "10000" },
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        });
        create(&Api::all_with(client.clone(), &core("Node")), &node).await?;
        let mut scheduler = Process::start(
            Command::new(bin_dir.join("autoscale-scheduler"))
                .args(["--listen", &format!("127.{block}.0.2:0")])
                .args(["--metrics-listen", &format!("127.{block}.0.2:0")])
                .args(["--takeover-wait-ms", "0"])
                .env("SCHEDULER_PERMITS_FOR_ANYONE", "true")
                .env("KUBECONFIG", &kubeconfig),
            std::fs::File::create(dir.path().join("scheduler.log"))?,
        )?;
        let said: Value = serde_json::from_str(&scheduler.first_line()?)?;
        let permits: std::net::SocketAddr = said["permits"]
            .as_str()
            .context("no permit port")?
            .parse()?;
        let pod = json!({
            "metadata": {
                "name": "autoscale-scheduler-bench", "namespace": "kube-system",
                "labels": { "name": "autoscale-scheduler" },
            },
            "spec": { "nodeName": NODE, "containers": [{ "name": "scheduler", "image": "scheduler" }] },
            "status": {
                "phase": "Running", "podIP": permits.ip().to_string(),
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        });
        let pods = Api::namespaced_with(client.clone(), "kube-system", &core("Pod"));
        create(&pods, &pod).await?;
        Ok(Self {
            dir,
            bin_dir: bin_dir.to_owned(),
            block,
            client,
            permits,
            http: reqwest::Client::new(),
            _scheduler: scheduler,
            _api: api,
        })
    }

    pub(super) fn vms(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), "default", &vm_resource())
    }

    /// Makes running VMs of the smallest size, with their pods.
    pub(super) async fn populate(&self, count: usize) -> Result<()> {
        let (vms, pods) = (
            self.vms(),
            Api::namespaced_with(self.client.clone(), "default", &core("Pod")),
        );
        futures::stream::iter(0..count)
            .map(|n| {
                let (vms, pods, ip) = (&vms, &pods, guests::address(self.block, n).to_string());
                async move {
                    let made = create(vms, &vm(n, &ip)).await?;
                    create(pods, &pod(n, &ip, made.metadata.uid.as_deref())).await
                }
            })
            .buffer_unordered(CREATE_AT_ONCE)
            .try_for_each(|_| async { Ok(()) })
            .await
    }

    /// Path of a file or folder that lives as long as the world.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn agent(&self, extra: &Extra) -> Result<Agent> {
        let (config, log) = (self.path("agent.json"), self.path("agent.log"));
        let mut settings = agent_config(self.permits.port());
        if let Some(policies) = &extra.policies {
            settings["policies"] = policies.clone();
        }
        std::fs::write(&config, settings.to_string())?;
        let address = format!("127.{}.0.3", self.block);
        let program = self.bin_dir.join("autoscaler-agent");
        let mut command = match extra.open_files {
            None => Command::new(program),
            Some(limit) => {
                let mut command = Command::new("prlimit");
                command
                    .arg(format!("--nofile={limit}:{limit}"))
                    .arg(program);
                command
            }
        };
        if let Some(folder) = &extra.journal {
            command.env("BELLOWS_JOURNAL_DIR", folder);
        }
        let process = Process::start(
            command
                .env("CONFIG_PATH", &config)
                .env("K8S_NODE_NAME", NODE)
                .env("K8S_POD_IP", &address)
                .env("KUBECONFIG", self.path("kubeconfig")),
            std::fs::File::create(&log)?,
        )?;
        Ok(Agent {
            process,
            log,
            servers: [9100, 9101].map(|port| format!("{address}:{port}")),
            metrics: format!("http://{address}:9100/metrics"),
            http: self.http.clone(),
        })
    }

    /// Waits until the scheduler has answered every VM once.
    pub(super) async fn permitted(&self, agent: &Agent, count: usize) -> Result<()> {
        wait_for("a permit for every VM", START, || async {
            let name = "autoscaling_agent_scheduler_plugin_requests_total{code=\"200\"}";
            match agent.counter(name).await {
                Ok(answers) if answers >= as_f64(count) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }
}

impl Agent {
    /// A counter of its metrics page.
    pub(super) async fn counter(&self, name: &str) -> Result<f64> {
        let page = self.http.get(&self.metrics).send().await?.text().await?;
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        let value = line.with_context(|| format!("no {name} on the page"))?;
        Ok(value.trim().parse()?)
    }

    /// Bytes in the log.
    pub(super) fn logged(&self) -> Result<u64> {
        Ok(std::fs::metadata(&self.log)?.len())
    }
}

/// Name of VM `n`.
pub(super) fn name(n: usize) -> String {
    format!("vm-{n:04}")
}

fn core(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", kind))
}

/// Creates an object, then its status.
async fn create(api: &Api<DynamicObject>, object: &Value) -> Result<DynamicObject> {
    let resource = api.resource_url();
    let mut whole = object.clone();
    let kind = kind_of(resource)?;
    whole["apiVersion"] = json!(kind.0);
    whole["kind"] = json!(kind.1);
    let parsed: DynamicObject = serde_json::from_value(whole)?;
    let made = api.create(&PostParams::default(), &parsed).await?;
    let name = made.metadata.name.clone().unwrap_or_default();
    let status = Patch::Merge(json!({ "status": object["status"] }));
    api.patch_status(&name, &PatchParams::default(), &status)
        .await?;
    Ok(made)
}

/// `apiVersion` and `kind` behind a resource's address.
fn kind_of(url: &str) -> Result<(&'static str, &'static str)> {
    match url.rsplit('/').next() {
        Some("nodes") => Ok(("v1", "Node")),
        Some("pods") => Ok(("v1", "Pod")),
        Some("virtualmachines") => Ok(("vm.neon.tech/v1", "VirtualMachine")),
        _ => anyhow::bail!("no kind known for {url}"),
    }
}

fn guest() -> Value {
    json!({
        "cpus": { "min": "250m", "max": format!("{}m", 250 * MAX_UNITS), "use": "250m" },
        "memorySlotSize": "1Gi",
        "memorySlots": { "min": 1, "max": MAX_UNITS, "use": 1 },
        "rootDisk": { "image": "bench" },
    })
}

fn vm(n: usize, ip: &str) -> Value {
    let name = name(n);
    json!({
        "metadata": {
            "name": name, "namespace": "default",
            "labels": { "autoscaling.neon.tech/enabled": "true", "neon/endpoint-id": format!("ep-{n}") },
        },
        "spec": { "schedulerName": "autoscale-scheduler", "guest": guest() },
        "status": {
            "phase": "Running", "podName": format!("{name}-pod"), "podIP": ip, "node": NODE,
            "cpus": "250m", "memorySize": "1Gi",
        },
    })
}

fn pod(n: usize, ip: &str, vm_uid: Option<&str>) -> Value {
    let name = name(n);
    json!({
        "metadata": {
            "name": format!("{name}-pod"), "namespace": "default",
            "labels": { "autoscaling.neon.tech/enabled": "true", "vm.neon.tech/name": name },
            "annotations": { "vm.neon.tech/resources": guest().to_string() },
            "ownerReferences": [{
                "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": name,
                "uid": vm_uid, "controller": true,
            }],
        },
        "spec": {
            "schedulerName": "autoscale-scheduler", "nodeName": NODE,
            "containers": [{ "name": "runner", "image": "runner" }],
        },
        "status": { "phase": "Running", "podIP": ip },
    })
}

/// The configuration that ships, but for the permit server's port.
fn agent_config(permit_port: u16) -> Value {
    json!({
        "refereshStateIntervalSeconds": 5,
        "scaling": {
            "computeUnit": { "vCPUs": 0.25, "mem": "1Gi" },
            "defaultConfig": {
                "loadAverageFractionTarget": 0.9, "memoryUsageFractionTarget": 0.75,
                "memoryTotalFractionTarget": 0.9, "enableLFCMetrics": false,
                "lfcUseLargestWindow": false, "lfcToMemoryRatio": 0.75, "lfcWindowSizeMinutes": 5,
                "lfcMinWaitBeforeDownscaleMinutes": 5, "cpuStableZoneRatio": 0, "cpuMixedZoneRatio": 0,
            },
        },
        "billing": {
            "cpuMetricName": "effective_compute_seconds", "activeTimeMetricName": "active_time_seconds",
            "collectEverySeconds": 4, "accumulateEverySeconds": 24, "clients": {},
        },
        "scalingEvents": {
            "cuMultiplier": 0.25, "rereportThreshold": 0.25, "regionName": "bench", "clients": {},
        },
        "monitor": {
            "serverPort": MONITOR_PORT, "responseTimeoutSeconds": 5, "connectionTimeoutSeconds": 4,
            "connectionRetryMinWaitSeconds": 5, "unhealthyAfterSilenceDurationSeconds": 20,
            "unhealthyStartupGracePeriodSeconds": 20, "maxHealthCheckSequentialFailuresSeconds": 30,
            "retryDeniedDownscaleSeconds": 5, "requestedUpscaleValidSeconds": 10,
            "retryFailedRequestSeconds": 3,
            "maxFailedRequestRate": { "intervalSeconds": 120, "threshold": 2 },
        },
        "metrics": {
            "system": { "port": METRICS_PORT, "requestTimeoutSeconds": 2, "secondsBetweenRequests": 5 },
            "lfc": { "port": 9499, "requestTimeoutSeconds": 5, "secondsBetweenRequests": 15 },
        },
        "scheduler": {
            "schedulerName": "autoscale-scheduler", "requestTimeoutSeconds": 2,
            "requestAtLeastEverySeconds": 15, "retryFailedRequestSeconds": 3,
            "retryDeniedUpscaleSeconds": 2, "requestPort": permit_port,
            "maxFailedRequestRate": { "intervalSeconds": 120, "threshold": 5 },
        },
        "neonvm": {
            "requestTimeoutSeconds": 10, "retryFailedRequestSeconds": 5,
            "maxFailedRequestRate": { "intervalSeconds": 120, "threshold": 2 },
        },
    })
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
pub(super) const fn as_f64(number: usize) -> f64 {
    number as f64
}
