//! Objects as the core reads them, made once from what a cluster would serve.

use protocol::permit::NamespacedName;
use scheduler::core::event::annotation_text;
use scheduler::core::view::{AnnotationValue, NodeView, PodView, VmView};
use serde_json::json;

use super::{Object, UNIT};

/// The name of a node.
pub(crate) fn node_name(node: usize) -> String {
    format!("n{node}")
}

/// The number in a VM's name.
pub(crate) fn vm_of(name: &str) -> usize {
    let number = name.strip_prefix("vm").and_then(|rest| rest.parse().ok());
    number.expect("a VM of this world")
}

/// The key of a VM.
pub(super) fn vm_key(vm: usize) -> NamespacedName {
    NamespacedName {
        namespace: "d".into(),
        name: Names::of(vm).vm,
    }
}

/// What a VM and its pod are called; their uids are the same.
pub(super) struct Names {
    pub(super) vm: String,
    pub(super) pod: String,
}

impl Names {
    pub(super) fn of(vm: usize) -> Self {
        Self {
            vm: format!("vm{vm}"),
            pod: format!("pod{vm}"),
        }
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Views {
    pub(crate) nodes: Vec<NodeView>,
    /// Units of each node.
    pub(crate) units: Vec<u32>,
    /// The pod of each VM.
    pub(crate) pods: Vec<PodView>,
    vms: Vec<VmView>,
}

impl Views {
    pub(crate) fn new(vms: usize, nodes: usize) -> Self {
        let units: Vec<u32> = (0..nodes)
            .map(|node| {
                (0..vms)
                    .filter(|vm| vm % nodes == node)
                    .map(|_| 1)
                    .sum::<u32>()
                    + 1
            })
            .collect();
        let node = |node: usize| {
            let total = UNIT.saturating_mul(units[node]);
            let object = json!({"metadata": {"name": node_name(node), "uid": node_name(node)},
                "status": {"allocatable": {"cpu": format!("{}m", total.cpu.0), "memory": total.mem.0.to_string()}}});
            NodeView::read(&object).expect("it has a name")
        };
        let in_use = r#"{"cpus":{"min":"250m","max":1,"use":"250m"},"memorySlots":{"min":1,"max":4,"use":1},"memorySlotSize":"1Gi"}"#;
        let labels = json!({"autoscaling.neon.tech/enabled": "true"});
        let pod = |vm: usize| {
            let object = json!({"metadata": {"name": format!("pod{vm}"), "namespace": "d", "uid": format!("pod{vm}"),
                    "labels": labels, "annotations": {"vm.neon.tech/resources": in_use},
                    "ownerReferences": [{"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
                        "name": format!("vm{vm}"), "uid": format!("vm{vm}"), "controller": true}]},
                "spec": {"nodeName": node_name(vm % nodes), "schedulerName": "autoscale-scheduler"}});
            PodView::read(&object).expect("it has a name")
        };
        let machine = |vm: usize| {
            let object = json!({"metadata": {"name": format!("vm{vm}"), "namespace": "d", "uid": format!("vm{vm}"),
                    "resourceVersion": "1", "labels": labels, "annotations": {}},
                "spec": {"guest": {"cpus": {"min": "250m", "max": 1, "use": "250m"},
                    "memorySlots": {"min": 1, "max": 4, "use": 1}, "memorySlotSize": "1Gi"}}});
            VmView::read(&object).expect("it has a name")
        };
        Self {
            nodes: (0..nodes).map(node).collect(),
            pods: (0..vms).map(pod).collect(),
            vms: (0..vms).map(machine).collect(),
            units,
        }
    }

    /// A VM in one of its states.
    pub(crate) fn vm(&self, vm: usize, version: u64, object: Object) -> VmView {
        let approved = object.approved.map(|units| UNIT.saturating_mul(units));
        VmView {
            version,
            approved: approved.map_or(AnnotationValue::Absent, AnnotationValue::Value),
            approved_text: approved.map(annotation_text),
            requested_text: Some(annotation_text(UNIT.saturating_mul(object.requested))),
            unit_text: Some(annotation_text(UNIT)),
            in_use: UNIT.saturating_mul(object.used),
            ..self.vms[vm].clone()
        }
    }
}
