//! A VM that is stopped and started on request.

use protocol::annotations::{ANNOTATION_POWER_STATE, POWER_STOPPED};
use protocol::vm::{RestartPolicy, VirtualMachine, VmPhase};
use serde_json::json;

use super::phases::{condition, event_reasons, running};
use super::world::World;
use crate::core::Settings;
use crate::core::conditions::{AVAILABLE, STOPPED};
use crate::core::testing::sample_vm;

fn stop(world: &mut World) {
    world.edit(|vm| {
        let annotations = &mut vm.metadata.annotations;
        annotations.insert(ANNOTATION_POWER_STATE.into(), POWER_STOPPED.into());
    });
    world.settle();
}

fn start(world: &mut World) {
    world.edit(|vm| {
        vm.metadata.annotations.remove(ANNOTATION_POWER_STATE);
    });
    world.settle();
}

#[test]
fn stopped_vm_has_no_pod_and_starts_again_under_any_restart_policy() {
    for policy in [RestartPolicy::Always, RestartPolicy::Never] {
        let mut vm = sample_vm();
        vm.spec.restart_policy = policy;
        let (mut world, pod) = running(&vm);
        stop(&mut world);
        let deleted = |world: &World| {
            world.pods[&pod]["metadata"]
                .get("deletionTimestamp")
                .is_some()
        };
        assert!(deleted(&world), "the guest is asked to end");
        assert_eq!(world.phase(), VmPhase::Running, "until its pod is gone");
        world.remove_pod(&pod);
        world.settle();
        let status = world.status();
        assert_eq!(
            (status.phase, status.pod_name.as_str()),
            (VmPhase::Succeeded, "")
        );
        assert_eq!(condition(&world, STOPPED).0, "True");
        assert!(condition(&world, AVAILABLE).1.contains("power-state"));
        assert!(world.settle().is_empty(), "it stays off");
        start(&mut world);
        assert_eq!(world.phase(), VmPhase::Pending);
        assert_eq!(condition(&world, STOPPED).0, "False");
        assert_eq!(
            world.status().restart_count,
            0,
            "no restart of a guest that ended"
        );
        assert_eq!((world.created.len(), world.most_pods), (2, 1));
        let told = event_reasons(&mut world);
        assert!(
            told.contains(&"Stopped") && told.contains(&"Started"),
            "{told:?}"
        );
    }
}

#[test]
fn vm_created_stopped_gets_no_pod() {
    let mut vm = sample_vm();
    let annotations = &mut vm.metadata.annotations;
    annotations.insert(ANNOTATION_POWER_STATE.into(), POWER_STOPPED.into());
    let mut world = World::new(&vm);
    world.settle();
    assert_eq!(world.phase(), VmPhase::Succeeded);
    assert!(world.created.is_empty());
    start(&mut world);
    assert_eq!(world.created.len(), 1);
}

#[test]
fn next_pod_of_persistent_disk_waits_until_last_is_gone() {
    let mut settings = Settings::cluster("r:1");
    settings.at_most_one_pod = false;
    let mut vm = sample_vm();
    vm.spec.guest.root_disk.persistent = true;
    next_pod_waits(&vm, settings.clone());
    let mut vm = sample_vm();
    let disk = json!([{"name": "data", "mountPath": "/data",
        "persistentVolumeClaim": {"claimName": "pg-data", "size": "1Gi"}}]);
    vm.spec.disks = serde_json::from_value(disk).expect("disks");
    next_pod_waits(&vm, settings);
}

fn next_pod_waits(vm: &VirtualMachine, settings: Settings) {
    let mut world = World::with(vm, settings);
    world.settle();
    let first = world.status().pod_name;
    world.start(&first);
    world.settle();
    world.end(&first, "Failed", 1);
    world.settle();
    assert_eq!((world.phase(), world.created.len()), (VmPhase::Failed, 1));
    world.remove_pod(&first);
    world.settle();
    assert_eq!((world.phase(), world.created.len()), (VmPhase::Pending, 2));
}
