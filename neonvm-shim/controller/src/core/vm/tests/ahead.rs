//! CPUs that are plugged while what the pod requests is on its way.

use super::resizing::{requesting, set_size};
use super::world::World;
use crate::core::{Action, Kind, Refusal};
use protocol::core::Core as _;
use protocol::runner::{CpusAhead, QuotaState};
use protocol::time::Span;
use protocol::units::MilliCpu;

/// The runner reports this quota.
fn report_quota(world: &mut World, pod: &str, quota: QuotaState) {
    let state = world.runners.get_mut(pod).expect("a runner");
    state.quota = quota;
    state.generation += 1;
    world.show_runner();
}

/// A VM of a quarter of a CPU, whose runner can plug ahead and has this quota.
fn held_to(quota: QuotaState) -> (World, String) {
    let (mut world, pod) = requesting();
    let state = world.runners.get_mut(&pod).expect("a runner");
    state.cpus.ahead = Some(MilliCpu(0));
    report_quota(&mut world, &pod, quota);
    assert!(world.settle().is_empty());
    (world, pod)
}

fn held() -> (World, String) {
    held_to(QuotaState::Enforced { milli: 250 })
}

/// Asks for a size, and returns what is to be done before anything else is.
fn asked(world: &mut World, milli: u32, slots: i32, revision: i64) -> Vec<Action> {
    world.edit(|vm| set_size(vm, milli, slots, revision, 1));
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
        Action::PlugAhead { cpus, .. } => Some(*cpus),
        _ => None,
    })
}

#[test]
fn cpus_are_plugged_during_write_of_requests_and_ordered_after() {
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

/// Requirement: N06. A quota above the limit is that of a larger size, kept while memory leaves.
#[test]
fn cpus_are_not_plugged_ahead_under_a_quota_above_the_limit() {
    let (mut world, pod) = held();
    report_quota(&mut world, &pod, QuotaState::Enforced { milli: 1750 });
    let actions = asked(&mut world, 2000, 1, 1);
    assert_eq!(ahead(&actions), None);
}

#[test]
fn cancelled_growth_unplugs_its_cpus() {
    let (mut world, pod) = held();
    let actions = asked(&mut world, 2000, 1, 1);
    let first = actions.iter().find(|it| it.kind() == Kind::PlugAhead);
    done(&mut world, first.expect("it goes ahead"));
    world.edit(|vm| set_size(vm, 250, 1, 2, 1));
    world.settle();
    assert_eq!(world.runners[&pod].cpus.ahead, Some(MilliCpu(0)));
}

#[test]
fn cpus_are_plugged_ahead_only_of_waiting_order_under_quota() {
    let (mut world, _) = held();
    // Half a CPU more is no CPU more.
    assert_eq!(ahead(&asked(&mut world, 750, 1, 1)), None);
    let (mut world, _) = held();
    assert_eq!(ahead(&asked(&mut world, 250, 4, 1)), None, "memory waits");
    let reason = "none here".to_owned();
    let (mut world, _) = held_to(QuotaState::Unavailable { reason });
    assert_eq!(ahead(&asked(&mut world, 2000, 1, 1)), None);
    let (mut world, pod) = requesting();
    report_quota(&mut world, &pod, QuotaState::Enforced { milli: 250 });
    world.settle();
    let told = ahead(&asked(&mut world, 2000, 1, 1));
    assert_eq!(told, None, "a runner that does not say that it can");
}

/// The guest is asked for its second CPU, and has it this much later; what was to be done before.
fn starts(world: &mut World, pod: &str, ms: u64, revision: i64) -> Vec<Kind> {
    let actions = asked(world, 2000, 1, revision);
    for action in &actions {
        done(world, action);
    }
    world.pass(Span::from_millis(ms));
    let state = world.runners.get_mut(pod).expect("a runner");
    state.cpus.guest_online = Some(2);
    state.generation += 1;
    world.show_runner();
    actions.iter().map(Action::kind).collect()
}

/// It is back at a quarter of a CPU.
fn shrinks(world: &mut World, pod: &str, revision: i64) {
    world.settle();
    world.finish_resize(pod);
    world.settle();
    world.edit(|vm| set_size(vm, 250, 1, revision, 1));
    world.settle();
    world.finish_resize(pod);
    world.pass(Span::from_millis(5000));
    world.settle();
}

/// Who writes sets off work on the node, beside the guest that starts its CPU.
#[test]
fn n41_the_write_comes_as_late_as_the_guest_needs_it_and_no_later() {
    let (mut world, pod) = held();
    let first = starts(&mut world, &pod, 80, 1);
    assert!(first.contains(&Kind::ResizePod), "nothing is known of it");
    shrinks(&mut world, &pod, 2);

    let actions = asked(&mut world, 2000, 1, 3);
    assert!(ahead(&actions).is_some());
    let has_kind = |kind: Kind| actions.iter().any(|action| action.kind() == kind);
    assert!(!has_kind(Kind::ResizePod), "{actions:?}");
    for action in &actions {
        done(&mut world, action);
    }
    let kinds = world.settle();
    let written = |kinds: &[String]| kinds.contains(&"ResizePod".to_owned());
    assert!(!written(&kinds), "{kinds:?}");
    let due = world.core.poll_deadline().expect("a deadline");
    assert_eq!(due.since(world.at.now), Span::from_millis(60));
    world.pass(Span::from_millis(60));
    let kinds = world.settle();
    assert_eq!(kinds[..2], ["ResizePod", "SetSize"], "{kinds:?}");
    shrinks(&mut world, &pod, 4);

    let early = starts(&mut world, &pod, 30, 5);
    assert!(!early.contains(&Kind::ResizePod), "{early:?}");
    let kinds = world.settle();
    assert!(written(&kinds), "the guest has it: {kinds:?}");
    shrinks(&mut world, &pod, 6);

    let kinds: Vec<Kind> = asked(&mut world, 2000, 4, 7)
        .iter()
        .map(Action::kind)
        .collect();
    assert!(kinds.contains(&Kind::ResizePod), "memory waits: {kinds:?}");
}

#[test]
fn refusal_to_plug_ahead_delays_nothing_and_is_not_reported() {
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
