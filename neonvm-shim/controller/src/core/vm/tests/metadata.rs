//! Labels and annotations of a pod that somebody else has a say in.

use protocol::core::Core as _;
use protocol::time::Span;
use protocol::units::{Bytes, MilliCpu};
use protocol::vm::VmPhase;
use serde_json::json;

use super::phases::{condition, running};
use super::resizing::set_size;
use super::world::World;
use crate::core::action::Action;
use crate::core::conditions::DEGRADED;
use crate::core::metadata::{PatchOp, annotated_size};
use crate::core::testing::sample_vm;
use crate::core::vm::LOOK_AGAIN;

/// What the controller takes away, if it may.
const FOREIGN: &str = "/metadata/labels/foreign";

fn is_about_foreign(op: &PatchOp) -> bool {
    op.path() == FOREIGN
}

/// Somebody has put a label on the pod of a guest that runs.
fn labelled() -> (World, String) {
    let (mut world, pod) = running(&sample_vm());
    let object = world.pods.get_mut(&pod).expect("the pod is there");
    object["metadata"]["labels"]["foreign"] = json!("x");
    world.touch_pod(&pod);
    (world, pod)
}

/// How often each is done while this time passes and nothing else happens.
fn syncs_in(world: &mut World, time: Span) -> usize {
    let (mut count, end) = (0, world.at.now + time);
    while world.at.now < end {
        let kinds = world.settle();
        let is_sync = |kind: &&String| kind.starts_with("PatchPod");
        count += kinds.iter().filter(is_sync).count();
        let next = world.core.poll_deadline().expect("it looks again");
        let next = next.since(world.at.now);
        world.pass(next.max(Span::from_millis(1)));
    }
    count
}

fn grows(world: &mut World, pod: &str) {
    world.edit(|vm| set_size(vm, 2000, 4, 7, 1));
    let kinds = world.settle();
    assert!(kinds.contains(&"SetSize".to_owned()), "{kinds:?}");
    let order = world.runners[pod].resize.clone().expect("an order").order;
    assert_eq!((order.cpu, order.memory), (MilliCpu(2000), Bytes::gib(4)));
    let says = annotated_size(&world.pod(pod).metadata).expect("a size");
    assert_eq!((says.cpu, says.mem), (MilliCpu(2000), Bytes::gib(4)));
    world.finish_resize(pod);
    world.settle();
    assert_eq!(world.phase(), VmPhase::Running);
}

#[test]
fn a_guest_grows_though_a_policy_keeps_a_label_on_its_pod() {
    let (mut world, pod) = labelled();
    world.forbids = Some(is_about_foreign);
    world.show();
    grows(&mut world, &pod);
    let (status, message) = condition(&world, DEGRADED);
    assert_eq!(status, "True");
    assert!(message.contains("a policy forbids it"), "{message}");
    // And so again, with nothing tried in vain first that was tried just before.
    world.edit(|vm| set_size(vm, 250, 1, 8, 1));
    world.settle();
    world.finish_resize(&pod);
    world.settle();
    grows(&mut world, &pod);
}

#[test]
fn what_a_policy_refuses_is_tried_less_and_less_often() {
    let (mut world, _) = labelled();
    world.forbids = Some(is_about_foreign);
    world.show();
    let count = syncs_in(&mut world, Span::from_secs(600));
    assert!((40..80).contains(&count), "{count} in ten minutes");
    world.forbids = None;
    world.pass(LOOK_AGAIN);
    world.settle();
    assert_eq!(condition(&world, DEGRADED).0, "False");
}

#[test]
fn label_that_webhook_restores_is_removed_with_growing_pauses() {
    let (mut world, pod) = labelled();
    world.changes = Some(|pod, _| pod["metadata"]["labels"]["foreign"] = json!("x"));
    world.show();
    let count = syncs_in(&mut world, Span::from_secs(600));
    assert!((40..80).contains(&count), "{count} in ten minutes");
    assert!(condition(&world, DEGRADED).1.contains(FOREIGN));
    grows(&mut world, &pod);
    world.changes = None;
    world.pass(LOOK_AGAIN);
    world.settle();
    assert_eq!(condition(&world, DEGRADED).0, "False");
    assert!(!world.pod(&pod).metadata.labels.contains_key("foreign"));
}

/// Its every answer is news.
#[test]
fn webhook_that_stamps_writes_causes_no_write() {
    let (mut world, pod) = labelled();
    world.changes = Some(|pod, count| {
        pod["metadata"]["annotations"]["stamp"] = json!(count.to_string());
    });
    world.show();
    let count = syncs_in(&mut world, Span::from_secs(600));
    assert!(count < 200, "{count} in ten minutes");
    grows(&mut world, &pod);
}

#[test]
fn a_growth_is_said_in_one_write_together_with_all_else() {
    let (mut world, pod) = labelled();
    world.show();
    world.edit(|vm| {
        set_size(vm, 2000, 4, 7, 1);
        vm.metadata.labels.insert("a".into(), "b".into());
    });
    let kinds = world.settle();
    let syncs = kinds.iter().filter(|kind| kind.starts_with("PatchPod"));
    assert_eq!(syncs.count(), 1, "{kinds:?}");
    let ops = world.log.iter().find_map(|action| match action {
        Action::PatchPodMetadata { ops, .. } if ops.iter().any(is_about_foreign) => Some(ops),
        _ => None,
    });
    assert!(ops.expect("all of it").len() > 3);
    assert_eq!(world.pod(&pod).metadata.labels["a"], "b");
}
