//! Pods that the watch shows no more.

use protocol::annotations::LABEL_VM_NAME;
use protocol::core::Core as _;
use protocol::vm::VmPhase;
use serde_json::json;

use super::phases::running;
use super::world::World;
use crate::core::backoff::READ_AGAIN;
use crate::core::refusal::Refusal;
use crate::core::testing::sample_vm;
use crate::core::vm::Event;
use crate::core::{Action, Kind};

fn label(world: &World, pod: &str) -> Option<String> {
    world.pod(pod).metadata.labels.get(LABEL_VM_NAME).cloned()
}

#[test]
fn a_pod_that_loses_its_label_keeps_its_guest_and_gets_the_label_back() {
    let (mut world, pod) = running(&sample_vm());
    world.take_label(&pod);
    assert_eq!(world.settle(), ["ReadPod", "PatchPodMetadata"]);
    assert_eq!(label(&world, &pod).as_deref(), Some("example"));
    assert_eq!(world.phase(), VmPhase::Running);
    assert_eq!((world.status().pod_name, world.created.len()), (pod, 1));
}

#[test]
fn a_pod_that_is_gone_is_found_to_be_by_one_read() {
    let (mut world, pod) = running(&sample_vm());
    world.remove_pod(&pod);
    let kinds = world.settle();
    assert_eq!(kinds[..2], ["ReadPod", "WriteStatus"]);
    let reads = kinds.iter().filter(|kind| *kind == "ReadPod").count();
    assert_eq!(reads, 2, "the other is of the next pod: {kinds:?}");
    assert_ne!(world.status().pod_name, pod);
    assert_eq!(world.status().restart_count, 1);
}

#[test]
fn other_pod_of_same_name_does_not_replace_missing_pod() {
    let (mut world, pod) = running(&sample_vm());
    let other = world.pods.get_mut(&pod).expect("the pod is there");
    other["metadata"]["uid"] = json!("uid-other");
    other["metadata"]["ownerReferences"] = json!([]);
    world.runners.remove(&pod);
    world.take_label(&pod);
    let kinds = world.settle();
    assert_eq!(kinds[..2], ["ReadPod", "WriteStatus"]);
    assert!(!kinds.contains(&"DeletePod".to_owned()), "{kinds:?}");
    assert_ne!(world.status().pod_name, pod);
    assert_eq!(world.status().restart_count, 1);
}

#[test]
fn read_that_began_before_watch_event_is_repeated() {
    let (mut world, pod) = running(&sample_vm());
    world.pass(READ_AGAIN);
    let read = loop {
        let action = world.core.poll_action(world.at).expect("the pod is read");
        let result = world.carry_out(&action);
        if action.kind() == Kind::ReadPod {
            break result;
        }
        world.is_done(action.kind(), world.at, result);
    };
    world.remove_pod(&pod);
    world.is_done(Kind::ReadPod, world.at, read);
    world.settle();
    assert_eq!(world.status().restart_count, 1);
    assert_ne!(world.status().pod_name, pod);
}

/// The watch does not show what becomes of it.
#[test]
fn end_of_pod_without_label_is_noticed() {
    let (mut world, pod) = running(&sample_vm());
    world.take_label(&pod);
    let refuse = |world: &mut World| {
        let mut reads = 0;
        while let Some(action) = world.core.poll_action(world.at) {
            let result = match &action {
                Action::PatchPodMetadata { .. } => Err(Refusal::Failed {
                    message: "a policy forbids it (403)".into(),
                    permanent: true,
                }),
                action => world.carry_out(action),
            };
            reads += usize::from(action.kind() == Kind::ReadPod);
            world.is_done(action.kind(), world.at, result);
        }
        reads
    };
    assert_eq!(refuse(&mut world), 2, "once missed, and once refused");
    assert_eq!(world.phase(), VmPhase::Running);
    assert_eq!(label(&world, &pod), None);
    world.pods.remove(&pod);
    world.pass(READ_AGAIN);
    refuse(&mut world);
    assert_ne!(world.status().pod_name, pod);
    assert_eq!(world.status().restart_count, 1);
}

#[test]
fn deleted_vm_waits_for_pod_that_watch_does_not_show() {
    let (mut world, pod) = running(&sample_vm());
    world.take_label(&pod);
    world.delete_vm();
    world.settle();
    assert!(world.has_finalizer());
    assert!(world.pod(&pod).metadata.deletion_timestamp.is_some());
    world.remove_pod(&pod);
    world.live();
    assert!(world.vm.is_none());
}

/// The watch was behind: it showed the pod once more, and then its end, while the status without it
/// was being written.
#[test]
fn pod_that_was_missed_as_the_vm_got_another_does_not_delay_the_deletion() {
    let (mut world, first) = running(&sample_vm());
    world.end(&first, "Failed", 1);
    let mut late = None;
    let written = loop {
        let action = world.core.poll_action(world.at).expect("the pod goes");
        let result = world.carry_out(&action);
        if action.kind() == Kind::DeletePod {
            late = world.pods.remove(&first);
        }
        if world.status().pod_name.is_empty() {
            break result;
        }
        world.is_done(action.kind(), world.at, result);
    };
    let late = serde_json::from_value(late.expect("it was deleted")).expect("a pod");
    world.core.handle(world.at, Event::Pod(Box::new(late)));
    world.hide_pod(&first);
    world.is_done(Kind::WriteStatus, world.at, written);
    world.settle();
    let second = world.status().pod_name;
    assert_ne!(second, first);
    world.delete_vm();
    world.settle();
    world.remove_pod(&second);
    world.settle();
    assert!(!world.has_finalizer());
}
