//! What is not written of a resize that is done at once.

use protocol::time::Span;
use protocol::units::MilliCpu;
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
    world.edit(|vm| ask(vm, 2000, 4));
    world.settle();
    world.finish_resize(&pod);
    world.settle();
    while world.core.poll_note().is_some() {}
    (world, pod)
}

fn ask(vm: &mut VirtualMachine, milli: u32, slots: i32) {
    vm.spec.guest.cpus.r#use = MilliCpu(milli);
    vm.spec.guest.memory_slots.r#use = slots;
}

fn usage(world: &World, pod: &str) -> String {
    world.pod(pod).metadata.annotations[USAGE].clone()
}

fn scaled(world: &mut World) -> usize {
    std::iter::from_fn(|| world.core.poll_note())
        .filter(|note| note.reason() == "Scaled")
        .count()
}

#[test]
fn a_quick_shrink_is_ordered_at_once_and_written_once() {
    let (mut world, pod) = running();
    assert_eq!(usage(&world, &pod), LARGE);
    world.edit(|vm| ask(vm, 500, 1));
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
fn a_slow_shrink_says_so_in_time() {
    let (mut world, pod) = running();
    world.edit(|vm| ask(vm, 500, 1));
    world.settle();
    let due = world.core.poll_deadline().expect("a deadline");
    assert!(due.since(world.at.now) <= Span::from_millis(100), "{due:?}");
    world.pass(Span::from_millis(100));
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
    let (mut world, pod) = running();
    world.edit(|vm| ask(vm, 500, 1));
    world.settle();
    world.finish_resize(&pod);
    world.settle();
    world.edit(|vm| ask(vm, 2000, 4));
    assert_eq!(world.settle(), ["PatchPodMetadata", "SetSize"]);
    assert_eq!(usage(&world, &pod), LARGE);
    world.finish_resize(&pod);
    assert_eq!(world.settle(), ["WriteStatus"]);
}

#[test]
fn what_a_pod_says_and_what_it_requests_are_written_side_by_side() {
    let (mut world, pod) = running_as(true);
    world.edit(|vm| ask(vm, 500, 1));
    world.settle();
    world.finish_resize(&pod);
    world.settle();
    world.edit(|vm| ask(vm, 2000, 4));
    let mut under_way = Vec::new();
    while let Some(action) = world.core.poll_action(world.at) {
        under_way.push(action);
    }
    let kinds: Vec<Kind> = under_way.iter().map(|action| action.kind()).collect();
    assert_eq!(kinds, [Kind::PatchPodMetadata, Kind::ResizePod]);
    // Whichever is answered first, the guest waits for both.
    for (action, order_follows) in under_way.iter().rev().zip([false, true]) {
        let result = world.carry_out(action);
        world.is_done(action.kind(), world.at, result);
        let next = world.core.poll_action(world.at);
        let ordered = next.is_some_and(|next| next.kind() == Kind::SetSize);
        assert_eq!(ordered, order_follows, "after {:?}", action.kind());
    }
}
