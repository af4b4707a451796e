//! The status while reports and responses arrive late, and the problems of a guest in it.

use std::collections::BTreeSet;

use protocol::core::Core as _;
use protocol::runner::{
    BeforeSilence, DiskFull, GuestSilence, MemoryState, ProgramFile, ProgramFileState, RunnerPhase,
};
use protocol::time::Span;
use protocol::units::{Bytes, MilliCpu};
use protocol::vm::VmPhase;
use serde_json::json;

use super::convergence::{done, until_ordered};
use super::phases::running;
use super::world::World;
use crate::core::testing::sample_vm;
use crate::core::vm::Event;

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
    // A stalled watch delivers the old pod late.
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
    assert_eq!(status_mib(&world), 3072);
    (world, pod)
}

/// The guest has so much memory, MiB, while what its runner was told stands.
pub(super) fn has(world: &mut World, pod: &str, mib: u64) {
    world.pass(Span::from_secs(1));
    let state = world.runners.get_mut(pod).expect("the runner is there");
    state.memory.plugged = Bytes(Bytes::mib(mib).0 - state.memory.base.0);
    state.generation += 1;
    world.show_runner();
}

/// The memory its status tells of, MiB.
pub(super) fn status_mib(world: &World) -> u64 {
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
    assert_eq!(status_mib(&world), 3072, "a growth is on its way");
    let answer = world.carry_out(&growth);
    done(&mut world, &growth, answer);
    let shrink = until_ordered(&mut world);
    has(&mut world, &pod, 2816);
    world.settle();
    assert_eq!(status_mib(&world), 3072, "the runner was told to grow");
    let answer = world.carry_out(&shrink);
    done(&mut world, &shrink, answer);
    has(&mut world, &pod, 2560);
    world.settle();
    assert_eq!(status_mib(&world), 2560, "it was told the wanted size");
}

#[test]
fn less_than_before_is_not_told_while_qemu_is_asked_for_more() {
    let (mut world, pod) = shrinking();
    let asked = |world: &mut World, mib: u64| {
        let state = world.runners.get_mut(&pod).expect("the runner is there");
        state.memory.requested = Bytes(Bytes::mib(mib).0 - state.memory.base.0);
    };
    // A growth reached QEMU before the order that took it back.
    asked(&mut world, 4096);
    has(&mut world, &pod, 2560);
    world.settle();
    assert_eq!(status_mib(&world), 3072, "the guest may take it");
    asked(&mut world, 2048);
    has(&mut world, &pod, 2560);
    world.settle();
    assert_eq!(status_mib(&world), 2560);
}

/// What the condition says of a guest whose runner reports `full`.
fn reported(world: &mut World, pod: &str, full: Option<DiskFull>) -> Option<String> {
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
            "PersistentVolumeClaim pg-data is full, so writes to data wait;",
        ),
        (
            &["rootdisk"],
            "the disk of node here is full, so writes to rootdisk wait;",
        ),
        (
            &["rootdisk", "data"],
            "the disk of node here or a PersistentVolumeClaim (pg-data) is full",
        ),
        (
            &[],
            "the disk of node here or a PersistentVolumeClaim (pg-data) is full",
        ),
    ] {
        let text = reported(&mut world, &pod, full(disks)).expect("told");
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn full_disk_is_reported_by_disk_and_node_until_guest_goes_on() {
    let (mut world, pod) = running(&sample_vm());
    let mut says = |full| reported(&mut world, &pod, full);
    assert_eq!(says(None), None);
    let text = says(full(&["rootdisk", "data"])).expect("told");
    let words = "is stopped since 2023-11-14T22:13:20Z: the disk of node here is full, so writes to \
                 rootdisk, data wait; it resumes by itself once space is free";
    assert!(text.contains(words), "{text}");
    let text = says(full(&[])).expect("told");
    assert!(text.contains("is full; it resumes"), "{text}");
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

/// Requirement: V28
#[test]
fn file_that_does_not_follow_the_size_is_reported_until_it_does() {
    let (mut world, pod) = running(&sample_vm());
    let mut says = |state: Option<ProgramFileState>| {
        let report = world.runners.get_mut(&pod).expect("the runner is there");
        report.generation += 1;
        let file = state.map(|state| ProgramFile {
            name: "postgres".into(),
            state,
            detail: "line 2".into(),
        });
        report.programs = file.into_iter().collect();
        world.show_runner();
        world.settle();
        let mut conditions = world.status().conditions.into_iter();
        let degraded = conditions.find(|it| it.kind == "Degraded" && it.status == "True");
        degraded.map(|it| it.message)
    };
    for (state, words) in [
        (ProgramFileState::CheckFailed, "the old file stays: line 2"),
        (
            ProgramFileState::TemplateFailed,
            "the old file stays: line 2",
        ),
        (ProgramFileState::Refused, "its unit is refused: line 2"),
        (
            ProgramFileState::SignalOwed,
            "its program could not be signalled: line 2",
        ),
        (ProgramFileState::Failed, "it is tried again: line 2"),
    ] {
        let text = says(Some(state)).expect("told");
        let start = "the guest's file postgres does not follow its size, ";
        assert!(text.contains(&format!("{start}{words}")), "{text}");
    }
    assert_eq!(says(None), None);
}
