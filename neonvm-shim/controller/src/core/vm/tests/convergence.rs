//! From any state, in a world that answers, the core comes to rest; on the way it never loses a
//! restart and never has two pods for one VM.

use proptest::prelude::*;
use protocol::core::Core as _;
use protocol::time::Span;
use protocol::units::{Bytes, MilliCpu};
use protocol::vm::{RestartPolicy, VirtualMachine, VmPhase, VmStatus};
use serde_json::json;

use super::phases::running;
use super::reports::{has, status_mib};
use super::world::World;
use crate::core::metadata::annotated_size;
use crate::core::phases::ORDER_LASTS;
use crate::core::refusal::Refusal;
use crate::core::testing::sample_vm;
use crate::core::vm::Event;
use crate::core::{Action, ActionResponse, Kind, Settings};

#[derive(Debug, Clone)]
enum Happening {
    Resize { quarters: u32, slots: i32 },
    Annotate(u8),
    EndPod { well: bool },
    LosePod,
    HidePod,
    DeletePod,
    StartPod,
    FinishResize,
    RestartController,
    Time { ms: u64 },
    RefuseNext,
    Settle,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        (1_u32..=8, 1_i32..=4).prop_map(|(quarters, slots)| Happening::Resize { quarters, slots }),
        any::<u8>().prop_map(Happening::Annotate),
        any::<bool>().prop_map(|well| Happening::EndPod { well }),
        Just(Happening::LosePod),
        Just(Happening::HidePod),
        Just(Happening::DeletePod),
        Just(Happening::StartPod),
        Just(Happening::FinishResize),
        Just(Happening::RestartController),
        (1_u64..20_000).prop_map(|ms| Happening::Time { ms }),
        Just(Happening::RefuseNext),
        Just(Happening::Settle),
    ]
}

fn first_state() -> impl Strategy<Value = VirtualMachine> {
    let phases = prop_oneof![
        Just(VmPhase::New),
        Just(VmPhase::Pending),
        Just(VmPhase::Running),
        Just(VmPhase::Scaling),
        Just(VmPhase::Succeeded),
        Just(VmPhase::Failed),
    ];
    (
        phases,
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        0_i32..5,
    )
        .prop_map(|(phase, named, finalizer, mode, restart_count)| {
            let mut vm = sample_vm();
            if !finalizer {
                vm.metadata.finalizers.clear();
            }
            if !mode {
                vm.spec.cpu_scaling_mode = None;
            }
            let pod_name = if named {
                "example-first".into()
            } else {
                String::new()
            };
            vm.status = Some(VmStatus {
                phase,
                pod_name,
                restart_count,
                ..VmStatus::default()
            });
            vm
        })
}

fn happen(world: &mut World, what: &Happening) {
    let pod = world.status().pod_name;
    let there = world.pods.contains_key(&pod);
    match what {
        Happening::Resize { quarters, slots } => world.edit(|vm| {
            vm.spec.guest.cpus.r#use = MilliCpu(quarters * 250);
            vm.spec.guest.memory_slots.r#use = *slots;
        }),
        Happening::Annotate(n) => world.edit(|vm| {
            vm.metadata.annotations.insert("note".into(), n.to_string());
        }),
        Happening::EndPod { well } if there => {
            world.end(&pod, if *well { "Succeeded" } else { "Failed" }, 1);
        }
        Happening::LosePod if there => world.remove_pod(&pod),
        Happening::HidePod if there => {
            world.take_label(&pod);
            world.settle();
        }
        Happening::DeletePod if there => {
            let at = world.at.wall;
            let object = world.pods.get_mut(&pod).expect("it is there");
            object["metadata"]["deletionTimestamp"] = json!(at);
            world.touch_pod(&pod);
            world.show();
        }
        // A pod starts once: its container is never restarted in place.
        Happening::StartPod
            if there && !world.runners.contains_key(&pod) && !world.pod(&pod).is_terminal() =>
        {
            world.start(&pod);
        }
        Happening::FinishResize if world.runners.contains_key(&pod) => world.finish_resize(&pod),
        Happening::RestartController => world.restart_controller(),
        Happening::Time { ms } => world.pass(Span::from_millis(*ms)),
        Happening::RefuseNext => {
            if let Some(action) = world.core.poll_action(world.at) {
                let result = Err(Refusal::Failed {
                    message: "busy".into(),
                    permanent: false,
                });
                let done = Event::Done {
                    kind: action.kind(),
                    began: world.at,
                    result,
                };
                world.core.handle(world.at, done);
            }
        }
        Happening::Settle => {
            world.settle();
        }
        _ => {}
    }
}

