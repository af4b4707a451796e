use protocol::annotations::ANNOTATION_ADOPTS;
use protocol::runner::{ExitReason, ExitReport};
use protocol::time::Span;
use protocol::vm::{RestartPolicy, VirtualMachine, VmPhase};
use serde_json::json;

use super::world::World;
use crate::core::backoff::READ_AGAIN;
use crate::core::conditions::{AVAILABLE, DEGRADED};
use crate::core::observe::is_unprivileged;
use crate::core::problem::Problem;
use crate::core::testing::sample_vm;
use crate::core::vm_event::VmEvent;
use crate::core::{Action, Settings};

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

pub(super) fn notes(world: &mut World) -> Vec<&'static str> {
    std::iter::from_fn(|| world.core.poll_note())
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
    assert_eq!(notes(&mut world), ["PodCreated", "Running"]);
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
    assert_eq!(notes(&mut world), ["Degraded"]);
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
fn missing_pod_fails_vm_and_policy_restarts_it() {
    let (mut world, first) = running(&sample_vm());
    world.remove_pod(&first);
    world.settle();
    let status = world.status();
    assert_eq!((status.phase, status.restart_count), (VmPhase::Pending, 1));
    assert_ne!(status.pod_name, first);
    assert_eq!(status.pod_ip, "");
    assert_eq!((status.cpus, status.memory_size), (None, None));
    assert_eq!(condition(&world, AVAILABLE).0, "False");
    let (degraded, message) = condition(&world, DEGRADED);
    assert_eq!(degraded, "True");
    assert!(message.contains("is gone"), "{message}");
    assert_eq!(
        notes(&mut world),
        ["PodCreated", "Running", "Failed", "Restarted", "PodCreated"]
    );
    let pod = status.pod_name;
    world.start(&pod);
    world.settle();
    assert_eq!(world.phase(), VmPhase::Running);
    assert_eq!(condition(&world, AVAILABLE).0, "True");
    assert_eq!(
        condition(&world, DEGRADED).0,
        "False",
        "all is well again, and says so"
    );
}

#[test]
fn deleted_pod_is_replaced_by_one_after_its_end() {
    let (mut world, first) = running(&sample_vm());
    let at = world.at.wall;
    let pod = world.pods.get_mut(&first).expect("there");
    pod["metadata"]["deletionTimestamp"] = json!(at);
    world.touch_pod(&first);
    world.show();
    world.settle();
    assert_eq!(world.phase(), VmPhase::Running, "five seconds are given");
    world.pass(Span::from_millis(6_500));
    assert_eq!(
        world.core.poll_deadline().map(|due| due <= world.at.now),
        Some(true),
        "and it wakes by itself"
    );
    world.settle();
    assert_eq!(world.phase(), VmPhase::Failed);
    assert_eq!(world.created.len(), 1, "the old pod still stands");
    let pod = world.pod(&first);
    assert!(
        pod.metadata.owner_references.is_empty(),
        "its deletion cannot hold up the VM's"
    );
    world.remove_pod(&first);
    world.settle();
    assert_eq!(
        (world.phase(), world.status().restart_count),
        (VmPhase::Pending, 1)
    );
    assert_eq!((world.created.len(), world.most_pods), (2, 1));
}

