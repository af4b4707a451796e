//! Records that are odd, counts, and what each order of a person leads to.

use std::collections::BTreeMap;

use fleet_core::{Action, Deployment, Engine, Event, Outcome, World, Write};
use protocol::core::Core as _;
use protocol::fleet::{
    DeploymentKind, DeploymentSpec, DeploymentState, DeploymentStatus, EnvironmentState, Health,
    Source, TurnResult,
};
use protocol::parts::PartSource;
use protocol::time::WallTime;

use super::world::*;

/// Turns that an engine gives at a second while the record of one guest is refused.
fn turns_beside(engine: &mut Engine, world: &World, second: u64, poison: &str) -> Vec<String> {
    let mut turns = Vec::new();
    for _ in 0..10 {
        let basis = engine.basis();
        let held = Box::new(world.clone());
        engine.handle(at(second), Event::World { basis, world: held });
        while let Some(action) = engine.poll_action(at(second)) {
            let Action::Write { id, write } = action else {
                continue;
            };
            let mut outcome = Outcome::Done;
            if let Write::Turn { guest, .. } = &write {
                turns.push(guest.clone());
                if guest == poison {
                    outcome = Outcome::Refused("the record is odd".to_owned());
                }
            }
            engine.handle(at(second), Event::Done { id, outcome });
        }
        if !turns.iter().all(|guest| guest == poison) {
            break;
        }
    }
    turns
}

/// Requirement: B41
#[test]
fn record_that_is_refused_holds_no_other_guest() {
    let mut engine = Engine::new(1);
    let world = world(half(), guests(4));
    let turns = turns_beside(&mut engine, &world, 0, "vm-0");
    assert_eq!(turns, ["vm-0", "vm-1", "vm-2"]);
    let later = turns_beside(&mut Engine::new(2), &world, 40, "vm-3");
    assert_eq!(later, ["vm-0", "vm-1"], "the first two that may");
}

/// Requirement: B10, B40
#[test]
fn turn_of_another_program_than_its_revisions_is_not_carried_out() {
    let mut odd = world(half(), guests(2));
    let guest = odd.guests.get_mut("vm-0").expect("a guest");
    kept(guest, "5");
    guest.observed = seen("0", PartSource::Image);
    guest.last = None;
    let mut engine = Engine::new(1);
    let done = run(&mut engine, odd, 0);
    let guest = &engine.world().expect("a world").guests["vm-0"];
    let end = guest.last.as_ref().expect("an end");
    assert_eq!(end.last.result, TurnResult::Skip, "{done:?}");
    assert!(end.last.reason.contains("m-r1"), "{}", end.last.reason);
}

/// Requirement: B10
#[test]
fn deployment_of_a_revision_that_is_gone_ends_and_names_it() {
    let mut gone = world(half(), guests(2));
    gone.revisions.clear();
    let done = run(&mut Engine::new(1), gone, 0);
    assert_eq!(done.status.state, DeploymentState::Unhealthy);
    assert_eq!(
        done.status.evidence,
        ["revision m-r1 does not exist, or was changed after it was made"]
    );
    assert!(done.turns.is_empty() && !done.has_lock, "{done:?}");
}

fn pending(world: &World, name: &str, kind: DeploymentKind, created: i64) -> Deployment {
    let like = &world.deployments[0];
    Deployment {
        name: name.to_owned(),
        created: WallTime(like.created.0 + created),
        spec: DeploymentSpec {
            kind,
            ..like.spec.clone()
        },
        status: DeploymentStatus::default(),
        answers: BTreeMap::new(),
    }
}

fn states(engine: &Engine) -> Vec<(String, DeploymentState)> {
    let world = engine.world().expect("a world");
    let all = world.deployments.iter();
    all.map(|one| (one.name.clone(), one.status.state))
        .collect()
}

/// Requirement: B14, B15
#[test]
fn newer_order_cancels_the_pending_one_and_waits_for_the_running_one() {
    use DeploymentKind::{HealthRepair, User};
    let mut all = world(half(), guests(4));
    let others = [
        pending(&all, "older", User, 1),
        pending(&all, "repair", HealthRepair, 2),
        pending(&all, "newest", User, 3),
    ];
    all.deployments.extend(others);
    let mut engine = Engine::new(1);
    run(&mut engine, all, 0);
    let of = |name: &str, state| (name.to_owned(), state);
    let expected = [
        of("d", DeploymentState::InProgress),
        of("older", DeploymentState::Canceled),
        of("repair", DeploymentState::Pending),
        of("newest", DeploymentState::Pending),
    ];
    assert_eq!(states(&engine), expected);
    let mut ended = engine.world().expect("a world").clone();
    for guest in ended.guests.values_mut() {
        guest.observed = seen("1", PartSource::A);
    }
    let mut engine = Engine::new(2);
    run(&mut engine, ended, 10);
    let of_state = states(&engine);
    assert_eq!(of_state[0], of("d", DeploymentState::Complete));
    assert_eq!(
        of_state[3],
        of("newest", DeploymentState::Complete),
        "a person goes first"
    );
}

