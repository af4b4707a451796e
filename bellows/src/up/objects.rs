//! The objects that a cluster's own machinery would make: this machine's Node, and the Pod by which the scheduler is found.

use std::net::Ipv4Addr;

use protocol::units::Resources;
use serde_json::{Value, json};

use crate::instance::Instance;
use crate::vm::SCHEDULER_NAME;

/// Namespace and label by which agents find the permit server.
pub(crate) const SYSTEM_NAMESPACE: &str = "kube-system";
/// Label that holds the scheduler's name.
const LABEL_NAME: &str = "name";
/// Pods a node takes: one address each out of a block of 65,000, and Kubernetes' own habit.
const MOST_PODS: &str = "1000";

/// What the Node object tells about this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    /// What it has.
    pub(crate) capacity: Resources,
    /// What VMs may use.
    pub(crate) allocatable: Resources,
    /// Kernel release.
    pub(crate) kernel: String,
}

/// The Node without its status.
pub(crate) fn node(instance: &Instance) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": instance.node(),
            "labels": {
                "kubernetes.io/hostname": instance.node(),
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": architecture(),
            },
        },
    })
}

/// The Node's status.
pub(crate) fn node_status(instance: &Instance, machine: &Machine, now: &str) -> Value {
    let amounts = |size: Resources| json!({"cpu": size.cpu.to_string(), "memory": size.mem.to_string(), "pods": MOST_PODS});
    json!({
        "capacity": amounts(machine.capacity),
        "allocatable": amounts(machine.allocatable),
        "conditions": [{
            "type": "Ready",
            "status": "True",
            "reason": "BellowsUp",
            "message": "bellows up runs on this machine",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }],
        "addresses": [
            {"type": "InternalIP", "address": instance.address(1).to_string()},
            {"type": "Hostname", "address": instance.node()},
        ],
        "nodeInfo": {
            "architecture": architecture(),
            "operatingSystem": "linux",
            "kernelVersion": machine.kernel,
            "kubeletVersion": concat!("bellows-", env!("CARGO_PKG_VERSION")),
            "kubeProxyVersion": "",
            "containerRuntimeVersion": concat!("bellows://", env!("CARGO_PKG_VERSION")),
            "osImage": "",
            "bootID": "",
            "machineID": "",
            "systemUUID": "",
        },
    })
}

/// Kubernetes' word for the processor.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Name of the Pod that stands for our scheduler; the same at every start.
pub(crate) fn scheduler_pod_name(instance: &Instance) -> String {
    format!(
        "{SCHEDULER_NAME}-{:02x}{:08x}",
        instance.block(),
        fnv(instance.node())
    )
}

/// A short, stable digest: it only has to differ between nodes of one cluster.
fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// The scheduler's Pod without its status. It asks for nothing and is bound already.
pub(crate) fn scheduler_pod(instance: &Instance) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": scheduler_pod_name(instance),
            "namespace": SYSTEM_NAMESPACE,
            "labels": {LABEL_NAME: SCHEDULER_NAME},
        },
        "spec": {
            "nodeName": instance.node(),
            "restartPolicy": "Always",
            "containers": [{
                "name": SCHEDULER_NAME,
                "image": concat!("bellows/scheduler:", env!("CARGO_PKG_VERSION")),
                "ports": [{"name": "permits", "containerPort": instance.permits().port()}],
            }],
        },
    })
}

/// The status of the scheduler's Pod.
pub(crate) fn scheduler_pod_status(address: Ipv4Addr, is_ready: bool, now: &str) -> Value {
    let truth = if is_ready { "True" } else { "False" };
    let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "lastTransitionTime": now});
    json!({
        "phase": "Running",
        "podIP": address.to_string(),
        "podIPs": [{"ip": address.to_string()}],
        "hostIP": address.to_string(),
        "startTime": now,
        "conditions": [
            condition("PodScheduled", "True"),
            condition("Initialized", "True"),
            condition("ContainersReady", truth),
            condition("Ready", truth),
        ],
        "containerStatuses": [{
            "name": SCHEDULER_NAME,
            "image": concat!("bellows/scheduler:", env!("CARGO_PKG_VERSION")),
            "imageID": "",
            "ready": is_ready,
            "restartCount": 0,
            "started": true,
            "state": {"running": {"startedAt": now}},
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::StateDir;
    use protocol::object::{Node, Pod};

    fn instance() -> Instance {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::choose(Some(dir.path())).unwrap();
        Instance::load_or_create(&state, Some(7), Some("host-a")).unwrap()
    }

    #[test]
    fn the_scheduler_is_found_by_label_address_and_readiness() {
        let instance = instance();
        let mut object = scheduler_pod(&instance);
        object["status"] = scheduler_pod_status(instance.address(2), true, "2026-01-02T03:04:05Z");
        let pod: Pod = serde_json::from_value(object.clone()).unwrap();
        assert!(pod.is_ready() && !pod.is_terminal());
        assert_eq!(pod.metadata.labels["name"], "autoscale-scheduler");
        assert_eq!(
            pod.metadata.key(),
            "kube-system/autoscale-scheduler-07e5e3cc6a"
        );
        assert_eq!(pod.status.pod_ip, "127.7.0.2");
        assert_eq!(pod.spec.node_name, "host-a");
        assert!(
            pod.spec
                .containers
                .iter()
                .all(|container| container.resources.requests.is_empty())
        );
        object["status"] = scheduler_pod_status(instance.address(2), false, "2026-01-02T03:04:05Z");
        assert!(!serde_json::from_value::<Pod>(object).unwrap().is_ready());
    }

    #[test]
    fn the_node_offers_what_is_allocatable() {
        let machine = Machine {
            capacity: Resources::new(2000, 24 << 30),
            allocatable: Resources::new(1500, 20 << 30),
            kernel: "6.1".into(),
        };
        let mut object = node(&instance());
        object["status"] = node_status(&instance(), &machine, "2026-01-02T03:04:05Z");
        let node: Node = serde_json::from_value(object).unwrap();
        assert_eq!(node.status.allocatable["cpu"].milli_value(), 1500);
        assert_eq!(node.status.allocatable["memory"].as_u64(), Some(20 << 30));
    }
}
