//! What a pod requests, while what is known of it or of its guest is old.

use protocol::core::Core as _;
use protocol::runner::RunnerPhase;
use protocol::time::Span;
use protocol::units::Bytes;
use serde_json::json;

use super::resizing::{requested, requesting, set_size};
use super::world::World;
use crate::core::phases::REQUESTS_INTERVAL;
use crate::core::vm::ActionResponse;
use crate::core::{Action, Kind, Refusal};

/// A VM of two CPUs and 4 GiB, and its pod.
fn large() -> (World, String) {
    let (mut world, pod) = requesting();
    world.edit(|vm| set_size(vm, 2000, 4, 1, 1));
    world.settle();
    world.finish_resize(&pod);
    world.settle();
    (world, pod)
}

/// The same, which has shrunk to half a CPU and 2 GiB, and the change of its pod's requests that is
/// on its way.
fn lowering() -> (World, String, Action) {
    let (mut world, pod) = large();
    world.edit(|vm| set_size(vm, 500, 2, 2, 1));
    world.settle();
    world.finish_resize(&pod);
    let started = begun(&mut world);
    let lower = started.iter().find(|it| it.kind() == Kind::ResizePod);
    let lower = lower.expect("the pod follows").clone();
    for action in started.iter().filter(|it| it.kind() != Kind::ResizePod) {
        done(&mut world, action);
    }
    (world, pod, lower)
}

/// What is begun now, and not carried out yet.
fn begun(world: &mut World) -> Vec<Action> {
    let at = world.at;
    std::iter::from_fn(|| world.core.poll_action(at)).collect()
}

fn done(world: &mut World, action: &Action) {
    let result = world.carry_out(action);
    world.is_done(action.kind(), world.at, result);
    world.show();
}

fn kinds(actions: &[Action]) -> Vec<Kind> {
    actions.iter().map(Action::kind).collect()
}

/// The order went out beside the change, and a guest had more than its pod requested.
#[test]
fn n41_a_guest_does_not_grow_while_its_pod_may_yet_request_less() {
    let (mut world, pod, lower) = lowering();
    world.edit(|vm| set_size(vm, 2000, 4, 3, 1));
    let meanwhile = begun(&mut world);
    assert!(!kinds(&meanwhile).contains(&Kind::SetSize), "{meanwhile:?}");
    meanwhile.iter().for_each(|action| done(&mut world, action));
    done(&mut world, &lower);
    let after = world.settle();
    let at = |kind: &str| after.iter().position(|it| it == kind);
    assert!(at("ResizePod").is_some(), "{after:?}");
    assert!(at("ResizePod") < at("SetSize"), "{after:?}");
    assert_eq!(requested(&world, &pod)["memory"], "4Gi");
}

/// The answer was lost: what the pod requests is as unknown as while the change was under way.
#[test]
fn n41_nor_before_it_is_known_what_became_of_that_change() {
    let (mut world, _, lower) = lowering();
    world.carry_out(&lower).expect("it is carried out");
    world.is_done(Kind::ResizePod, world.at, lost());
    world.edit(|vm| set_size(vm, 2000, 4, 3, 1));
    let read = begun(&mut world);
    assert!(!kinds(&read).contains(&Kind::SetSize), "{read:?}");
    read.iter().for_each(|action| done(&mut world, action));
    let mut after = world.settle();
    world.pass(Span::from_secs(1));
    after.extend(world.settle());
    let at = |kind: &str| after.iter().position(|it| it == kind);
    assert!(at("ResizePod").is_some(), "{after:?}");
    assert!(at("ResizePod") < at("SetSize"), "{after:?}");
}

/// The next change, to more than that and less than the pod has, hid it.
#[test]
fn n41_nor_while_another_change_is_under_way() {
    let (mut world, _, lower) = lowering();
    world.is_done(Kind::ResizePod, world.at, lost());
    world.edit(|vm| set_size(vm, 1000, 3, 3, 1));
    let mut after = begun(&mut world);
    for _ in 0..2 {
        world.pass(REQUESTS_INTERVAL);
        after.extend(begun(&mut world));
    }
    let kinds = kinds(&after);
    assert!(kinds.contains(&Kind::ResizePod), "{after:?}");
    assert!(!kinds.contains(&Kind::SetSize), "{after:?}");
    world.carry_out(&lower).expect("it arrives late");
}