proptest! {
    #[test]
    fn plan_converges_and_never_has_two_pods(
        vm in first_state(),
        happenings in proptest::collection::vec(happening(), 0..40),
    ) {
        let mut world = World::with(&vm, Settings::one_machine());
        let mut restarts = world.status().restart_count;
        for what in &happenings {
            happen(&mut world, what);
            let now = world.status().restart_count;
            prop_assert!(now >= restarts, "{what:?} lost a restart");
            restarts = now;
            prop_assert!(world.most_pods <= 1, "two pods after {what:?}");
        }
        world.live();
        let status = world.status();
        prop_assert!(status.restart_count >= restarts);
        prop_assert!(world.most_pods <= 1);
        prop_assert_eq!(status.phase, VmPhase::Running, "policy Always ends with a VM that runs");
        prop_assert_eq!(status.cpus, Some(world.vm().spec.guest.cpus.r#use));
        prop_assert_eq!(world.pods.len(), 1);
        // Applied again, nothing follows: also to a controller that has just started.
        prop_assert_eq!(world.settle_writes(), Vec::<String>::new());
        world.restart_controller();
        prop_assert_eq!(world.settle_writes(), Vec::<String>::new());
    }

    #[test]
    fn a_vm_that_is_not_to_run_again_comes_to_rest_too(
        happenings in proptest::collection::vec(happening(), 0..30),
    ) {
        let mut vm = sample_vm();
        vm.spec.restart_policy = RestartPolicy::Never;
        let mut world = World::with(&vm, Settings::one_machine());
        for what in &happenings {
            happen(&mut world, what);
        }
        world.live();
        let status = world.status();
        prop_assert!(matches!(status.phase, VmPhase::Running | VmPhase::Succeeded | VmPhase::Failed));
        prop_assert_eq!(status.restart_count, 0);
        prop_assert!(world.most_pods <= 1);
    }

    /// Somebody else has a pod of the name that the VM chose.
    #[test]
    fn pod_of_other_owner_is_left_alone(
        happenings in proptest::collection::vec(happening(), 0..30),
    ) {
        let mut vm = sample_vm();
        vm.status = Some(VmStatus {
            phase: VmPhase::Pending,
            pod_name: "example-first".into(),
            ..VmStatus::default()
        });
        let mut world = World::with(&vm, Settings::one_machine());
        world.make_foreign_pod("example-first");
        for what in &happenings {
            happen(&mut world, what);
        }
        world.live();
        let status = world.status();
        prop_assert_eq!(status.phase, VmPhase::Running);
        prop_assert_ne!(&status.pod_name, "example-first");
        prop_assert_eq!(world.pods.len(), 1);
    }

    #[test]
    fn deleted_vm_goes_with_its_objects(
        vm in first_state(),
        happenings in proptest::collection::vec(happening(), 0..20),
    ) {
        let mut world = World::with(&vm, Settings::one_machine());
        for what in &happenings {
            happen(&mut world, what);
        }
        world.delete_vm();
        world.live();
        prop_assert!(world.vm.is_none(), "the finalizer is dropped");
        prop_assert!(world.pods.is_empty(), "no pod is left");
    }
}

/// Carries out what the core asks for until it orders a size; that order is under way then.
pub(super) fn until_ordered(world: &mut World) -> Action {
    loop {
        let action = world
            .core
            .poll_action(world.at)
            .expect("the size is ordered");
        if action.kind() == Kind::SetSize {
            return action;
        }
        let result = world.carry_out(&action);
        done(world, &action, result);
    }
}

pub(super) fn done(world: &mut World, action: &Action, result: Result<ActionResponse, Refusal>) {
    let event = Event::Done {
        kind: action.kind(),
        began: world.at,
        result,
    };
    world.core.handle(world.at, event);
}

#[test]
fn a_size_is_not_reached_while_an_order_of_another_is_on_its_way() {
    let (mut world, pod) = running(&sample_vm());
    let before = world.vm().spec.guest.cpus.r#use;
    world.edit(|vm| vm.spec.guest.cpus.r#use = MilliCpu(1000));
    let growth = until_ordered(&mut world);
    // Taken back before the runner heard of it: the guest has the wanted size, and will not keep
    // it.
    world.edit(|vm| vm.spec.guest.cpus.r#use = before);
    world.settle();
    assert_eq!(world.phase(), VmPhase::Scaling);
    let answer = world.carry_out(&growth);
    done(&mut world, &growth, answer);
    world.settle();
    world.finish_resize(&pod);
    world.settle();
    assert_eq!(world.phase(), VmPhase::Running);
}

/// Its pod was made for a larger size, says less by now, and the order of less did not arrive.
#[test]
fn a_guest_that_boots_larger_than_its_pod_says_is_told_a_size_once_the_pod_says_it() {
    let mut vm = sample_vm();
    vm.spec.guest.cpus.r#use = MilliCpu(1750);
    let mut world = World::new(&vm);
    world.settle();
    let pod = world.status().pod_name;
    let says = |world: &World| {
        annotated_size(&world.pod(&pod).metadata)
            .expect("a size")
            .cpu
    };
    world.edit(|vm| vm.spec.guest.cpus.r#use = MilliCpu(250));
    world.settle();
    assert_eq!(says(&world), MilliCpu(1750), "it boots with that");
    world.start(&pod);
    let order = until_ordered(&mut world);
    world.settle();
    assert_eq!(says(&world), MilliCpu(250), "its status says the rest");
    let lost = Refusal::Failed {
        message: "the connection broke".into(),
        permanent: false,
    };
    done(&mut world, &order, Err(lost));
    world.edit(|vm| vm.spec.guest.cpus.r#use = MilliCpu(1000));
    let kinds = world.settle();
    let at = |kind| kinds.iter().position(|it| *it == format!("{kind:?}"));
    assert!(at(Kind::SetSize).is_some());
    assert!(at(Kind::PatchPodMetadata) < at(Kind::SetSize), "{kinds:?}");
    world.live();
    assert_eq!(world.status().cpus, Some(MilliCpu(1000)));
}

/// A controller that died had ordered a growth, and the order was on its way.
#[test]
fn pod_says_less_only_once_no_order_of_the_controller_before_may_arrive() {
    let (mut world, pod) = running(&sample_vm());
    let said = |world: &World| annotated_size(&world.pod(&pod).metadata);
    let before = said(&world);
    world.edit(|vm| vm.spec.guest.memory_slots.r#use = 4);
    let order = until_ordered(&mut world);
    let large = said(&world);
    assert_ne!(large, before);
    world.edit(|vm| vm.spec.guest.memory_slots.r#use = 1);
    world.restart_controller();
    world.settle();
    assert_eq!(said(&world), large, "{order:?} may arrive");
    world.pass(ORDER_LASTS);
    world.settle();
    assert_eq!(said(&world), before);
}

/// The status is of a guest that went on growing after the controller had died.
#[test]
fn a_pod_says_less_only_once_the_status_says_what_its_guest_has() {
    let (mut world, pod) = running(&sample_vm());
    world.edit(|vm| vm.spec.guest.memory_slots.r#use = 4);
    world.settle();
    has(&mut world, &pod, 2048);
    world.settle();
    assert_eq!(status_mib(&world), 2048);
    let state = world.runners.get_mut(&pod).expect("the runner is there");
    state.memory.plugged = Bytes(Bytes::mib(4096).0 - state.memory.base.0);
    world.edit(|vm| vm.spec.guest.memory_slots.r#use = 1);
    world.restart_controller();
    world.pass(ORDER_LASTS);
    let kinds = world.settle();
    let at = |kind| kinds.iter().position(|it| *it == format!("{kind:?}"));
    assert!(at(Kind::WriteStatus).is_some());
    assert!(
        at(Kind::WriteStatus) < at(Kind::PatchPodMetadata),
        "{kinds:?}"
    );
}
