use protocol::annotations::ANNOTATION_ADOPTS;
use protocol::core::Core as _;
use protocol::time::Span;
use protocol::vm::{VirtualMachine, VmPhase};
use serde_json::json;

use super::world::World;
use crate::core::backoff::READ_AGAIN;
use crate::core::conditions::{AVAILABLE, DEGRADED};
use crate::core::observe::is_unprivileged;
use crate::core::testing::sample_vm;
use crate::core::vm_event::VmEvent;
use crate::core::{Action, Kind, Refusal, Settings};

pub(super) fn condition(world: &World, kind: &str) -> (String, String) {
    let found = world
        .status()
        .conditions
        .into_iter()
        .find(|condition| condition.kind == kind);
    found.map_or_else(
        || ("absent".into(), String::new()),
        |c| (c.status, c.message),
    )
}

pub(super) fn running(vm: &VirtualMachine) -> (World, String) {
    let mut world = World::new(vm);
    world.settle();
    let pod = world.status().pod_name;
    world.start(&pod);
    world.settle();
    assert_eq!(world.phase(), VmPhase::Running);
    (world, pod)
}

pub(super) fn event_reasons(world: &mut World) -> Vec<&'static str> {
    std::iter::from_fn(|| world.core.poll_event())
        .map(|note| note.reason())
        .collect()
}

/// Requirement: D5. Only on one machine: in a cluster nobody but the controller chooses names of
/// pods.
#[test]
fn first_pod_of_adopting_vm_has_name_of_guests_pod() {
    let mut vm = sample_vm();
    vm.metadata
        .annotations
        .insert(ANNOTATION_ADOPTS.into(), "pg-x/uid".into());
    let mut world = World::with(&vm, Settings::one_machine());
    world.settle();
    assert_eq!(world.status().pod_name, "pg-x");
    let pod = world.pod("pg-x");
    assert_eq!(pod.metadata.annotations[ANNOTATION_ADOPTS], "pg-x/uid");
    let mut world = World::with(&vm, Settings::cluster("runner"));
    world.settle();
    assert_ne!(world.status().pod_name, "pg-x");
}

#[test]
fn new_vm_gets_finalizer_mode_phase_name_and_pod_in_order() {
    let mut vm = sample_vm();
    vm.metadata.finalizers.clear();
    vm.spec.cpu_scaling_mode = None;
    let mut world = World::new(&vm);
    assert_eq!(
        world.settle(),
        [
            "PatchVm",
            "PatchVm",
            "WriteStatus",
            "WriteStatus",
            "ReadPod",
            "EnsureSshSecret",
            "CreatePod"
        ]
    );
    let patch = |n: usize| match &world.log[n] {
        Action::PatchVm { patch, .. } | Action::WriteStatus { patch, .. } => patch.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        patch(0)["metadata"]["finalizers"],
        json!(["vm.neon.tech/finalizer"])
    );
    assert_eq!(patch(1)["spec"], json!({"cpuScalingMode": "QmpScaling"}));
    assert_eq!(patch(2)["status"]["phase"], "Pending");
    assert_eq!(patch(2)["status"]["conditions"][0]["status"], "Unknown");
    let status = world.status();
    assert!(
        status.pod_name.starts_with("example-") && status.pod_name.len() == "example-".len() + 5
    );
    assert_eq!(status.ssh_secret_name, "ssh-neonvm-example");
    assert_eq!(status.restart_count, 0);
    assert!(world.has_finalizer());
    assert_eq!(world.created, [status.pod_name]);
}

#[test]
fn first_start_goes_from_pending_to_running_without_scaling() {
    let mut vm = sample_vm();
    vm.spec.guest.cpus.r#use = protocol::units::MilliCpu(1500);
    vm.spec.guest.memory_slots.r#use = 3;
    let mut world = World::new(&vm);
    world.settle();
    let pod = world.status().pod_name;
    world.start(&pod);
    assert_eq!(
        world.settle(),
        ["WriteStatus"],
        "nothing to scale, use above min or not"
    );
    let status = world.status();
    assert_eq!(status.phase, VmPhase::Running);
    assert_eq!(
        (status.pod_ip.as_str(), status.node.as_str()),
        ("127.9.1.1", "here")
    );
    assert_eq!(serde_json::to_value(status.cpus).expect("encodes"), "1500m");
    assert_eq!(
        serde_json::to_value(status.memory_size).expect("encodes"),
        "3Gi"
    );
    assert_eq!(condition(&world, AVAILABLE).0, "True");
    assert_eq!(condition(&world, DEGRADED).0, "absent");
    assert_eq!(event_reasons(&mut world), ["PodCreated", "Running"]);
}

