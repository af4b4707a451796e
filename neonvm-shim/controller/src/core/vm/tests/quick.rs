//! What is not written of a resize that is done at once.

use protocol::time::Span;
use protocol::units::MilliCpu;
use protocol::vm::{VirtualMachine, VmPhase};

use super::world::{World, permit};
use crate::core::testing::sample_vm;
use crate::core::{Kind, Settings};

const USAGE: &str = "vm.neon.tech/usage";
const LARGE: &str = r#"{"cpu":"2","memory":"4Gi"}"#;
const SMALL: &str = r#"{"cpu":"500m","memory":"1Gi"}"#;

/// A guest of 2 CPUs and 4 GiB.
fn running() -> (World, String) {
    running_as(&sample_vm(), false)
}

/// The same of a VM, whose pod requests what it has if `true_requests`.
fn running_as(vm: &VirtualMachine, true_requests: bool) -> (World, String) {
    let settings = Settings {
        true_requests,
        ..Settings::one_machine()
    };
    let mut world = World::with(vm, settings);
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
    assert!(due.since(world.at.now) <= world.settings.quick, "{due:?}");
    world.pass(world.settings.quick);
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

/// A guest of half a CPU and 1 GiB that may have 2 CPUs and 4 GiB, as the agent is told before it asks for them.
fn small_and_permitted() -> (World, String) {
    let mut vm = sample_vm();
    permit(&mut vm, 2000, 4);
    let (mut world, pod) = running_as(&vm, true);
    world.edit(|vm| ask(vm, 500, 1));
    world.settle();
    world.finish_resize(&pod);
    world.settle();
    while world.core.poll_note().is_some() {}
    (world, pod)
}

fn requested_cpu(world: &World, pod: &str) -> String {
    let containers = &world.pods[pod]["spec"]["containers"];
    let cpu = &containers[0]["resources"]["requests"]["cpu"];
    cpu.as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_quick_permitted_growth_is_ordered_at_once_and_written_once() {
    let (mut world, pod) = small_and_permitted();
    world.edit(|vm| ask(vm, 2000, 4));
    assert_eq!(world.settle(), ["SetSize"]);
    assert_eq!(usage(&world, &pod), SMALL, "the permit is counted");
    world.pass(Span::from_millis(60));
    world.finish_resize(&pod);
    let mut kinds = world.settle();
    kinds.sort();
    assert_eq!(kinds, ["PatchPodMetadata", "ResizePod", "WriteStatus"]);
    assert_eq!(world.phase(), VmPhase::Running);
    assert_eq!(usage(&world, &pod), LARGE);
    assert_eq!(requested_cpu(&world, &pod), "2");
    assert_eq!(scaled(&mut world), 1);
}

#[test]
fn a_slow_permitted_growth_is_on_its_pod_in_time() {
    let (mut world, pod) = small_and_permitted();
    world.edit(|vm| ask(vm, 2000, 4));
    assert_eq!(world.settle(), ["SetSize"]);
    let due = world.core.poll_deadline().expect("a deadline");
    assert!(due.since(world.at.now) <= world.settings.quick, "{due:?}");
    world.pass(world.settings.quick);
    world.settle();
    assert_eq!(world.phase(), VmPhase::Scaling);
    assert_eq!(usage(&world, &pod), LARGE);
    assert_eq!(requested_cpu(&world, &pod), "2");
}

#[test]
fn a_controller_that_dies_after_a_permitted_order_leaves_the_pod_to_the_next() {
    let (mut world, pod) = small_and_permitted();
    world.edit(|vm| ask(vm, 2000, 4));
    assert_eq!(world.settle(), ["SetSize"]);
    world.finish_resize(&pod);
    world.restart_controller();
    world.settle();
    assert_eq!(usage(&world, &pod), LARGE);
    assert_eq!(requested_cpu(&world, &pod), "2");
    assert_eq!(world.status().cpus, Some(MilliCpu(2000)));
}

#[test]
fn what_no_permit_covers_is_on_its_pod_first() {
    type Change = fn(&mut VirtualMachine);
    let uncovered: [(&str, Change); 4] = [
        ("less CPU", |vm| permit(vm, 1750, 4)),
        ("less memory", |vm| permit(vm, 2000, 3)),
        ("nobody scales it", |vm| {
            permit(vm, 2000, 4);
            vm.metadata.labels.clear();
        }),
        ("not a size", |vm| {
            permit(vm, 2000, 4);
            for text in vm.metadata.annotations.values_mut() {
                "garbled".clone_into(text);
            }
        }),
    ];
    for (what, change) in uncovered {
        let (mut world, pod) = small_and_permitted();
        world.edit(change);
        world.settle();
        world.edit(|vm| ask(vm, 2000, 4));
        let kinds = world.settle();
        let (last, first) = kinds.split_last().expect("something is done");
        assert_eq!(first, ["PatchPodMetadata", "ResizePod"], "{what}");
        assert_eq!(last, "SetSize", "{what}");
        assert_eq!(usage(&world, &pod), LARGE, "{what}");
    }
}

#[test]
fn what_a_pod_says_and_what_it_requests_are_written_side_by_side() {
    let (mut world, _) = running_as(&sample_vm(), true);
    world.edit(|vm| ask(vm, 500, 1));
    world.settle();
    let pod = world.status().pod_name;
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
