use fleet_core::permit::Gate;
use protocol::fleet::{KEY_ENROLLED, KEY_WINDOWS};
use protocol::vm::VmStatus;
use serde_json::json;

use super::*;

fn vm(namespace: &str) -> VirtualMachine {
    let mut vm = VirtualMachine::default();
    namespace.clone_into(&mut vm.metadata.namespace);
    vm.status = Some(VmStatus {
        node: "n".to_owned(),
        ..VmStatus::default()
    });
    vm
}

fn surroundings(namespace: &Value) -> Surroundings {
    Surroundings {
        namespaces: namespace_of(namespace).into_iter().collect(),
        ..Surroundings::default()
    }
}

/// Requirement: R10
#[test]
fn label_of_the_namespace_keeps_its_vms_out() {
    let out = json!({"metadata": {"name": "a", "labels": {KEY_ENROLLED: "false"}}});
    let out = surroundings(&out);
    assert!(!out.owner(&vm("a"), 60).is_enrolled);
    assert!(out.owner(&vm("b"), 60).is_enrolled);
    let mut own = vm("b");
    let label = (KEY_ENROLLED.to_owned(), "false".to_owned());
    own.metadata.labels.extend([label]);
    assert!(!out.owner(&own, 60).is_enrolled);
}

#[test]
fn windows_of_the_namespace_hold_for_vms_without_their_own() {
    let windows = |day: &str| format!(r#"[{{"days":["{day}"],"start":"03:00","minutes":60}}]"#);
    let annotated = json!({
        "metadata": {"name": "a", "annotations": {KEY_WINDOWS: windows("Sun")}},
    });
    let annotated = surroundings(&annotated);
    let of_namespace = annotated.owner(&vm("a"), 60).windows;
    assert_eq!(of_namespace.len(), 1);
    let mut own = vm("a");
    let annotation = (KEY_WINDOWS.to_owned(), windows("Mon"));
    own.metadata.annotations.extend([annotation]);
    let of_vm = annotated.owner(&own, 60).windows;
    assert_ne!(of_vm, of_namespace);
    assert!(annotated.owner(&vm("b"), 60).windows.is_empty());
}

#[test]
fn windows_of_a_namespace_that_cannot_be_read_close_the_gate() {
    let garbled = json!({"metadata": {"name": "a", "annotations": {KEY_WINDOWS: "often"}}});
    let word = surroundings(&garbled).owner(&vm("a"), 60);
    assert_eq!(word.gate, Some(Gate::Window));
}

#[test]
fn guest_has_room_if_its_vm_and_its_node_have_a_slot_left() {
    let mut vm = vm("a");
    vm.spec.guest.memory_slots.r#use = 1;
    vm.spec.guest.memory_slots.max = 2;
    let node = |memory: &str| json!({"metadata": {"name": "n"}, "status": {"allocatable": {"memory": memory}}});
    let with = |nodes: &[Value], vm: &VirtualMachine| Surroundings {
        free: free_memory(nodes, std::slice::from_ref(vm)),
        ..Surroundings::default()
    };
    assert!(with(&[node("2Gi")], &vm).has_room(&vm));
    assert!(!with(&[node("2047Mi")], &vm).has_room(&vm));
    assert!(!with(&[node("many")], &vm).has_room(&vm));
    assert!(!with(&[], &vm).has_room(&vm));
    vm.spec.guest.memory_slots.max = 1;
    assert!(!with(&[node("9Gi")], &vm).has_room(&vm));
}
