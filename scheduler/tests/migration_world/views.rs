//! Names and objects of the model as the scheduler reads them.

use protocol::permit::NamespacedName;
use protocol::units::Resources;
use scheduler::core::migrate::MigrationView;
use scheduler::core::view::{PodView, VmView};
use serde_json::json;

use super::state::{Object, Role, Vm};

pub(crate) fn node_name(node: usize) -> String {
    format!("n{node}")
}

pub(super) fn key(name: String) -> NamespacedName {
    let namespace = "d".into();
    NamespacedName { namespace, name }
}

pub(super) fn pod_name(vm: usize, pod: u32) -> String {
    format!("v{vm}-{pod}")
}

/// The VM and the number in a pod's name.
pub(super) fn of_pod(name: &str) -> (usize, u32) {
    let (vm, pod) = name.split_once('-').expect("is a pod's name");
    let vm = vm.trim_start_matches('v').parse().expect("is numbered");
    (vm, pod.parse().expect("is numbered"))
}

pub(super) fn units(units: u32) -> Resources {
    Resources::new(1000 * units, u64::from(units) << 30)
}

const GUEST: &str = r#"{"cpus":{"min":1,"max":4,"use":1},"memorySlots":{"min":1,"max":4,"use":1},"memorySlotSize":"1Gi"}"#;

pub(super) fn vm_view(vm: usize, it: &Vm) -> VmView {
    let name = format!("v{vm}");
    let approved = serde_json::to_string(&units(it.size)).expect("encodes");
    let guest: serde_json::Value = serde_json::from_str(GUEST).expect("is JSON");
    let object = json!({"metadata": {"name": name, "namespace": "d", "uid": name,
            "resourceVersion": it.version.to_string(), "labels": {"autoscaling.neon.tech/enabled": "true"},
            "annotations": {"internal.autoscaling.neon.tech/resources-approved": approved}},
        "spec": {"guest": guest}});
    VmView::read(&object).expect("reads")
}

pub(super) fn pod_view(vm: usize, pod: u32, node: usize, role: Role) -> PodView {
    let name = pod_name(vm, pod);
    let owner = |kind: &str, name: &str, controller: bool| json!({"apiVersion": "vm.neon.tech/v1", "kind": kind, "name": name, "uid": name, "controller": controller});
    let mut owners = vec![owner(
        "VirtualMachine",
        &format!("v{vm}"),
        role != Role::Target,
    )];
    if role != Role::Settled {
        owners.push(owner("VirtualMachineMigration", "m", role == Role::Target));
    }
    let object = json!({
        "metadata": {"name": name, "namespace": "d", "uid": name,
            "creationTimestamp": format!("2026-01-01T00:{pod:02}:{vm:02}Z"),
            "labels": {"autoscaling.neon.tech/enabled": "true",
                "autoscaling.neon.tech/auto-migration-enabled": "true"},
            "annotations": {"vm.neon.tech/resources": GUEST}, "ownerReferences": owners},
        "spec": {"schedulerName": "autoscale-scheduler", "nodeName": node_name(node)}});
    PodView::read(&object).expect("reads")
}

pub(super) fn migration_view(object: &Object) -> MigrationView {
    let name = format!("schedplugin-{}", pod_name(object.vm, object.pod));
    let phase = format!("{:?}", object.phase);
    let object = json!({"metadata": {"name": name, "namespace": "d", "uid": object.uid.to_string(),
            "labels": {"autoscaling.neon.tech/created-by-scheduler": "true"}},
        "spec": {"vmName": format!("v{}", object.vm)}, "status": {"phase": phase}});
    MigrationView::read(&object).expect("reads")
}
