//! The end of a pod or of its VM, and the restart policy.

use protocol::core::Core as _;
use protocol::runner::{ExitReason, ExitReport};
use protocol::time::Span;
use protocol::vm::{RestartPolicy, VmPhase};
use serde_json::json;

use super::phases::{condition, event_reasons, running};
use super::world::World;
use crate::core::Settings;
use crate::core::conditions::{AVAILABLE, DEGRADED};
use crate::core::problem::Problem;
use crate::core::testing::sample_vm;
use crate::core::vm_event::VmEvent;

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
        event_reasons(&mut world),
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
    let failed = std::iter::from_fn(|| world.core.poll_event()).find_map(|note| {
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

/// Another owner may take the name once the VM's pod is gone.
#[test]
fn pod_of_another_owner_is_left_alone_after_the_end() {
    let mut vm = sample_vm();
    vm.spec.restart_policy = RestartPolicy::Never;
    let (mut world, pod) = running(&vm);
    world.end(&pod, "Succeeded", 0);
    world.settle();
    assert_eq!(world.phase(), VmPhase::Succeeded);
    world.remove_pod(&pod);
    world.make_foreign_pod(&pod);
    world.restart_controller();
    let done = world.settle();
    let touches = |kind: &String| ["DeletePod", "OrphanPod"].contains(&kind.as_str());
    assert!(!done.iter().any(touches), "{done:?}");
}