#[test]
fn waiting_pod_keeps_vm_pending() {
    let mut world = World::new(&sample_vm());
    world.settle();
    world.pass(Span::from_secs(14));
    assert!(world.settle().is_empty());
    assert_eq!(world.phase(), VmPhase::Pending);
}

#[test]
fn misaligned_slot_is_reported_and_no_pod_is_made() {
    let mut vm = sample_vm();
    vm.spec.guest.memory_slot_size = "100M".parse().expect("a quantity");
    let mut world = World::new(&vm);
    world.settle();
    assert!(world.created.is_empty());
    assert_eq!(world.status().pod_name, "");
    let (status, message) = condition(&world, DEGRADED);
    assert_eq!(status, "True");
    assert!(message.contains(".spec.guest.memorySlotSize"), "{message}");
    assert_eq!(event_reasons(&mut world), ["Degraded"]);
    world.edit(|vm| vm.spec.guest.memory_slot_size = "1Gi".parse().expect("a quantity"));
    world.settle();
    assert_eq!(world.created.len(), 1);
}

#[test]
fn unordered_bounds_and_faulty_tls_are_reported() {
    for (edit, words) in [
        (
            (|vm| vm.spec.guest.cpus.min.0 = 0) as fn(&mut VirtualMachine),
            ".spec.guest.cpus",
        ),
        (|vm| vm.spec.guest.cpus.r#use.0 = 9000, ".spec.guest.cpus"),
        (
            |vm| vm.spec.guest.memory_slots.r#use = 0,
            ".spec.guest.memorySlots",
        ),
        (
            |vm| vm.spec.tls = Some(json!({"serverName": "x"})),
            ".spec.tls.certificateIssuer: must be set",
        ),
    ] {
        let mut vm = sample_vm();
        edit(&mut vm);
        let mut world = World::new(&vm);
        world.settle();
        assert!(world.created.is_empty(), "{words}");
        assert!(condition(&world, DEGRADED).1.contains(words));
    }
}

#[test]
fn missing_overlay_is_reported_and_vm_runs() {
    let mut vm = sample_vm();
    vm.spec.extra_network = Some(json!({"enable": true}));
    let (world, _) = running(&vm);
    assert!(condition(&world, DEGRADED).1.contains(".spec.extraNetwork"));
}

#[test]
fn token_is_made_before_pod_and_for_older_vms_in_cluster() {
    let mut world = World::with(&sample_vm(), Settings::cluster("r:1"));
    let done = world.settle();
    let place = |kind: &str| done.iter().position(|one| one == kind);
    let (token, pod) = (place("EnsureRunnerSecret"), place("CreatePod"));
    assert!(token.is_some() && token < pod, "{done:?}");
    let first = world.status().pod_name;
    world.start(&first);
    world.settle();
    // Another controller knows of none.
    world.restart_controller();
    let done = world.settle();
    assert!(done.contains(&"EnsureRunnerSecret".to_owned()), "{done:?}");
    assert!(!done.contains(&"CreatePod".to_owned()), "{done:?}");
}

#[test]
fn pod_that_is_refused_for_its_privileges_is_made_without_them_at_once() {
    let mut world = World::with(&sample_vm(), Settings::cluster("r:1"));
    world.admits_privileges = false;
    world.settle();
    let pod = world.status().pod_name;
    assert_eq!(world.created.iter().collect::<Vec<_>>(), [&pod]);
    assert!(is_unprivileged(&world.pod(&pod)));
    let mut event_reasons = std::iter::from_fn(|| world.core.poll_event());
    assert!(event_reasons.any(|note| note == VmEvent::Unprivileged));
    world.start(&pod);
    world.settle();
    assert_eq!(world.phase(), VmPhase::Running);
}

#[test]
fn mounted_secrets_are_ensured_until_pod_runs() {
    const SECRETS: [&str; 2] = ["EnsureSshSecret", "EnsureRunnerSecret"];
    let mut world = World::with(&sample_vm(), Settings::cluster("r:1"));
    world.settle();
    let pod = world.status().pod_name;
    assert_eq!(world.settle_writes(), Vec::<String>::new());
    // Nothing tells that one was deleted.
    world.pass(READ_AGAIN);
    assert_eq!(world.settle_writes(), SECRETS);
    world.start(&pod);
    world.settle();
    assert_eq!(world.phase(), VmPhase::Running);
    world.pass(READ_AGAIN);
    assert_eq!(world.settle_writes(), Vec::<String>::new());
    assert_eq!(world.created.len(), 1);
}

#[test]
fn pod_that_cannot_start_is_reported_until_it_starts() {
    let init = |reason: &str| {
        json!({"phase": "Pending", "initContainerStatuses": [{"name": "init", "state": {"waiting":
            {"reason": reason, "message": "no such image"}}}]})
    };
    let unplaced = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled",
        "status": "False", "message": "0/2 nodes are available"}]});
    for (status, told) in [
        (
            init("ImagePullBackOff"),
            Some("ImagePullBackOff: no such image"),
        ),
        (init("PodInitializing"), None),
        (init("ContainerCreating"), None),
        (unplaced, Some("no node takes it: 0/2 nodes are available")),
    ] {
        let mut world = World::new(&sample_vm());
        world.settle();
        let name = world.status().pod_name;
        let pod = world.pods.get_mut(&name).expect("the pod is there");
        pod["status"] = status;
        world.touch_pod(&name);
        world.show();
        world.settle();
        let degraded = |world: &World| {
            let status = world.status();
            let mut all = status.conditions.into_iter();
            let found = all.find(|one| one.kind == "Degraded" && one.status == "True");
            found.map(|one| one.message)
        };
        let expected = told.map(|why| format!("pod {name} cannot start: {why}"));
        assert_eq!(degraded(&world), expected);
        world.start(&name);
        world.settle();
        assert_eq!(world.phase(), VmPhase::Running);
        assert_eq!(degraded(&world), None);
    }
}

