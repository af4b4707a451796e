//! What follows after the end of a deployment: the way back, guests that were relabelled, and a
//! deletion.

use fleet_core::permit::Gate;
use fleet_core::{Action, Call, Deployment, Engine, Event, Outcome, Revision, World, Write};
use protocol::core::Core as _;
use protocol::fleet::{
    DeploymentKind, DeploymentSpec, DeploymentState, EnvironmentState, Resolved, TurnResult,
    TurnVerb,
};
use protocol::parts::PartSource;

use super::world::*;

/// A world whose deployment is complete and was the second one: there is a way back to `m-r0`.
fn complete(count: u32) -> World {
    let mut world = world(half(), guests(count));
    world.environment.status.lock = None;
    let before = Revision {
        rollout: half(),
        program: Resolved {
            version: "1.0.0".to_owned(),
            sha256: "7".repeat(64),
            bundle: String::new(),
        },
        image: fleet_core::ImageCheck::default(),
    };
    world.revisions.insert("m-r0".to_owned(), before);
    let mut newest = world.deployments[0].clone();
    newest.status.state = DeploymentState::Complete;
    newest.status.ended_at = Some(at(0).wall);
    let mut older = newest.clone();
    older.name = "c".to_owned();
    older.spec.revision = "m-r0".to_owned();
    older.created.0 -= 1_000_000;
    world.deployments = vec![older, newest];
    for guest in world.guests.values_mut() {
        kept(guest, "1");
    }
    world
}

fn sicken(world: &mut World, name: &str) {
    let guest = world.guests.get_mut(name).expect("a guest");
    guest.facts.page_answers = Some(false);
}

/// Lets an engine see a sound world, then another one until a second.
fn after(sound: &World, sick: &World, until: u64) -> Done {
    let mut engine = Engine::new(1);
    run(&mut engine, sound.clone(), 0);
    let status = engine.world().expect("a world").environment.status.clone();
    let mut sick = sick.clone();
    sick.environment.status = status;
    run(&mut engine, sick.clone(), until - 130);
    run(&mut engine, sick, until)
}

fn rollbacks(done: &Done) -> Vec<&DeploymentSpec> {
    let all = done.created.iter();
    all.filter(|spec| spec.kind == DeploymentKind::Rollback)
        .collect()
}

/// Requirement: B17, B26
#[test]
fn complete_release_whose_guests_sicken_within_three_bakes_is_taken_back() {
    let sound = complete(4);
    let mut sick = sound.clone();
    sicken(&mut sick, "vm-2");
    let done = after(&sound, &sick, 1799);
    let backs = rollbacks(&done);
    assert_eq!(backs.len(), 1, "{done:?}");
    assert_eq!((&*backs[0].revision, &*backs[0].rollback_of), ("m-r0", "d"));
    assert_eq!(backs[0].instances.len(), 4, "all that run it");
    assert!(backs[0].reason.contains("vm-2"), "{:?}", backs[0].reason);
    let late = after(&sound, &sick, 1800);
    assert!(rollbacks(&late).is_empty(), "{late:?}");
}

/// Requirement: B17
#[test]
fn sickness_that_passes_within_two_minutes_takes_no_release_back() {
    let sound = complete(4);
    let mut sick = sound.clone();
    sicken(&mut sick, "vm-2");
    let mut engine = Engine::new(1);
    for (second, world) in [(0, &sound), (10, &sick), (100, &sick), (120, &sound)] {
        let done = run(&mut engine, world.clone(), second);
        assert!(rollbacks(&done).is_empty(), "{second} s: {done:?}");
    }
}

/// Requirement: B17
#[test]
fn few_sick_guests_stopped_releases_and_a_refusal_take_nothing_back() {
    let sound = complete(40);
    let mut few = sound.clone();
    sicken(&mut few, "vm-2");
    assert!(
        rollbacks(&after(&sound, &few, 600)).is_empty(),
        "2 % are sick"
    );
    let mut rows = [complete(4), complete(4)];
    rows[0].deployments[1].spec.stop = true;
    let newest = rows[1].revisions.get_mut("m-r1").expect("a revision");
    newest.rollout.auto_rollback = false;
    for sound in rows {
        let mut sick = sound.clone();
        sicken(&mut sick, "vm-2");
        assert!(rollbacks(&after(&sound, &sick, 600)).is_empty());
    }
}