/// Requirement: B07
#[test]
fn counts_are_those_of_the_guests_and_add_up() {
    let mut mixed = world(half(), guests(8));
    mixed.deployments.clear();
    mixed.environment.status.lock = None;
    let guest = |world: &mut World, name: &str, change: fn(&mut fleet_core::Guest)| {
        change(world.guests.get_mut(name).expect("a guest"));
    };
    guest(&mut mixed, "vm-0", |it| it.facts.page_answers = Some(false));
    guest(&mut mixed, "vm-1", |it| {
        it.observed = fleet_core::Observed::Unreachable
    });
    guest(&mut mixed, "vm-2", |it| it.is_enrolled = false);
    guest(&mut mixed, "vm-3", |it| {
        it.observed = fleet_core::Observed::Unmanaged("old".to_owned());
    });
    guest(&mut mixed, "vm-4", |it| it.has_left = true);
    guest(&mut mixed, "vm-5", |it| {
        it.observed = fleet_core::Observed::Silent
    });
    let counts = run(&mut Engine::new(1), mixed, 0).counts;
    assert_eq!((counts.matching, counts.active), (7, 2));
    assert_eq!((counts.unhealthy, counts.unknown), (2, 1));
    assert_eq!((counts.opted_out, counts.unmanaged), (1, 1));
    let parts = counts.active
        + counts.launching
        + counts.unhealthy
        + counts.unknown
        + counts.opted_out
        + counts.unassigned
        + counts.unmanaged;
    assert_eq!(parts, counts.matching);
}

/// Requirement: B08, B13
#[test]
fn environment_that_nobody_started_changes_no_guest() {
    let mut idle = world(half(), guests(3));
    idle.deployments.clear();
    idle.environment.status.lock = None;
    idle.environment.spec.source = Source::of_release("9.9.9");
    let done = run(&mut Engine::new(1), idle, 0);
    assert!(done.turns.is_empty() && done.created.is_empty(), "{done:?}");
    assert_eq!(done.environment.state, EnvironmentState::Inactive);
    assert_eq!(done.environment.health, Health::Healthy);
}

/// Requirement: B25
#[test]
fn causes_that_come_together_get_a_deployment_each() {
    let mut both = joined(4, &seen("1", PartSource::A));
    both.guests.get_mut("vm-1").expect("a guest").observed = seen("0", PartSource::Image);
    both.guests.get_mut("vm-2").expect("a guest").observed = seen("7", PartSource::B);
    let mut engine = Engine::new(1);
    let first = run(&mut engine, both, 0);
    assert_eq!(first.created[0].kind, DeploymentKind::NewInstance);
    assert_eq!(first.created[0].instances, ["vm-1"]);
    let mut next = engine.world().expect("a world").clone();
    next.guests.get_mut("vm-1").expect("a guest").observed = seen("1", PartSource::A);
    let second = run(&mut engine, next, 1);
    assert_eq!(second.created[0].kind, DeploymentKind::HealthRepair);
    assert_eq!(second.created[0].instances, ["vm-2"]);
}

/// Requirement: B40
#[test]
fn guest_has_no_attempt_beyond_its_retries() {
    let mut failed = world(half(), guests(4));
    failed
        .revisions
        .get_mut("m-r1")
        .expect("one")
        .rollout
        .max_failed_percent = 100;
    let guest = failed.guests.get_mut("vm-0").expect("a guest");
    kept(guest, "1");
    guest.observed = seen("0", PartSource::Image);
    let turn = guest.turn.as_mut().expect("a turn");
    turn.attempt = 3;
    let last = guest.last.as_mut().expect("an end");
    last.last.result = TurnResult::Bad;
    last.last.reason = "the program ended".to_owned();
    let done = run(&mut Engine::new(1), failed, 100_000 / 2);
    assert!(!done.turns.contains(&"vm-0".to_owned()), "{done:?}");
}

/// Requirement: B37, B46
#[test]
fn two_engines_with_the_same_world_end_the_same() {
    let world = joined(6, &seen("7", PartSource::A));
    let (mut one, mut other) = (Engine::new(1), Engine::new(1));
    let first = run(&mut one, world.clone(), 0);
    let second = run(&mut other, world, 0);
    assert_eq!(first.turns, second.turns);
    assert_eq!(one.world(), other.world());
}

/// Requirement: B43
#[test]
fn late_answers_and_old_worlds_change_nothing() {
    let mut engine = Engine::new(1);
    run(&mut engine, world(half(), guests(4)), 0);
    let before = engine.world().cloned();
    let old = Box::new(world(half(), guests(1)));
    engine.handle(
        at(1),
        Event::World {
            basis: 0,
            world: old,
        },
    );
    let outcome = Outcome::Done;
    engine.handle(
        at(1),
        Event::Done {
            id: 10_000,
            outcome,
        },
    );
    assert_eq!(engine.world().cloned(), before);
    assert_eq!(engine.unknown_outcomes(), 1);
    engine.handle(at(1), Event::LeadLost);
    assert_eq!(engine.poll_action(at(100)), None, "another one leads");
}