#[test]
fn other_name_is_chosen_when_pod_belongs_to_other_owner() {
    let mut world = World::new(&sample_vm());
    world.edit(|vm| {
        let mut status = vm.status.clone().unwrap_or_default();
        status.phase = VmPhase::Pending;
        status.pod_name = "example-taken".into();
        vm.status = Some(status);
    });
    let foreign = json!({
        "metadata": {"name": "example-taken", "namespace": "default", "uid": "x", "resourceVersion": "1",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Other", "name": "o", "uid": "other"}]},
        "status": {"phase": "Running"},
    });
    world.pods.insert("example-taken".into(), foreign.clone());
    world.show();
    world.settle();
    assert_ne!(world.status().pod_name, "example-taken");
    assert_eq!(world.created, [world.status().pod_name]);
    assert_eq!(world.pods["example-taken"], foreign, "untouched");
}

#[test]
fn migrating_vms_are_left_alone() {
    for phase in [VmPhase::PreMigrating, VmPhase::Migrating] {
        let (mut world, _) = running(&sample_vm());
        world.edit(|vm| {
            if let Some(status) = vm.status.as_mut() {
                status.phase = phase;
            }
            vm.spec.guest.memory_slots.r#use = 4;
            vm.metadata.annotations.insert("a".into(), "b".into());
        });
        assert!(world.settle().is_empty(), "{phase:?}");
    }
}

#[test]
fn secret_is_not_made_without_ssh() {
    let mut vm = sample_vm();
    vm.spec.enable_ssh = false;
    let mut world = World::new(&vm);
    let kinds = world.settle();
    assert!(!kinds.contains(&"EnsureSshSecret".to_owned()), "{kinds:?}");
    assert_eq!(world.status().ssh_secret_name, "");
}

#[test]
fn restarted_controller_leaves_healthy_vm_alone() {
    let (mut world, _) = running(&sample_vm());
    world.restart_controller();
    assert!(world.settle().is_empty());
    let mut pending = World::new(&sample_vm());
    pending.settle();
    pending.restart_controller();
    // Its pod may yet wait for what it mounts.
    assert_eq!(pending.settle(), ["EnsureSshSecret"]);
    assert_eq!(pending.created.len(), 1);
}

#[test]
fn pod_that_is_refused_for_another_reason_keeps_its_privileges() {
    let mut world = World::with(&sample_vm(), Settings::cluster("r:1"));
    let create = loop {
        let action = world.core.poll_action(world.at).expect("a pod is made");
        if action.kind() == Kind::CreatePod {
            break action;
        }
        let result = world.carry_out(&action);
        world.is_done(action.kind(), world.at, result);
    };
    let refused = Refusal::Failed {
        message: "exceeded quota".into(),
        permanent: true,
    };
    world.is_done(create.kind(), world.at, Err(refused));
    world.pass(Span::from_secs(60));
    world.settle();
    let pod = world.status().pod_name;
    assert!(!is_unprivileged(&world.pod(&pod)));
}