/// Requirement: B17
#[test]
fn pair_of_revisions_is_taken_back_once_and_then_a_person_is_asked() {
    let mut sound = complete(4);
    let spec = &sound.deployments[1].spec;
    let back = |name: &str, revision: &str, kind, rollback_of: &str| Deployment {
        name: name.to_owned(),
        spec: DeploymentSpec {
            revision: revision.to_owned(),
            kind,
            rollback_of: rollback_of.to_owned(),
            ..spec.clone()
        },
        created: protocol::time::WallTime(at(0).wall.0 - 500_000),
        ..sound.deployments[1].clone()
    };
    let first = back("a1", "m-r1", DeploymentKind::User, "");
    let taken = back("a2", "m-r0", DeploymentKind::Rollback, "a1");
    sound.deployments.extend([first, taken]);
    let mut sick = sound.clone();
    sicken(&mut sick, "vm-2");
    let done = after(&sound, &sick, 600);
    assert!(rollbacks(&done).is_empty(), "{done:?}");
    let conditions = &done.environment.conditions;
    assert_eq!(conditions.len(), 1, "{done:?}");
    assert_eq!(conditions[0].kind, "NeedsPerson");
    assert!(conditions[0].message.contains("m-r1"), "{conditions:?}");
    let mut engine = Engine::new(2);
    let healthy = run(&mut engine, sound, 600);
    assert!(healthy.environment.conditions.is_empty(), "{healthy:?}");
}

/// Calls of an engine at a second, with their guests.
fn calls(engine: &mut Engine, second: u64) -> Vec<(String, Call)> {
    let mut all = Vec::new();
    while let Some(action) = engine.poll_action(at(second)) {
        let id = match action {
            Action::Call { id, guest, call } => {
                all.push((guest, call));
                id
            }
            Action::Write { id, .. } => id,
        };
        let outcome = Outcome::Done;
        engine.handle(at(second), Event::Done { id, outcome });
    }
    all
}

/// Requirement: B16, B25
#[test]
fn guest_that_no_longer_matches_returns_to_its_image() {
    let mut left = complete(4);
    left.guests.get_mut("vm-1").expect("a guest").has_left = true;
    let mut engine = Engine::new(1);
    let basis = engine.basis();
    let held = Box::new(left);
    engine.handle(at(100), Event::World { basis, world: held });
    let called = calls(&mut engine, 100);
    let mut world = engine.world().expect("a world").clone();
    let made = &world.deployments.last().expect("a deployment").spec;
    assert_eq!(made.kind, DeploymentKind::GroupChange);
    assert_eq!(made.instances, ["vm-1"]);
    let counts = world.environment.status.counts;
    assert_eq!(counts.matching, 3, "{counts:?}");
    let turn = world.guests["vm-1"].turn.clone().expect("a turn");
    assert_eq!((turn.verb, turn.epoch > 1), (TurnVerb::Back, true));
    let token = turn.token.clone();
    assert_eq!(called, [("vm-1".to_owned(), Call::Back { token })]);
    let guest = world.guests.get_mut("vm-1").expect("a guest");
    guest.observed = seen("0", PartSource::Image);
    let end = run(&mut engine, world, 110);
    let guest = &engine.world().expect("a world").guests["vm-1"];
    let last = guest.last.as_ref().expect("an end");
    assert_eq!(last.last.result, TurnResult::Good);
    assert_eq!(last.from, PartSource::Image);
    assert_eq!(guest.claim(), None, "another environment may have it");
    assert_eq!(end.status.state, DeploymentState::Complete);
}

/// Requirement: B16, B22
#[test]
fn guests_that_leave_together_go_by_the_budget_in_one_deployment() {
    let mut left = complete(8);
    for name in ["vm-0", "vm-1", "vm-2", "vm-3", "vm-4", "vm-5"] {
        left.guests.get_mut(name).expect("a guest").has_left = true;
    }
    let done = run(&mut Engine::new(1), left, 100);
    assert_eq!(done.created.len(), 1, "{:?}", done.created);
    assert_eq!(done.turns.len(), 4, "half of eight stay: {:?}", done.turns);
}

/// Requirement: B16
#[test]
fn guest_that_matches_again_in_its_way_back_is_brought_forward_afterwards() {
    let mut world = complete(2);
    world.guests.get_mut("vm-1").expect("a guest").has_left = true;
    let mut engine = Engine::new(1);
    run(&mut engine, world, 100);
    let mut again = engine.world().expect("a world").clone();
    let guest = again.guests.get_mut("vm-1").expect("a guest");
    guest.has_left = false;
    guest.observed = seen("0", PartSource::Image);
    run(&mut engine, again, 110);
    let again = engine.world().expect("a world").clone();
    run(&mut engine, again, 150);
    let turn = engine.world().expect("a world").guests["vm-1"].turn.clone();
    assert_eq!(turn.map(|turn| turn.verb), Some(TurnVerb::Try));
}

