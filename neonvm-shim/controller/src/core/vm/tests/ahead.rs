//! CPUs that are plugged while what the pod requests is on its way.

use super::resizing::{ask, requesting};
use super::world::World;
use crate::core::{Action, Kind, Refusal};
use protocol::runner::{CpusAhead, QuotaState};
use protocol::units::MilliCpu;

/// A VM of a quarter of a CPU, whose runner can plug ahead and has this quota.
fn held_to(quota: QuotaState) -> (World, String) {
    let (mut world, pod) = requesting();
    let state = world.runners.get_mut(&pod).expect("a runner");
    state.cpus.ahead = Some(MilliCpu(0));
    state.quota = quota;
    state.generation += 1;
    world.show_runner();
    assert!(world.settle().is_empty());
    (world, pod)
}

fn held() -> (World, String) {
    held_to(QuotaState::Enforced { milli: 250 })
}

/// Asks for a size, and returns what is to be done before anything else is.
fn asked(world: &mut World, milli: u32, slots: i32, revision: i64) -> Vec<Action> {
    world.edit(|vm| ask(vm, milli, slots, revision, 1));
    let at = world.at;
    std::iter::from_fn(|| world.core.poll_action(at)).collect()
}

/// It is carried out, and the core hears of it.
fn done(world: &mut World, action: &Action) {
    let result = world.carry_out(action);
    world.is_done(action.kind(), world.at, result);
    world.show();
}

fn ahead(actions: &[Action]) -> Option<CpusAhead> {
    actions.iter().find_map(|action| match action {
        Action::PlugAhead { wish, .. } => Some(*wish),
        _ => None,
    })
}

#[test]
fn cpus_are_plugged_while_the_pods_requests_are_written_and_ordered_after() {
    let (mut world, pod) = held();
    let actions = asked(&mut world, 2000, 1, 1);
    let cpu = MilliCpu(2000);
    assert_eq!(ahead(&actions), Some(CpusAhead { cpu }));
    let kinds: Vec<Kind> = actions.iter().map(Action::kind).collect();
    assert!(kinds.contains(&Kind::ResizePod), "{kinds:?}");
    assert!(!kinds.contains(&Kind::SetSize), "not before they are");
    for action in &actions {
        done(&mut world, action);
    }
    let kinds = world.settle();
    assert_eq!(kinds.iter().filter(|kind| *kind == "SetSize").count(), 1);
    assert!(!kinds.contains(&"PlugAhead".to_owned()), "{kinds:?}");
    world.finish_resize(&pod);
    world.settle();
    assert_eq!(world.status().cpus, Some(cpu));
}

#[test]
fn a_wish_that_is_taken_back_takes_its_cpus_with_it() {
    let (mut world, pod) = held();
    let actions = asked(&mut world, 2000, 1, 1);
    let first = actions.iter().find(|it| it.kind() == Kind::PlugAhead);
    done(&mut world, first.expect("it goes ahead"));
    world.edit(|vm| ask(vm, 250, 1, 2, 1));
    world.settle();
    assert_eq!(world.runners[&pod].cpus.ahead, Some(MilliCpu(0)));
}

#[test]
fn nothing_is_plugged_ahead_of_an_order_that_need_not_wait_or_of_a_guest_that_nobody_holds_back() {
    let (mut world, _) = held();
    // Half a CPU more is no CPU more.
    assert_eq!(ahead(&asked(&mut world, 750, 1, 1)), None);
    let (mut world, _) = held();
    assert_eq!(ahead(&asked(&mut world, 250, 4, 1)), None, "memory waits");
    let reason = "none here".to_owned();
    let (mut world, _) = held_to(QuotaState::Unavailable { reason });
    assert_eq!(ahead(&asked(&mut world, 2000, 1, 1)), None);
    let (mut world, pod) = requesting();
    let state = world.runners.get_mut(&pod).expect("a runner");
    state.quota = QuotaState::Enforced { milli: 250 };
    state.generation += 1;
    world.show_runner();
    world.settle();
    let told = ahead(&asked(&mut world, 2000, 1, 1));
    assert_eq!(told, None, "a runner that does not say that it can");
}

#[test]
fn a_runner_that_will_not_plug_ahead_holds_nobody_up_and_is_nobodys_news() {
    let (mut world, pod) = held();
    let actions = asked(&mut world, 2000, 1, 1);
    for action in &actions {
        if action.kind() == Kind::PlugAhead {
            let message = "not found".into();
            let permanent = true;
            let refused = Err(Refusal::Failed { message, permanent });
            world.is_done(action.kind(), world.at, refused);
        } else {
            done(&mut world, action);
        }
    }
    assert!(world.settle().contains(&"SetSize".to_owned()));
    world.finish_resize(&pod);
    world.settle();
    let conditions = world.status().conditions;
    assert!(
        conditions
            .iter()
            .all(|it| it.kind != "Degraded" || it.status == "False"),
        "{conditions:?}"
    );
}
