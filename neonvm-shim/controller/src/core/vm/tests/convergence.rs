//! From any state, in a world that answers, the core comes to rest; on the way it never loses a
//! restart and never has two pods for one VM.

use std::collections::BTreeSet;

use proptest::prelude::*;
use protocol::runner::{BeforeSilence, DiskFull, GuestSilence, MemoryState, RunnerPhase};
use protocol::time::Span;
use protocol::units::{Bytes, MilliCpu};
use protocol::vm::{RestartPolicy, VirtualMachine, VmPhase, VmStatus};
use serde_json::json;

use super::phases::running;
use super::world::World;
use crate::core::metadata::annotated_size;
use crate::core::refusal::Refusal;
use crate::core::testing::sample_vm;
use crate::core::vm::Event;
use crate::core::{Action, Kind, Reply, Settings};

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
        Happening::StartPod if there && !world.pod(&pod).is_terminal() => world.start(&pod),
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
fn until_ordered(world: &mut World) -> Action {
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

fn done(world: &mut World, action: &Action, result: Result<Reply, Refusal>) {
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

/// The status is of a guest that went on growing after the controller had died.
#[test]
fn a_pod_says_less_only_once_the_status_says_what_its_guest_has() {
    let (mut world, pod) = running(&sample_vm());
    world.edit(|vm| vm.spec.guest.memory_slots.r#use = 4);
    world.settle();
    has(&mut world, &pod, 2048);
    world.settle();
    assert_eq!(told(&world), 2048);
    let state = world.runners.get_mut(&pod).expect("the runner is there");
    state.memory.plugged = Bytes(Bytes::mib(4096).0 - state.memory.base.0);
    world.edit(|vm| vm.spec.guest.memory_slots.r#use = 1);
    world.restart_controller();
    let kinds = world.settle();
    let at = |kind| kinds.iter().position(|it| *it == format!("{kind:?}"));
    assert!(at(Kind::WriteStatus).is_some());
    assert!(
        at(Kind::WriteStatus) < at(Kind::PatchPodMetadata),
        "{kinds:?}"
    );
}

#[test]
fn the_answer_to_an_order_never_hides_a_later_report() {
    let (mut world, pod) = running(&sample_vm());
    world.edit(|vm| vm.spec.guest.cpus.r#use = MilliCpu(1000));
    let order = until_ordered(&mut world);
    let answer = world.carry_out(&order);
    // The runner is done, and says so over the other connection, before its answer to the order is
    // heard.
    world.finish_resize(&pod);
    done(&mut world, &order, answer);
    world.settle();
    assert_eq!(world.phase(), VmPhase::Running);
}

#[test]
fn a_runner_that_has_just_taken_over_says_nothing_of_sizes() {
    let (mut world, pod) = running(&sample_vm());
    let before = world.status().memory_size;
    assert!(before.is_some());
    // It has not looked at its QEMU yet.
    let state = world.runners.get_mut(&pod).expect("the runner is there");
    state.generation += 1;
    state.phase = RunnerPhase::Booting;
    state.memory = MemoryState::default();
    world.show_runner();
    world.settle();
    assert_eq!(world.status().memory_size, before);
}

/// Carries out what the core asks for; the watch tells of each write before its answer comes.
fn settle_by_watch(world: &mut World) {
    while let Some(action) = world.core.poll_action(world.at) {
        let result = world.carry_out(&action);
        world.show();
        done(world, &action, result);
    }
}

#[test]
fn no_pod_gets_the_name_of_an_earlier_one_whoever_tells_first() {
    let mut world = World::new(&sample_vm());
    for _ in 0..3 {
        settle_by_watch(&mut world);
        let pod = world.status().pod_name;
        world.start(&pod);
        settle_by_watch(&mut world);
        assert_eq!(world.phase(), VmPhase::Running);
        world.pass(Span::from_secs(61));
        world.end(&pod, "Failed", 1);
        settle_by_watch(&mut world);
        world.remove_pod(&pod);
    }
    let names: BTreeSet<&String> = world.created.iter().collect();
    assert_eq!(names.len(), 3, "{:?}", world.created);
}

#[test]
fn late_news_of_a_pod_never_hides_the_next_of_its_name() {
    let mut world = World::new(&sample_vm());
    world.settle();
    let pod = world.status().pod_name;
    world.end(&pod, "Failed", 1);
    let old = world.pod(&pod);
    let next = world.pods.get_mut(&pod).expect("the pod is there");
    next["metadata"]["uid"] = json!("uid-next");
    world.touch_pod(&pod);
    world.start(&pod);
    world.settle();
    // It is told of late, over a watch that stood still.
    world.core.handle(world.at, Event::Pod(Box::new(old)));
    world.settle();
    let status = world.status();
    assert_eq!(status.pod_name, pod);
    assert_eq!(world.pod(&pod).metadata.deletion_timestamp, None);
}

/// A guest of 4 GiB that gives up two of them and has 3 GiB so far, as its status says.
fn shrinking() -> (World, String) {
    let (mut world, pod) = running(&sample_vm());
    world.edit(|vm| vm.spec.guest.memory_slots.r#use = 4);
    world.settle();
    world.finish_resize(&pod);
    world.settle();
    world.edit(|vm| vm.spec.guest.memory_slots.r#use = 2);
    world.settle();
    has(&mut world, &pod, 3072);
    world.settle();
    assert_eq!(told(&world), 3072);
    (world, pod)
}

/// The guest has so much memory, MiB, while what its runner was told stands.
fn has(world: &mut World, pod: &str, mib: u64) {
    world.pass(Span::from_secs(1));
    let state = world.runners.get_mut(pod).expect("the runner is there");
    state.memory.plugged = Bytes(Bytes::mib(mib).0 - state.memory.base.0);
    state.generation += 1;
    world.show_runner();
}

/// The memory its status tells of, MiB.
fn told(world: &World) -> u64 {
    let memory = world.status().memory_size;
    memory.and_then(|memory| memory.as_u64()).expect("told") >> 20
}

#[test]
fn less_than_before_is_not_told_of_a_guest_that_is_on_its_way_to_more() {
    let (mut world, pod) = shrinking();
    world.edit(|vm| vm.spec.guest.memory_slots.r#use = 4);
    let growth = until_ordered(&mut world);
    // Taken back while the order is on its way, and the guest still gives up memory for the one
    // before.
    world.edit(|vm| vm.spec.guest.memory_slots.r#use = 2);
    has(&mut world, &pod, 2560);
    world.settle();
    assert_eq!(told(&world), 3072, "a growth is on its way");
    let answer = world.carry_out(&growth);
    done(&mut world, &growth, answer);
    let shrink = until_ordered(&mut world);
    has(&mut world, &pod, 2816);
    world.settle();
    assert_eq!(told(&world), 3072, "the runner was told to grow");
    let answer = world.carry_out(&shrink);
    done(&mut world, &shrink, answer);
    has(&mut world, &pod, 2560);
    world.settle();
    assert_eq!(told(&world), 2560, "it was told the wanted size");
}

/// What the condition says of a guest whose runner reports `full`.
fn told_of(world: &mut World, pod: &str, full: Option<DiskFull>) -> Option<String> {
    let state = world.runners.get_mut(pod).expect("the runner is there");
    state.generation += 1;
    state.disk_full = full;
    world.show_runner();
    world.settle();
    let status = world.status();
    assert_eq!(status.phase, VmPhase::Running);
    let mut conditions = status.conditions.into_iter();
    let degraded = conditions.find(|it| it.kind == "Degraded" && it.status == "True");
    degraded.map(|it| it.message)
}

fn full(disks: &[&str]) -> Option<DiskFull> {
    Some(DiskFull {
        since_unix_us: 1_700_000_000_000_000,
        disks: disks.iter().map(|disk| (*disk).to_owned()).collect(),
    })
}

#[test]
fn full_claim_is_reported_by_name() {
    let mut vm = sample_vm();
    let disk = json!({"name": "data", "mountPath": "/data",
        "persistentVolumeClaim": {"claimName": "pg-data"}});
    vm.spec.disks = vec![serde_json::from_value(disk).expect("a disk")];
    let (mut world, pod) = running(&vm);
    for (disks, words) in [
        (
            &["data"][..],
            "PersistentVolumeClaim pg-data has no room for what it writes to data;",
        ),
        (
            &["rootdisk"],
            "the disk of node here has no room for what it writes to rootdisk;",
        ),
        (
            &["rootdisk", "data"],
            "the disk of node here or a PersistentVolumeClaim (pg-data) has no room",
        ),
        (
            &[],
            "the disk of node here or a PersistentVolumeClaim (pg-data) has no room",
        ),
    ] {
        let told = told_of(&mut world, &pod, full(disks)).expect("told");
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn full_disk_is_reported_by_disk_and_node_until_guest_goes_on() {
    let (mut world, pod) = running(&sample_vm());
    let mut says = |full| told_of(&mut world, &pod, full);
    assert_eq!(says(None), None);
    let told = says(full(&["rootdisk", "data"])).expect("told");
    let words = "stands still since 2023-11-14T22:13:20Z: the disk of node here has no room for what it \
                 writes to rootdisk, data; it goes on by itself as soon as there is room";
    assert!(told.contains(words), "{told}");
    let told = says(full(&[])).expect("told");
    assert!(told.contains("for what it writes; it goes on"), "{told}");
    assert_eq!(says(None), None);
}

#[test]
fn silent_guest_is_reported_until_it_responds() {
    let (mut world, pod) = running(&sample_vm());
    let mut says = |silence: Option<GuestSilence>, phase| {
        let state = world.runners.get_mut(&pod).expect("the runner is there");
        state.generation += 1;
        state.phase = phase;
        state.guest_silent = silence;
        world.show_runner();
        world.settle();
        let status = world.status();
        let mut conditions = status.conditions.into_iter();
        let degraded = conditions.find(|it| it.kind == "Degraded" && it.status == "True");
        degraded.map(|it| it.message)
    };
    assert_eq!(says(None, RunnerPhase::Running), None);
    let silence = |after| {
        Some(GuestSilence {
            since_unix_us: 1_700_000_000_000_000,
            after,
        })
    };
    // One that moved and was never heard of is still awaited.
    let moved = says(silence(BeforeSilence::Move), RunnerPhase::Receiving).expect("told");
    let words = "has not answered since it moved here at 2023-11-14T22:13:20Z: it hangs";
    assert!(moved.contains(words), "{moved}");
    let answered = says(silence(BeforeSilence::Answer), RunnerPhase::Running).expect("told");
    let words = "has not answered since 2023-11-14T22:13:20Z";
    assert!(answered.contains(words), "{answered}");
    assert_eq!(says(None, RunnerPhase::Running), None);
}