/// Requirement: B16, B25
#[test]
fn running_guest_that_matches_newly_is_a_change_of_groups() {
    let mut world = complete(3);
    let guest = world.guests.get_mut("vm-1").expect("a guest");
    *guest = super::world::guest("node-1");
    guest.uptime_seconds = Some(90_000);
    let done = run(&mut Engine::new(1), world.clone(), 100);
    assert_eq!(done.created[0].kind, DeploymentKind::GroupChange);
    assert_eq!(done.turns, ["vm-1"]);
    world
        .guests
        .get_mut("vm-1")
        .expect("a guest")
        .uptime_seconds = Some(50);
    let done = run(&mut Engine::new(1), world, 100);
    assert_eq!(done.created[0].kind, DeploymentKind::NewInstance);
}

/// Requirement: B06, B04
#[test]
fn claim_of_another_environment_holds_a_guest_until_that_one_is_gone() {
    let mut claimed = world(half(), guests(2));
    for name in ["vm-0", "vm-1"] {
        let guest = claimed.guests.get_mut(name).expect("a guest");
        kept(guest, "7");
        let turn = guest.turn.as_mut().expect("a turn");
        turn.environment = "other".to_owned();
        turn.deployment = "o".to_owned();
    }
    let done = run(&mut Engine::new(1), claimed.clone(), 0);
    assert_eq!(done.gate, "claim", "{done:?}");
    claimed.guests.get_mut("vm-1").expect("a guest").is_orphan = true;
    let done = run(&mut Engine::new(1), claimed, 0);
    assert_eq!(done.turns, ["vm-1"]);
}

/// Requirement: B19
#[test]
fn finalizer_is_there_before_a_deployment_begins() {
    let mut fresh = world(half(), guests(2));
    fresh.environment.has_finalizer = false;
    fresh.environment.status.lock = None;
    fresh.deployments[0].status = protocol::fleet::DeploymentStatus::default();
    let mut engine = Engine::new(1);
    let basis = engine.basis();
    let held = Box::new(fresh);
    engine.handle(at(0), Event::World { basis, world: held });
    let first = engine.poll_action(at(0));
    assert!(
        matches!(
            &first,
            Some(Action::Write {
                write: Write::Finalizer(true),
                ..
            })
        ),
        "{first:?}"
    );
}

/// Requirement: B19, B45
#[test]
fn deletion_stops_what_monitors_began_and_then_lets_the_environment_go() {
    let mut deleted = complete(3);
    deleted.environment.is_deleted = true;
    deleted.deployments[1].spec.kind = DeploymentKind::HealthRepair;
    deleted.deployments[1].status = protocol::fleet::DeploymentStatus {
        state: DeploymentState::InProgress,
        started_at: Some(at(0).wall),
        ..protocol::fleet::DeploymentStatus::default()
    };
    let done = run(&mut Engine::new(1), deleted, 10);
    assert_eq!(done.status.state, DeploymentState::Canceled, "{done:?}");
    assert_eq!(done.finalizer, Some(false));
    assert!(done.created.is_empty() && done.turns.is_empty(), "{done:?}");
}

/// Requirement: B19
#[test]
fn environment_stays_until_the_deployment_of_a_person_ends() {
    let mut deleted = world(half(), guests(3));
    deleted.environment.is_deleted = true;
    let mut engine = Engine::new(1);
    let done = run(&mut engine, deleted, 10);
    assert_eq!(done.finalizer, None);
    assert_eq!(done.environment.state, EnvironmentState::ToBeDeleted);
    let mut ended = engine.world().expect("a world").clone();
    for guest in ended.guests.values_mut() {
        guest.observed = seen("1", PartSource::A);
    }
    let done = run(&mut engine, ended, 100);
    assert_eq!(done.finalizer, Some(false), "{done:?}");
    let gone = engine.world().expect("a world").clone();
    assert_eq!(run(&mut engine, gone, 101).writes, 0);
}

/// Requirement: B18, B12
#[test]
fn stopped_environment_leaves_guests_that_join_or_leave_as_they_are() {
    let mut stopped = complete(3);
    stopped.deployments[1].spec.stop = true;
    stopped.guests.get_mut("vm-0").expect("a guest").has_left = true;
    let joined = stopped.guests.get_mut("vm-1").expect("a guest");
    *joined = super::world::guest("node-9");
    let done = run(&mut Engine::new(1), stopped, 10);
    assert!(done.created.is_empty() && done.turns.is_empty(), "{done:?}");
    assert_eq!(done.environment.state, EnvironmentState::Inactive);
}

#[test]
fn closed_gate_gives_a_way_back_to_the_image_back() {
    let mut world = complete(2);
    world.guests.get_mut("vm-1").expect("a guest").has_left = true;
    let mut engine = Engine::new(1);
    run(&mut engine, world, 100);
    let mut held = engine.world().expect("a world").clone();
    held.guests.get_mut("vm-1").expect("a guest").gate = Some(Gate::Resizing);
    run(&mut engine, held, 101);
    let last = engine.world().expect("a world").guests["vm-1"].last.clone();
    let end = last.expect("an end").last;
    assert_eq!(end.result, TurnResult::Wait, "{end:?}");
}
