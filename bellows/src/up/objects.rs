//! The Pod by which agents find the scheduler. In a cluster, its Deployment creates it.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::instance::Instance;
use crate::instance::SCHEDULER_NAME;

/// Namespace and label by which agents find the permit server.
pub(crate) const SYSTEM_NAMESPACE: &str = "kube-system";
/// Label that holds the scheduler's name.
const LABEL_NAME: &str = "name";
/// Name of the Pod that represents the scheduler. It is the same at every start.
pub(crate) fn scheduler_pod_name(instance: &Instance) -> String {
    format!(
        "{SCHEDULER_NAME}-{:02x}{:08x}",
        instance.block(),
        fnv(instance.node())
    )
}

/// A short stable hash. It must differ only between the nodes of one cluster.
fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// The scheduler's Pod without its status. It requests nothing and is bound.
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
    use protocol::object::Pod;

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
            "kube-system/autoscale-scheduler-0741b6a685"
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
}
