//! The Node object and its Lease.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use protocol::quantity::Quantity;
use protocol::time::WallTime;
use protocol::units::{Bytes, MilliCpu};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::api::is_conflict;
use super::orphans::Orphan;
use super::params::NodeParams;

/// Interval of the Lease's renewals. The node counts as lost after [`LEASE_SECONDS`].
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// Duration written into the Lease.
const LEASE_SECONDS: u32 = 40;
/// Renewals between two writes of an unchanged Node status.
const STATUS_EVERY: u32 = 6;
/// Condition of a node with guests whose pods the API's store does not have.
const GUESTS_WITHOUT_OBJECTS: &str = "GuestsWithoutObjects";
const RETRY: Duration = Duration::from_millis(500);
/// Namespace of the kubelets' Leases.
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Capacity of the machine that this process runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// CPUs that this process may use.
    pub cpu: MilliCpu,
    /// MemTotal of `/proc/meminfo`; zero if it cannot be read.
    pub memory: Bytes,
}

/// Reads the machine's capacity. A CPU count that cannot be read is one, a memory size zero.
#[must_use]
pub fn machine() -> Machine {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib: u64 = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    Machine {
        cpu: MilliCpu(u32::try_from(cpus * 1000).unwrap_or(u32::MAX)),
        memory: Bytes(kib.saturating_mul(1024)),
    }
}

/// Keeps Node and Lease current until cancelled.
pub(super) async fn keep(params: NodeParams, cancel: CancellationToken) {
    let mut renewals = 0_u32;
    let mut failing = false;
    let mut written = Vec::new();
    loop {
        let orphans = params.orphans.list();
        let with_status = renewals.is_multiple_of(STATUS_EVERY) || failing || orphans != written;
        let result = beat(&params, with_status).await;
        let pause = match result {
            Ok(()) => {
                written = orphans;
                if renewals == 0 || failing {
                    info!(node = params.node_name, "node is registered");
                }
                failing = false;
                renewals = renewals.wrapping_add(1);
                RENEW_EVERY
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    warn!(
                        error = daemon_kit::chain(&error),
                        "failed to register the node, retrying"
                    );
                }
                RETRY
            }
        };
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn beat(params: &NodeParams, with_status: bool) -> Result<(), kube::Error> {
    if with_status {
        let nodes: Api<Node> = Api::all(params.client.clone());
        let existing = nodes.get_opt(&params.node_name).await?;
        if existing.is_none() {
            let node = serde_json::from_value(object(params)).map_err(kube::Error::SerdeError)?;
            match nodes.create(&PostParams::default(), &node).await {
                Err(error) if !is_conflict(&error) => return Err(error),
                _ => debug!(node = params.node_name, "node made"),
            }
        }
        let old = serde_json::to_value(existing.and_then(|node| node.status)).unwrap_or_default();
        let patch = json!({ "status": status(params, &old, params.clock.wall()) });
        nodes
            .patch_status(
                &params.node_name,
                &PatchParams::default(),
                &Patch::Merge(&patch),
            )
            .await?;
    }
    renew(params).await
}

async fn renew(params: &NodeParams) -> Result<(), kube::Error> {
    let leases: Api<Lease> = Api::namespaced(params.client.clone(), LEASE_NAMESPACE);
    let now = params.clock.wall().to_micro_string();
    let renewed = json!({ "spec": { "renewTime": now } });
    let patched = leases
        .patch(
            &params.node_name,
            &PatchParams::default(),
            &Patch::Merge(&renewed),
        )
        .await;
    match patched {
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": { "name": params.node_name, "namespace": LEASE_NAMESPACE },
                "spec": {
                    "holderIdentity": params.node_name,
                    "leaseDurationSeconds": LEASE_SECONDS,
                    "renewTime": now,
                },
            });
            let lease = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
            leases
                .create(&PostParams::default(), &lease)
                .await
                .map(drop)
        }
        other => other.map(drop),
    }
}

fn object(params: &NodeParams) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": params.node_name,
            "labels": {
                "kubernetes.io/hostname": params.node_name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
            },
        },
        "spec": {},
    })
}

/// Members of the Node's status that the driver owns.
fn status(params: &NodeParams, old: &Value, now: WallTime) -> Value {
    let allocatable = params.allocatable;
    let has = machine();
    let resources = |cpu: MilliCpu, memory: Bytes| {
        json!({
            "cpu": cpu.to_quantity_string(),
            "memory": Quantity::from_bytes(memory.0).to_string(),
            "pods": allocatable.pods.to_string(),
        })
    };
    let mut status = json!({
        "capacity": resources(has.cpu.max(allocatable.cpu), has.memory.max(allocatable.memory)),
        "allocatable": resources(allocatable.cpu, allocatable.memory),
        "conditions": [{
            "type": "Ready",
            "status": "True",
            "reason": "NodeDriverReady",
            "message": "the node driver starts virtual machines",
            "lastHeartbeatTime": now.to_string(),
            "lastTransitionTime": since(old, "Ready", now),
        }],
        "addresses": [
            { "type": "InternalIP", "address": params.host_ip().to_string() },
            { "type": "Hostname", "address": params.node_name },
        ],
        "nodeInfo": {
            "architecture": "amd64",
            "operatingSystem": "linux",
            "kubeletVersion": concat!("bellows-", env!("CARGO_PKG_VERSION")),
            "kernelVersion": read("/proc/sys/kernel/osrelease"),
            "bootID": read("/proc/sys/kernel/random/boot_id"),
            "machineID": read("/etc/machine-id"),
            "systemUUID": "",
            "osImage": os_image(),
            "containerRuntimeVersion": concat!("neonvm-runner://", env!("CARGO_PKG_VERSION")),
            "kubeProxyVersion": "",
        },
    });
    let orphans = params.orphans.list();
    if !orphans.is_empty()
        && let Some(conditions) = status["conditions"].as_array_mut()
    {
        conditions.push(orphaned(&orphans, old, now));
    }
    status
}

/// Condition with the guests that run without objects. It exists only while there are such guests.
fn orphaned(orphans: &[Orphan], old: &Value, now: WallTime) -> Value {
    let pods: Vec<String> = orphans.iter().map(Orphan::key).collect();
    json!({
        "type": GUESTS_WITHOUT_OBJECTS,
        "status": "True",
        "reason": "StoreDiffers",
        "message": format!(
            "the store has never shown the pods of these guests, which are left alone: {}; bring their objects back with \
             bellows adopt, or let them go with bellows adopt --release NAME",
            pods.join(", ")
        ),
        "lastHeartbeatTime": now.to_string(),
        "lastTransitionTime": since(old, GUESTS_WITHOUT_OBJECTS, now),
    })
}

/// When a condition became true.
fn since(old: &Value, kind: &str, now: WallTime) -> String {
    let conditions = old["conditions"].as_array().into_iter().flatten();
    conditions
        .filter(|condition| condition["type"] == kind && condition["status"] == "True")
        .find_map(|condition| condition["lastTransitionTime"].as_str())
        .map_or_else(|| now.to_string(), str::to_owned)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn os_image() -> String {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or("Linux").trim_matches('"').to_owned()
}
