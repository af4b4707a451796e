//! What is not written of a resize that is done at once.

use protocol::core::Core as _;
use protocol::time::Span;
use protocol::units::{Bytes, MilliCpu};
use protocol::vm::{VirtualMachine, VmPhase};

use super::world::World;
use crate::core::testing::sample_vm;
use crate::core::{Kind, Settings};

const USAGE: &str = "vm.neon.tech/usage";
const LARGE: &str = r#"{"cpu":"2","memory":"4Gi"}"#;
const SMALL: &str = r#"{"cpu":"500m","memory":"1Gi"}"#;

/// A guest of 2 CPUs and 4 GiB.
fn running() -> (World, String) {
    running_as(false)
}

/// The same, whose pod requests what it has if `true_requests`.
fn running_as(true_requests: bool) -> (World, String) {
    let settings = Settings {
        true_requests,
        ..Settings::one_machine()
    };
    let mut world = World::with(&sample_vm(), settings);
    world.settle();
    let pod = world.status().pod_name;
    world.start(&pod);
    world.settle();
    world.edit(|vm| set_size(vm, 2000, 4));
    world.settle();
    world.finish_resize(&pod);
    world.settle();
    while world.core.poll_event().is_some() {}
    (world, pod)
}

fn set_size(vm: &mut VirtualMachine, milli: u32, slots: i32) {
    vm.spec.guest.cpus.r#use = MilliCpu(milli);
    vm.spec.guest.memory_slots.r#use = slots;
}

/// The same guest, made small and now to grow to what it had.
fn growing(true_requests: bool) -> (World, String) {
    let (mut world, pod) = running_as(true_requests);
    world.edit(|vm| set_size(vm, 500, 1));
    world.settle();
    world.finish_resize(&pod);
    world.settle();
    world.edit(|vm| set_size(vm, 2000, 4));
    (world, pod)
}

fn usage(world: &World, pod: &str) -> String {
    world.pod(pod).metadata.annotations[USAGE].clone()
}

fn scaled(world: &mut World) -> usize {
    std::iter::from_fn(|| world.core.poll_event())
        .filter(|note| note.reason() == "Scaled")
        .count()
}

#[test]
fn a_quick_shrink_is_ordered_at_once_and_written_once() {
    let (mut world, pod) = running();
    assert_eq!(usage(&world, &pod), LARGE);
    world.edit(|vm| set_size(vm, 500, 1));
    assert_eq!(world.settle(), ["SetSize"]);
    assert_eq!(usage(&world, &pod), LARGE, "the guest still has it");
    world.pass(Span::from_millis(60));
    world.finish_resize(&pod);
    let mut kinds = world.settle();
    kinds.sort();
    assert_eq!(kinds, ["PatchPodMetadata", "WriteStatus"]);
    assert_eq!(world.phase(), VmPhase::Running);
    assert_eq!(world.status().cpus, Some(MilliCpu(500)));
    assert_eq!(usage(&world, &pod), SMALL);
    assert_eq!(scaled(&mut world), 1, "people are told all the same");
}

#[test]
fn slow_shrink_is_shown_as_scaling() {
    let (mut world, pod) = running();
    world.edit(|vm| set_size(vm, 500, 1));
    world.settle();
    let due = world.core.poll_deadline().expect("a deadline");
    let quick = Settings::one_machine().quick;
    assert!(due.since(world.at.now) <= quick, "{due:?}");
    world.pass(quick);
    let kinds = world.settle();
    assert!(kinds.contains(&"WriteStatus".to_owned()), "{kinds:?}");
    assert_eq!(world.phase(), VmPhase::Scaling);
    assert_eq!(usage(&world, &pod), SMALL);
    world.finish_resize(&pod);
    world.settle();
    assert_eq!(world.phase(), VmPhase::Running);
    assert_eq!(scaled(&mut world), 1);
}

#[test]
fn a_quick_growth_is_on_its_pod_before_the_guest_has_it() {
    let (mut world, pod) = growing(false);
    assert_eq!(world.settle(), ["PatchPodMetadata", "SetSize"]);
    assert_eq!(usage(&world, &pod), LARGE);
    world.finish_resize(&pod);
    assert_eq!(world.settle(), ["WriteStatus"]);
}

/// Requirement: N41. What a pod requests says how large its guest may be: what else it says follows
/// the guest.
#[test]
fn growth_waits_for_its_pods_requests_alone() {
    let (mut world, pod) = growing(true);
    let first = world.core.poll_action(world.at).expect("something to do");
    assert_eq!(first.kind(), Kind::ResizePod);
    assert_eq!(world.core.poll_action(world.at), None, "nothing beside it");
    let result = world.carry_out(&first);
    world.is_done(first.kind(), world.at, result);
    assert_eq!(world.settle(), ["SetSize"]);
    assert_eq!(usage(&world, &pod), SMALL);
    world.finish_resize(&pod);
    let mut kinds = world.settle();
    kinds.sort();
    assert_eq!(kinds, ["PatchPodMetadata", "WriteStatus"]);
    assert_eq!(usage(&world, &pod), LARGE);
}

/// Requirement: N41. A server that resizes no pods leaves their metadata to say it.
#[test]
fn growth_waits_for_metadata_when_requests_cannot_follow() {
    let (mut world, _) = growing(true);
    let kinds = world.order_without_resizing_pods();
    let at = |kind| kinds.iter().position(|it| *it == kind);
    let (said, ordered) = (at(Kind::PatchPodMetadata), at(Kind::SetSize));
    assert!(said.is_some() && said < ordered, "{kinds:?}");
}

/// The guest has given back some of the memory that QEMU asks of it, and has this much.
fn gives_back(world: &mut World, pod: &str, gib: u64) {
    let state = world.runners.get_mut(pod).expect("the runner is there");
    state.memory.plugged = Bytes((gib << 30) - state.memory.base.0);
    let order = state.resize.as_ref().map(|report| report.order.memory.0);
    let ordered = order.unwrap_or(gib << 30);
    state.memory.requested = Bytes(ordered - state.memory.base.0);
    state.generation += 1;
    world.show_runner();
}

/// Requirement: N41. Every change of what a pod requests is work for its kubelet, on the node whose
/// guest is at work.
#[test]
fn requests_follow_slow_shrink_at_intervals_and_its_end_at_once() {
    let (mut world, pod) = running_as(true);
    world.edit(|vm| set_size(vm, 500, 1));
    world.settle();
    let mut resizes = Vec::new();
    for tenth in 0..14 {
        world.pass(Span::from_millis(100));
        gives_back(&mut world, &pod, if tenth < 7 { 3 } else { 2 });
        if world.settle().contains(&"ResizePod".to_owned()) {
            resizes.push(tenth);
        }
    }
    assert_eq!(resizes, [9], "a second after it was ordered");
    world.finish_resize(&pod);
    assert!(world.settle().contains(&"ResizePod".to_owned()));
    let requests = &world.pods[&pod]["spec"]["containers"][0]["resources"]["requests"];
    assert_eq!(requests["memory"], "1Gi");
}
