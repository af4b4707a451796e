//! A VM with an address in the overlay.

use protocol::core::Core as _;
use protocol::time::Span;
use protocol::vm::{VirtualMachine, VmPhase};
use serde_json::json;

use super::phases::condition;
use super::world::World;
use crate::core::conditions::DEGRADED;
use crate::core::overlay::Overlay;
use crate::core::testing::sample_vm;
use crate::core::{Kind, Refusal, Settings};

fn settings() -> Settings {
    let config = json!({"ipam": {"range": "10.100.0.0/16"}}).to_string();
    Settings {
        overlay: Some(Overlay::read("neonvm-system", &config).expect("a range")),
        network_attachment: Some("neonvm-system/overlay-for-vms".into()),
        ..Settings::one_machine()
    }
}

fn with_network() -> VirtualMachine {
    let mut vm = sample_vm();
    vm.spec.extra_network = Some(json!({"enable": true}));
    vm
}

#[test]
fn address_is_stored_before_pod_and_released_before_finalizer() {
    let mut world = World::with(&with_network(), settings());
    assert_eq!(
        world.settle_writes()[..2],
        ["TakeAddress", "WriteStatus"],
        "first of all"
    );
    let status = world.status();
    assert_eq!(status.extra_net_ip, "10.100.128.1");
    assert_eq!(status.extra_net_mask, "255.255.0.0");
    let pod = status.pod_name;
    world.start(&pod);
    world.settle();
    assert_eq!(world.phase(), VmPhase::Running);
    assert_eq!(condition(&world, DEGRADED).0, "absent");
    world.restart_controller();
    assert_eq!(world.settle_writes(), [""; 0], "it has one");

    world.delete_vm();
    world.settle();
    world.remove_pod(&pod);
    assert_eq!(world.settle_writes(), ["ReleaseAddress", "PatchVm"]);
    assert!(world.vm.is_none() || !world.has_finalizer());
}

#[test]
fn missing_address_is_reported_and_pod_is_not_made() {
    let mut world = World::with(&with_network(), settings());
    for _ in 0..4 {
        while let Some(action) = world.core.poll_action(world.at) {
            let (kind, began) = (action.kind(), world.at);
            let result = if kind == Kind::TakeAddress {
                Err(Refusal::Failed {
                    message: "every address of p is held".into(),
                    permanent: true,
                })
            } else {
                world.carry_out(&action)
            };
            world.is_done(kind, began, result);
            world.show();
        }
        world.pass(Span::from_secs(20));
    }
    assert!(world.created.is_empty());
    assert_eq!(
        condition(&world, DEGRADED).1,
        "failed to take an overlay address: every address of p is held"
    );
    world.settle();
    assert_eq!(world.created.len(), 1, "as soon as there is one");
}

#[test]
fn vm_older_than_overlay_gets_address_with_next_pod() {
    let mut vm = with_network();
    vm.status =
        serde_json::from_value(json!({"phase": "Pending", "podName": "example-first"})).ok();
    let mut world = World::with(&vm, settings());
    let steps = world.settle();
    let at = |name: &str| steps.iter().position(|step| step == name);
    assert!(at("TakeAddress") < at("WriteStatus") && at("WriteStatus") < at("CreatePod"));
    assert_eq!(world.status().extra_net_ip, "10.100.128.1");
}

#[test]
fn vm_without_extra_network_gets_no_address() {
    let mut vm = sample_vm();
    vm.spec.extra_network = Some(json!({"enable": false}));
    for vm in [sample_vm(), vm] {
        let mut world = World::with(&vm, settings());
        assert!(!world.settle().contains(&"TakeAddress".to_owned()));
        assert_eq!(world.created.len(), 1);
    }
}
