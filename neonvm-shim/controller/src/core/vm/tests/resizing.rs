use protocol::core::Core as _;
use protocol::quantity::Quantity;
use protocol::revision::{Revision, RevisionWithTime};
use protocol::time::{Span, WallTime};
use protocol::units::{Bytes, MilliCpu};
use protocol::vm::{VirtualMachine, VmPhase};
use serde_json::json;

use super::phases;
use super::world::World;
use crate::core::refusal::Refusal;
use crate::core::testing::sample_vm;
use crate::core::vm::Event;
use crate::core::vm_event::VmEvent;
use crate::core::{Kind, Settings};

pub(super) fn running() -> (World, String) {
    phases::running(&sample_vm())
}

pub(super) fn set_size(vm: &mut VirtualMachine, milli: u32, slots: i32, value: i64, flags: u64) {
    vm.spec.guest.cpus.r#use = MilliCpu(milli);
    vm.spec.guest.memory_slots.r#use = slots;
    vm.spec.target_revision = Some(RevisionWithTime {
        revision: Revision { value, flags },
        updated_at: WallTime(1_700_000_000_000_000),
    });
}

pub(super) fn current(world: &World) -> Option<Revision> {
    world
        .status()
        .current_revision
        .map(|current| current.revision)
}

/// Requirement: N14. Whole change in one order, and the pod says so before the guest grows.
#[test]
fn growth_is_one_order_after_pod_annotations() {
    let (mut world, pod) = running();
    world.edit(|vm| set_size(vm, 2000, 4, 7, 1));
    let kinds = world.settle();
    assert_eq!(
        kinds[0], "PatchPodMetadata",
        "the scheduler's sums come first"
    );
    assert!(kinds.contains(&"SetSize".to_owned()));
    assert_eq!(kinds.iter().filter(|kind| *kind == "SetSize").count(), 1);
    let order = world.runners[&pod].resize.clone().expect("an order").order;
    assert_eq!((order.cpu, order.memory), (MilliCpu(2000), Bytes::gib(4)));
    assert_eq!(
        (order.trace.vm.as_str(), order.trace.revision),
        ("default/example", 7)
    );
    assert_eq!(world.phase(), VmPhase::Scaling);
    assert_eq!(current(&world), None, "not before it is done");
    let usage = world.pod(&pod).metadata.annotations["vm.neon.tech/usage"].clone();
    assert_eq!(usage, r#"{"cpu":"2","memory":"4Gi"}"#);

    world.finish_resize(&pod);
    assert_eq!(world.settle(), ["WriteStatus"]);
    let status = world.status();
    assert_eq!(status.phase, VmPhase::Running);
    assert_eq!(status.cpus, Some(MilliCpu(2000)));
    assert_eq!(status.memory_size, Some(Quantity::from_bytes(4 << 30)));
    assert_eq!(current(&world), Some(Revision { value: 7, flags: 1 }));
    let scaled = std::iter::from_fn(|| world.core.poll_event()).last();
    let Some(VmEvent::Scaled {
        from,
        to,
        revision: 7,
    }) = scaled
    else {
        panic!("{scaled:?}")
    };
    assert_eq!((from.cpu.0, to.cpu.0, to.mem.0), (250, 2000, 4 << 30));
}

#[test]
fn growth_waits_for_pod_annotations() {
    let (mut world, _) = running();
    world.edit(|vm| set_size(vm, 500, 2, 1, 1));
    let first = world.core.poll_action(world.at).expect("something to do");
    assert_eq!(first.kind(), Kind::PatchPodMetadata);
    assert_eq!(world.core.poll_action(world.at), None, "nothing beside it");
    let refused = Err(Refusal::Failed {
        message: "no".into(),
        permanent: false,
    });
    let done = Event::Done {
        kind: first.kind(),
        began: world.at,
        result: refused,
    };
    world.core.handle(world.at, done);
    while let Some(action) = world.core.poll_action(world.at) {
        assert_ne!(action.kind(), Kind::SetSize, "the pod does not say it yet");
        let result = Err(Refusal::Failed {
            message: "no".into(),
            permanent: false,
        });
        world.core.handle(
            world.at,
            Event::Done {
                kind: action.kind(),
                began: world.at,
                result,
            },
        );
    }
    world.pass(Span::from_secs(1));
    assert!(
        world.settle().contains(&"SetSize".to_owned()),
        "it is tried again"
    );
}

#[test]
fn shrink_is_ordered_at_once_beside_pod_annotations() {
    let (mut world, pod) = running();
    world.edit(|vm| set_size(vm, 2000, 4, 1, 1));
    world.settle();
    world.finish_resize(&pod);
    world.settle();
    world.edit(|vm| set_size(vm, 250, 1, 2, 2));
    let first = world.core.poll_action(world.at).map(|action| action.kind());
    let second = world.core.poll_action(world.at).map(|action| action.kind());
    assert_eq!(
        (first, second),
        (Some(Kind::SetSize), Some(Kind::PatchPodMetadata))
    );
}

#[test]
fn newer_size_replaces_order_under_way() {
    let (mut world, pod) = running();
    world.edit(|vm| set_size(vm, 1000, 2, 1, 1));
    world.settle();
    world.edit(|vm| set_size(vm, 2000, 4, 2, 1));
    world.settle();
    let order = world.runners[&pod].resize.clone().expect("an order").order;
    assert_eq!((order.cpu, order.trace.revision), (MilliCpu(2000), 2));
    world.finish_resize(&pod);
    world.settle();
    assert_eq!(current(&world), Some(Revision { value: 2, flags: 1 }));
}

#[test]
fn changed_annotation_of_vm_reaches_pod_at_once() {
    let (mut world, pod) = running();
    let key = "internal.autoscaling.neon.tech/resources-approved";
    world.edit(|vm| {
        vm.metadata
            .annotations
            .insert(key.into(), r#"{"vCPUs":1,"mem":"4Gi"}"#.into());
        vm.metadata.labels.insert("team".into(), "db".into());
    });
    assert_eq!(world.settle(), ["PatchPodMetadata"]);
    let metadata = world.pod(&pod).metadata;
    assert_eq!(metadata.annotations[key], r#"{"vCPUs":1,"mem":"4Gi"}"#);
    assert_eq!(metadata.labels["team"], "db");
    world.edit(|vm| {
        vm.metadata.annotations.remove(key);
        vm.metadata.labels.remove("team");
    });
    world.settle();
    assert!(!world.pod(&pod).metadata.annotations.contains_key(key));
}

/// The e2e case autoscaling.revisions, steps 0 and 1.
#[test]
fn revisions_are_copied_backwards_too() {
    let mut vm = sample_vm();
    set_size(&mut vm, 250, 1, 123, 456);
    let mut world = World::new(&vm);
    world.settle();
    let pod = world.status().pod_name;
    world.start(&pod);
    world.settle();
    assert_eq!(
        current(&world),
        Some(Revision {
            value: 123,
            flags: 456
        })
    );
    world.edit(|vm| set_size(vm, 250, 1, 1, 123));
    assert_eq!(world.settle(), ["WriteStatus"]);
    assert_eq!(
        current(&world),
        Some(Revision {
            value: 1,
            flags: 123
        })
    );
    let at = world.status().current_revision.expect("one").updated_at;
    assert_eq!(at.0 % 1_000_000, 0, "whole seconds, as the wire keeps them");
    world.edit(|vm| vm.spec.target_revision = None);
    assert!(world.settle().is_empty());
}

#[test]
fn progress_is_written_at_most_four_times_per_second() {
    let (mut world, pod) = running();
    world.edit(|vm| set_size(vm, 250, 4, 1, 1));
    world.settle();
    assert_eq!(world.phase(), VmPhase::Scaling);
    let mut writes = 0;
    for step in 1..=20_u64 {
        world.pass(Span::from_millis(50));
        let state = world.runners.get_mut(&pod).expect("there");
        state.memory.plugged = Bytes::mib(128 * step);
        state.generation += 1;
        world.show_runner();
        writes += world.settle().len();
    }
    assert!((3..=4).contains(&writes), "{writes} writes in a second");
    world.finish_resize(&pod);
    assert_eq!(
        world.settle(),
        ["WriteStatus"],
        "the end is written at once"
    );
}

#[test]
fn last_progress_is_written_without_another_event() {
    let (mut world, pod) = running();
    world.edit(|vm| set_size(vm, 250, 4, 1, 1));
    world.settle();
    world.pass(Span::from_millis(100));
    world.runners.get_mut(&pod).expect("there").memory.plugged = Bytes::gib(1);
    world.show_runner();
    assert!(world.settle().is_empty());
    let due = world.core.poll_deadline().expect("a deadline");
    assert!(due.since(world.at.now) <= Span::from_millis(150));
    world.pass(Span::from_millis(150));
    assert_eq!(world.settle(), ["WriteStatus"]);
    assert_eq!(
        world.status().memory_size,
        Some(Quantity::from_bytes(2 << 30))
    );
}

pub(super) fn requesting() -> (World, String) {
    let settings = Settings {
        true_requests: true,
        quick: Span(0),
        ..Settings::one_machine()
    };
    let mut world = World::with(&sample_vm(), settings);
    world.settle();
    let pod = world.status().pod_name;
    world.start(&pod);
    world.settle();
    (world, pod)
}

pub(super) fn requested(world: &World, pod: &str) -> serde_json::Value {
    world.pods[pod]["spec"]["containers"][0]["resources"]["requests"].clone()
}

/// Requirement: N41
#[test]
fn requests_grow_before_guest_and_shrink_after_it() {
    let (mut world, pod) = requesting();
    assert_eq!(
        requested(&world, &pod),
        json!({"cpu": "250m", "memory": "1Gi"})
    );
    world.edit(|vm| set_size(vm, 2000, 4, 1, 1));
    let kinds = world.settle();
    assert!(kinds.contains(&"SetSize".to_owned()), "{kinds:?}");
    let at = |kind: &str| kinds.iter().position(|it| it == kind);
    assert!(at("ResizePod") < at("SetSize"), "{kinds:?}");
    assert!(at("ResizePod").is_some(), "{kinds:?}");
    let large = json!({"cpu": "2", "memory": "4Gi"});
    assert_eq!(requested(&world, &pod), large);
    world.finish_resize(&pod);
    world.settle();
    world.edit(|vm| set_size(vm, 500, 2, 2, 1));
    world.settle();
    assert_eq!(requested(&world, &pod), large, "the guest has it yet");
    world.finish_resize(&pod);
    assert!(world.settle().contains(&"ResizePod".to_owned()));
    assert_eq!(
        requested(&world, &pod),
        json!({"cpu": "500m", "memory": "2Gi"})
    );
    assert!(world.settle().is_empty());
}
