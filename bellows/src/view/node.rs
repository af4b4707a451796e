//! Nodes and pods as people read them.

use std::collections::BTreeMap;

use protocol::annotations::LABEL_VM_NAME;
use protocol::object::{Node, Pod};
use protocol::time::WallTime;
use protocol::units::{Bytes, MilliCpu, Resources};
use serde::Serialize;
use serde_json::Value;

use super::units::{cores, memory, seconds_between};
use crate::output::{Cell, Table, age};
use crate::terminal::Tone;

/// Capacity of a node and what is granted of it. An item of `bellows get nodes -o json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct NodeView {
    pub(crate) name: String,
    /// Whether its Ready condition is True.
    pub(crate) ready: bool,
    /// Allocatable CPU, thousandths of a core.
    pub(crate) allocatable_cpu_milli: u32,
    /// Allocatable memory in bytes.
    pub(crate) allocatable_memory_bytes: u64,
    /// CPU granted to its VMs.
    pub(crate) granted_cpu_milli: u32,
    /// Memory granted to its VMs.
    pub(crate) granted_memory_bytes: u64,
    /// Number of its VMs.
    pub(crate) vms: usize,
    /// Age of the object in seconds.
    pub(crate) age_s: Option<u64>,
}

/// A pod. An item of `bellows get pods -o json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct PodView {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) phase: String,
    /// Whether its Ready condition is True.
    pub(crate) ready: bool,
    /// The VM that it runs.
    pub(crate) vm: Option<String>,
    pub(crate) node: String,
    pub(crate) address: String,
    /// Size that the scheduler granted.
    pub(crate) granted: Option<Resources>,
    /// Age of the object in seconds.
    pub(crate) age_s: Option<u64>,
}

/// Views of all readable pods. An unreadable one is left out of the totals.
pub(crate) fn pods(objects: &[Value], now: WallTime) -> Vec<PodView> {
    let readable = objects
        .iter()
        .filter_map(|object| serde_json::from_value::<Pod>(object.clone()).ok());
    readable
        .map(|pod| PodView {
            ready: pod.is_ready(),
            vm: pod.metadata.labels.get(LABEL_VM_NAME).cloned(),
            granted: pod.granted(),
            age_s: pod
                .metadata
                .creation_timestamp
                .map(|at| seconds_between(at.0, now)),
            namespace: pod.metadata.namespace,
            name: pod.metadata.name,
            phase: pod.status.phase,
            node: pod.spec.node_name,
            address: pod.status.pod_ip,
        })
        .collect()
}

/// Why pods wait, by `namespace/name`.
pub(crate) fn waiting(objects: &[Value]) -> BTreeMap<String, String> {
    objects
        .iter()
        .filter_map(|object| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let key = format!(
                "{}/{}",
                text(&object["metadata"]["namespace"]),
                text(&object["metadata"]["name"])
            );
            Some((key, wait_of(&object["status"])?))
        })
        .collect()
}

/// Reason why a pod waits, as the scheduler or the kubelet words it.
pub(crate) fn wait_of(status: &Value) -> Option<String> {
    // A container of the pod waits for its init containers without a reason of its own.
    let lists = ["initContainerStatuses", "containerStatuses"];
    let containers = lists
        .into_iter()
        .flat_map(|list| status[list].as_array().into_iter().flatten());
    let waits = containers.map(|container| &container["state"]["waiting"]);
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let unplaced =
        conditions.filter(|one| one["type"] == "PodScheduled" && one["status"] == "False");
    unplaced.chain(waits).find_map(|one| {
        let text = |name: &str| one[name].as_str().filter(|text| !text.is_empty());
        text("message").or(text("reason")).map(str::to_owned)
    })
}

/// Views of all nodes, with the grants of their pods.
pub(crate) fn nodes(objects: &[Value], pods: &[PodView], now: WallTime) -> Vec<NodeView> {
    let mut given: BTreeMap<&str, (Resources, usize)> = BTreeMap::new();
    for pod in pods {
        if let Some(granted) = pod.granted {
            let entry = given.entry(pod.node.as_str()).or_default();
            entry.0.cpu = MilliCpu(entry.0.cpu.0.saturating_add(granted.cpu.0));
            entry.0.mem = Bytes(entry.0.mem.0.saturating_add(granted.mem.0));
            entry.1 += 1;
        }
    }
    objects
        .iter()
        .filter_map(|object| {
            let node: Node = serde_json::from_value(object.clone()).ok()?;
            let (granted, vms) = given
                .get(node.metadata.name.as_str())
                .copied()
                .unwrap_or_default();
            let amount = |name: &str| node.status.allocatable.get(name);
            Some(NodeView {
                ready: is_ready(object),
                allocatable_cpu_milli: amount("cpu")
                    .and_then(|cpu| u32::try_from(cpu.milli_value()).ok())
                    .unwrap_or(0),
                allocatable_memory_bytes: amount("memory")
                    .and_then(|memory| memory.as_u64())
                    .unwrap_or(0),
                granted_cpu_milli: granted.cpu.0,
                granted_memory_bytes: granted.mem.0,
                vms,
                age_s: node
                    .metadata
                    .creation_timestamp
                    .map(|at| seconds_between(at.0, now)),
                name: node.metadata.name,
            })
        })
        .collect()
}

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions.is_some_and(|list| {
        list.iter()
            .any(|one| one["type"] == "Ready" && one["status"] == "True")
    })
}