#[test]
fn stuck_pod_in_cluster_does_not_delay_restart() {
    let mut settings = Settings::cluster("r:1");
    settings.at_most_one_pod = false;
    let mut world = World::with(&sample_vm(), settings);
    world.settle();
    let first = world.status().pod_name;
    world.start(&first);
    world.settle();
    world.end(&first, "Failed", 1);
    world.settle();
    assert_eq!(
        (world.phase(), world.status().restart_count),
        (VmPhase::Pending, 1)
    );
    assert!(
        world.pods[&first]["metadata"]
            .get("deletionTimestamp")
            .is_some()
    );
    assert_eq!(world.created.len(), 2);
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
    let mut notes = std::iter::from_fn(|| world.core.poll_note());
    assert!(notes.any(|note| note == VmEvent::Unprivileged));
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
fn restart_follows_policy() {
    for (policy, end, again) in [
        (RestartPolicy::Always, "Succeeded", true),
        (RestartPolicy::Always, "Failed", true),
        (RestartPolicy::OnFailure, "Succeeded", false),
        (RestartPolicy::OnFailure, "Failed", true),
        (RestartPolicy::Never, "Succeeded", false),
        (RestartPolicy::Never, "Failed", false),
    ] {
        let mut vm = sample_vm();
        vm.spec.restart_policy = policy;
        let (mut world, pod) = running(&vm);
        world.end(&pod, end, i32::from(end == "Failed"));
        world.settle();
        assert_eq!(world.phase().as_str(), end, "the pod goes first");
        world.remove_pod(&pod);
        world.settle();
        let status = world.status();
        if again {
            assert_eq!(
                (status.phase, status.restart_count),
                (VmPhase::Pending, 1),
                "{policy:?} {end}"
            );
        } else {
            assert_eq!(
                (status.phase.as_str(), status.restart_count),
                (end, 0),
                "{policy:?} {end}"
            );
            assert_eq!((status.pod_name.as_str(), status.node.as_str()), ("", ""));
            assert_eq!(world.created.len(), 1);
        }
    }
}

#[test]
fn failure_is_reported_with_reason() {
    let (mut world, pod) = running(&sample_vm());
    world.end(&pod, "Failed", 3);
    world.settle();
    let (_, message) = condition(&world, DEGRADED);
    assert_eq!(
        message,
        format!("pod {pod} failed: exit code 3: Error: it broke")
    );
}

#[test]
fn exit_report_of_runner_precedes_pod() {
    let (mut world, pod) = running(&sample_vm());
    let state = world.runners.get_mut(&pod).expect("there");
    state.exit = Some(ExitReport {
        success: false,
        reason: ExitReason::GuestPanic,
        code: Some(0),
        message: "Kernel panic".into(),
    });
    world.show_runner();
    world.settle();
    assert_eq!(world.phase(), VmPhase::Failed);
    let failed = std::iter::from_fn(|| world.core.poll_note()).find_map(|note| {
        if let VmEvent::Failed { problem } = note {
            Some(problem)
        } else {
            None
        }
    });
    assert_eq!(
        failed,
        Some(Problem::PodFailed {
            pod,
            reason: "guest panic, exit code 0: Kernel panic".into()
        })
    );
}

#[test]
fn vm_that_ends_again_and_again_restarts_with_growing_pauses() {
    let (mut world, pod) = running(&sample_vm());
    world.end(&pod, "Failed", 1);
    world.settle();
    world.remove_pod(&pod);
    world.settle();
    for _ in 0..2 {
        let pod = world.status().pod_name;
        world.start(&pod);
        world.settle();
        world.end(&pod, "Failed", 1);
        world.settle();
        world.remove_pod(&pod);
        world.settle();
        assert_eq!(world.phase(), VmPhase::Failed, "a pause first");
        world.pass(Span::from_secs(2));
        world.settle();
        assert_eq!(world.phase(), VmPhase::Pending);
    }
    assert_eq!(world.status().restart_count, 3);
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
fn deletion_removes_pod_first_and_finalizer_last() {
    let (mut world, pod) = running(&sample_vm());
    world.delete_vm();
    assert_eq!(world.settle(), ["DeletePod"]);
    assert!(world.has_finalizer());
    world.remove_pod(&pod);
    assert_eq!(world.settle(), ["ReadPod", "PatchVm"]);
    assert!(!world.has_finalizer());
}

#[test]
fn stuck_pod_does_not_delay_deletion_for_ever() {
    let (mut world, _) = running(&sample_vm());
    world.delete_vm();
    world.settle();
    world.pass(Span::from_secs(124));
    world.settle();
    assert!(world.has_finalizer());
    world.pass(Span::from_secs(3));
    world.settle();
    assert!(!world.has_finalizer());
}

#[test]
fn vm_without_pod_loses_finalizer_on_deletion() {
    let mut world = World::new(&sample_vm());
    world.delete_vm();
    assert_eq!(world.settle(), ["PatchVm"]);
    assert!(!world.has_finalizer());
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