/// A VM that is to grow to two CPUs and 4 GiB, its pod, and the order to its runner that is on its
/// way; by then it is to be small again.
fn taken_back() -> (World, String, Action) {
    let (mut world, pod) = requesting();
    world.edit(|vm| set_size(vm, 2000, 4, 1, 1));
    let order = loop {
        let mut order = None;
        for action in begun(&mut world) {
            if action.kind() == Kind::SetSize {
                order = Some(action);
            } else {
                done(&mut world, &action);
            }
        }
        if let Some(order) = order {
            break order;
        }
    };
    world.edit(|vm| set_size(vm, 500, 2, 2, 1));
    (world, pod, order)
}

fn lost() -> Result<ActionResponse, Refusal> {
    Err(Refusal::Failed {
        message: "no answer".into(),
        permanent: false,
    })
}

/// An order that is taken back may yet arrive, and the runner carries it out.
#[test]
fn n41_a_pod_requests_what_an_order_on_its_way_gives_its_guest() {
    let (mut world, pod, order) = taken_back();
    for _ in 0..3 {
        world.pass(REQUESTS_INTERVAL);
        for action in begun(&mut world) {
            done(&mut world, &action);
        }
    }
    let large = json!({"cpu": "2", "memory": "4Gi"});
    assert_eq!(requested(&world, &pod), large, "it may grow yet");
    // It arrives, and the next one is on its way: the guest grows on until the runner has that.
    done(&mut world, &order);
    for _ in 0..3 {
        world.pass(REQUESTS_INTERVAL);
        for action in begun(&mut world) {
            if action.kind() != Kind::SetSize {
                done(&mut world, &action);
            }
        }
    }
    assert_eq!(requested(&world, &pod), large, "its runner was told so");
}

/// The runner took it up, but neither its answer nor its news arrived; by the last news the guest
/// was small.
#[test]
fn n41_a_pod_requests_what_an_order_without_an_answer_may_have_given_its_guest() {
    let (mut world, pod, order) = taken_back();
    world.carry_out(&order).expect("it is taken up");
    world.is_done(Kind::SetSize, world.at, lost());
    let mut again = None;
    for _ in 0..3 {
        world.pass(REQUESTS_INTERVAL);
        for action in begun(&mut world) {
            if action.kind() == Kind::SetSize {
                again = Some(action);
            } else {
                let result = world.carry_out(&action);
                world.is_done(action.kind(), world.at, result);
            }
        }
    }
    let large = json!({"cpu": "2", "memory": "4Gi"});
    assert_eq!(requested(&world, &pod), large, "it may have grown");
    // An order of what is wanted now, decided by that news, was overtaken by it; one decided by
    // newer news settles it.
    let again = again.expect("it is told what is wanted now");
    let refused = world.carry_out(&again);
    assert!(
        matches!(refused, Err(Refusal::Failed { .. })),
        "{refused:?}"
    );
    world.is_done(Kind::SetSize, world.at, refused);
    assert_eq!(requested(&world, &pod), large, "it may have grown");
    world.show_runner();
    world.pass(REQUESTS_INTERVAL);
    world.settle();
    world.finish_resize(&pod);
    world.pass(REQUESTS_INTERVAL);
    world.settle();
    let small = json!({"cpu": "500m", "memory": "2Gi"});
    assert_eq!(requested(&world, &pod), small);
    assert_eq!(begun(&mut world), [], "and nothing is in doubt any more");
}

/// It shows no plugged memory before its first look at its QEMU, and the pod was thought to request
/// too much.
#[test]
fn n41_a_runner_that_has_just_taken_over_takes_nothing_from_what_its_pod_requests() {
    let (mut world, pod) = large();
    world.edit(|vm| set_size(vm, 500, 2, 2, 1));
    let state = world.runners.get_mut(&pod).expect("a runner");
    state.phase = RunnerPhase::Booting;
    (state.memory.plugged, state.memory.requested) = (Bytes(0), Bytes(0));
    state.generation += 1;
    world.show_runner();
    for _ in 0..3 {
        world.settle();
        world.pass(REQUESTS_INTERVAL);
    }
    assert_eq!(requested(&world, &pod)["memory"], "4Gi");
}