/// The table of `bellows get nodes`.
pub(crate) fn node_table(nodes: &[NodeView]) -> Table {
    let mut table = Table::new(&[
        "NAME",
        "READY",
        "CPU GRANTED/ALLOCATABLE",
        "MEM GRANTED/ALLOCATABLE",
        "VMS",
        "AGE",
    ]);
    for node in nodes {
        table.row(vec![
            node.name.clone().into(),
            yes_no(node.ready),
            format!(
                "{}/{}",
                cores(node.granted_cpu_milli),
                cores(node.allocatable_cpu_milli)
            )
            .into(),
            format!(
                "{}/{}",
                memory(node.granted_memory_bytes),
                memory(node.allocatable_memory_bytes)
            )
            .into(),
            node.vms.to_string().into(),
            node.age_s.map_or_else(|| "-".into(), age).into(),
        ]);
    }
    table
}

/// The table of `bellows get pods`.
pub(crate) fn pod_table(pods: &[PodView], with_namespace: bool) -> Table {
    let mut header = vec![
        "NAME", "PHASE", "READY", "VM", "GRANTED", "ADDRESS", "NODE", "AGE",
    ];
    if with_namespace {
        header.insert(0, "NAMESPACE");
    }
    let mut table = Table::new(&header);
    for pod in pods {
        let dash = |text: &str| {
            if text.is_empty() {
                "-".to_owned()
            } else {
                text.to_owned()
            }
        };
        let granted = pod.granted.map_or_else(
            || "-".to_owned(),
            |size| format!("{} / {}", cores(size.cpu.0), memory(size.mem.0)),
        );
        let mut row: Vec<Cell> = vec![
            pod.name.clone().into(),
            dash(&pod.phase).into(),
            yes_no(pod.ready),
            dash(pod.vm.as_deref().unwrap_or_default()).into(),
            granted.into(),
            dash(&pod.address).into(),
            dash(&pod.node).into(),
            pod.age_s.map_or_else(|| "-".into(), age).into(),
        ];
        if with_namespace {
            row.insert(0, pod.namespace.clone().into());
        }
        table.row(row);
    }
    table
}

fn yes_no(yes: bool) -> Cell {
    if yes {
        Cell::toned(Tone::Good, "yes")
    } else {
        Cell::toned(Tone::Warn, "no")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use protocol::annotations::{ANNOTATION_APPROVED, ANNOTATION_VM_USAGE};

    use super::*;
    use crate::terminal::Paint;
    use serde_json::json;

    pub(crate) fn pod(name: &str, phase: &str) -> Value {
        json!({
            "metadata": {
                "name": name, "namespace": "default", "creationTimestamp": "2026-01-02T03:00:00Z",
                "labels": {LABEL_VM_NAME: "pg"},
                "annotations": {ANNOTATION_APPROVED: r#"{"vCPUs":"500m","mem":"2Gi"}"#},
            },
            "spec": {"nodeName": "host-a"},
            "status": {"phase": phase, "podIP": "127.7.1.1", "conditions": [{"type": "Ready", "status": "True"}]},
        })
    }

    pub(crate) fn node() -> Value {
        json!({
            "metadata": {"name": "host-a", "creationTimestamp": "2026-01-02T03:00:00Z"},
            "status": {"allocatable": {"cpu": "2", "memory": "20Gi"}, "conditions": [{"type": "Ready", "status": "True"}]},
        })
    }

    #[test]
    fn size_set_by_hand_counts_as_granted() {
        let mut object = pod("a", "Running");
        object["metadata"]["annotations"][ANNOTATION_VM_USAGE] =
            json!(r#"{"cpu":"250m","memory":"4Gi"}"#);
        let view = |object: &Value| {
            pods(std::slice::from_ref(object), WallTime(0))
                .remove(0)
                .granted
        };
        assert_eq!(view(&object), Some(Resources::new(500, 4 << 30)));
        object["metadata"]["annotations"]
            .as_object_mut()
            .unwrap()
            .remove(ANNOTATION_APPROVED);
        assert_eq!(view(&object), Some(Resources::new(250, 4 << 30)));
        object["spec"]["nodeName"] = json!("");
        assert_eq!(view(&object), None);
    }

    #[test]
    fn pods_show_their_wait_reason() {
        let waiting = |status: Value| {
            waiting(&[json!({"metadata": {"namespace": "d", "name": "p"}, "status": status})])
                .remove("d/p")
        };
        let unplaced = json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}]});
        assert_eq!(waiting(unplaced).as_deref(), Some("no room"));
        let no_image = json!({"containerStatuses": [{"state": {"waiting": {"reason": "ErrImageNeverPull", "message": ""}}}]});
        assert_eq!(waiting(no_image).as_deref(), Some("ErrImageNeverPull"));
        assert_eq!(waiting(json!({"phase": "Running"})), None);
    }

    #[test]
    fn granted_sums_what_live_pods_hold() {
        let now = WallTime::parse("2026-01-02T03:04:05Z").unwrap();
        let pods = pods(
            &[
                pod("a", "Running"),
                pod("b", "Running"),
                pod("gone", "Failed"),
                json!({"metadata": 3}),
            ],
            now,
        );
        assert_eq!(pods.len(), 3);
        let nodes = nodes(&[node(), json!({"metadata": 3})], &pods, now);
        assert_eq!(
            (
                nodes[0].granted_cpu_milli,
                nodes[0].granted_memory_bytes,
                nodes[0].vms
            ),
            (1000, 4 << 30, 2)
        );
        insta::assert_snapshot!(
            "get_nodes",
            node_table(&nodes).lines(Paint::PLAIN).join("\n")
        );
        insta::assert_snapshot!(
            "get_pods",
            pod_table(&pods, true).lines(Paint::PLAIN).join("\n")
        );
    }
}
