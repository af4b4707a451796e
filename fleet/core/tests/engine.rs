//! Single decisions of the engine, from worlds that are written down.

#[path = "engine/changes.rs"]
mod changes;
#[path = "engine/cron.rs"]
mod cron;
#[path = "engine/crowd.rs"]
mod crowd;
#[path = "engine/hooks.rs"]
mod hooks;
#[path = "engine/images.rs"]
mod images;
#[path = "engine/records.rs"]
mod records;
#[path = "engine/world.rs"]
mod world;

use fleet_core::judge::{Readings, Sample};
use fleet_core::permit::Gate;
use fleet_core::{Call, Degradation, Engine, World};
use protocol::fleet::{DeploymentKind, DeploymentState, DeploymentStatus, Rollout};
use protocol::parts::{PartPhase, PartSource};
use world::*;

/// Requirement: R17
#[test]
fn closed_window_holds_a_deployment_and_says_so() {
    let mut closed = world(half(), guests(4));
    closed.environment.spec.windows = at_night();
    let done = run(&mut Engine::new(1), closed.clone(), 0);
    assert_eq!((done.turns.len(), done.gate.as_str()), (0, "window"));
    // 14 hours later it is two o'clock.
    let done = run(&mut Engine::new(1), closed, 14 * 3600);
    assert_eq!(done.turns.len(), 2);
}

/// Requirement: R14, R18
#[test]
fn critical_version_waits_for_no_window_and_has_its_own_budget() {
    let mut critical = world(Rollout::default(), guests(10));
    critical.environment.spec.windows = at_night();
    critical.is_critical = true;
    let done = run(&mut Engine::new(1), critical, 0);
    assert_eq!(done.turns.len(), 5, "{:?}", done.turns);
}

/// Requirement: R18
#[test]
fn sick_and_young_guests_wait_for_no_window() {
    let mut closed = world(half(), guests(4));
    closed.environment.spec.windows = at_night();
    let sick = closed.guests.get_mut("vm-1").expect("a guest");
    sick.facts.degraded = Some(Degradation::default());
    let young = closed.guests.get_mut("vm-2").expect("a guest");
    young.uptime_seconds = Some(599);
    let old = closed.guests.get_mut("vm-3").expect("a guest");
    old.uptime_seconds = Some(600);
    let done = run(&mut Engine::new(1), closed, 0);
    assert_eq!(done.turns, ["vm-1", "vm-2"]);
}

/// Requirement: B22, R17
#[test]
fn guests_of_an_agent_that_has_just_begun_are_not_taken_for_unhealthy() {
    let done = |agent_is_new, windows| {
        let mut world = world(half(), guests(4));
        world.environment.spec.windows = windows;
        for guest in world.guests.values_mut() {
            guest.uptime_seconds = Some(6000);
            guest.facts.agent_connected = Some(false);
            guest.facts.agent_is_new = agent_is_new;
        }
        let done = run(&mut Engine::new(1), world, 0);
        (done.turns.len(), done.gate)
    };
    assert_eq!(done(true, Vec::new()), (0, "budget".to_owned()));
    assert_eq!(done(true, at_night()), (0, "window".to_owned()));
    assert_eq!(done(false, at_night()).0, 4);
}

/// A trial of 60 s has 30 s more in the guest.
///
/// Requirement: B26
#[test]
fn resize_that_degrades_a_vm_delays_the_end_of_its_trial() {
    let calls = |left_s, in_resize: Option<bool>| {
        let mut world = world(half(), guests(2));
        let guest = world.guests.get_mut("vm-0").expect("a guest");
        tried(guest, left_s);
        guest.facts.degraded = in_resize.map(|in_resize| Degradation {
            since: Some(at(0).wall),
            in_resize,
            ..Degradation::default()
        });
        run(&mut Engine::new(1), world, 0).calls
    };
    let token = "d-1".to_owned();
    let keep = Call::Keep {
        token: token.clone(),
    };
    let back = [Call::Back { token }];
    assert_eq!(calls(30, None), [keep]);
    assert_eq!(calls(11, Some(true)), []);
    assert_eq!(calls(10, Some(true)), back);
    assert_eq!(calls(30, Some(false)), back);
}

/// Requirement: R17
#[test]
fn windows_of_a_guest_hold_that_guest_alone() {
    let mut narrowed = world(half(), guests(4));
    narrowed.guests.get_mut("vm-0").expect("a guest").windows = at_night();
    let done = run(&mut Engine::new(1), narrowed, 0);
    assert_eq!(done.turns, ["vm-1", "vm-2"]);
}

/// Requirement: B07
#[test]
fn unassigned_guests_are_counted_and_never_touched() {
    let rollout = Rollout {
        groups: vec![group("gold", 0, 0)],
        ..half()
    };
    let mut partly = world(rollout, guests(4));
    label(&mut partly, "vm-2", "gold");
    let done = run(&mut Engine::new(1), partly, 0);
    assert_eq!(done.turns, ["vm-2"]);
    assert_eq!((done.counts.unassigned, done.counts.matching), (3, 4));
    assert_eq!(done.counts.launching, 1);
    assert_eq!(done.status.progress.total, 1);
}

#[test]
fn canary_goes_before_its_group_and_the_group_before_the_next() {
    let rollout = Rollout {
        groups: vec![group("first", 1, 600), group("second", 0, 0)],
        ..half()
    };
    let mut both = world(rollout, guests(8));
    for number in 0..8 {
        let tier = if number < 4 { "first" } else { "second" };
        label(&mut both, &format!("vm-{number}"), tier);
    }
    let done = run(&mut Engine::new(1), both, 0);
    assert_eq!(done.turns.len(), 1, "{:?}", done.turns);
    assert!(*done.turns[0] < *"vm-4");
}

#[test]
fn guest_behind_its_own_gate_is_deferred_after_an_hour() {
    let mut held = world(half(), guests(2));
    held.guests.get_mut("vm-0").expect("a guest").gate = Some(Gate::Resizing);
    held.guests.get_mut("vm-1").expect("a guest").observed = seen("1", PartSource::A);
    let mut engine = Engine::new(1);
    let early = run(&mut engine, held.clone(), 0);
    assert_eq!(early.gate, "resizing");
    let late = run(&mut engine, held.clone(), 3599);
    assert_eq!(late.status.progress.deferred, 0);
    let end = run(&mut engine, held, 3600);
    assert_eq!(end.status.state, DeploymentState::Complete);
    assert_eq!(end.status.progress.deferred, 1);
}

#[test]
fn deadline_leaves_out_time_behind_a_window() {
    let rollout = Rollout {
        deadline_seconds: 3600,
        ..half()
    };
    let mut closed = world(rollout, guests(2));
    closed.environment.spec.windows = at_night();
    let mut engine = Engine::new(1);
    let first = run(&mut engine, closed.clone(), 10);
    assert_eq!(first.gate, "window");
    closed.deployments[0].status = first.status;
    let open = run(&mut engine, closed.clone(), 14 * 3600);
    assert_eq!(open.turns.len(), 1, "{:?}", open.status);
    closed.environment.spec.windows.clear();
    closed.deployments[0].status = open.status;
    let guest = closed.guests.get_mut("vm-0").expect("a guest");
    guest.gate = Some(Gate::Resizing);
    closed.guests.remove("vm-1");
    let late = run(&mut engine, closed, 14 * 3600 + 3600);
    assert_eq!(late.status.ending, None);
    assert_eq!(late.status.state, DeploymentState::TimedOut);
}

/// A group that bakes, after its only canary was changed.
fn baking(readings: Option<Readings>) -> World {
    let rollout = Rollout {
        groups: vec![group("all", 1, 600)],
        ..half()
    };
    let mut one = world(rollout, guests(4));
    for number in 0..4 {
        label(&mut one, &format!("vm-{number}"), "all");
    }
    let mut engine = Engine::new(1);
    let begun = run(&mut engine, one.clone(), 0);
    let turned = engine.world().expect("a world").guests.clone();
    let canary = begun.turns.first().expect("a canary").clone();
    one.guests = turned;
    let guest = one.guests.get_mut(&canary).expect("the canary");
    let turn = guest.turn.clone().expect("a turn");
    guest.observed = seen("1", PartSource::A);
    guest.readings = readings;
    guest.last = Some(protocol::fleet::InstancePart::kept(&turn, at(60).wall));
    one.deployments[0].status = engine.world().expect("a world").deployments[0]
        .status
        .clone();
    one
}

fn readings(kills: u64) -> Readings {
    let sample = |at, oom_kills| Sample {
        at,
        oom_kills,
        node_has_room: true,
        agent_connected: true,
        ..Sample::default()
    };
    let mut readings = Readings::default();
    readings.add(sample(0, 0));
    readings.add(sample(1800, kills));
    readings.resize_millis.push(500);
    readings
}

#[test]
fn rest_of_a_group_follows_a_bake_without_harm() {
    let one = baking(Some(readings(0)));
    let mut engine = Engine::new(2);
    let early = run(&mut engine, one, 100);
    assert_eq!(early.gate, "bake", "{early:?}");
    let held = engine.world().expect("a world").clone();
    let late = run(&mut Engine::new(3), held, 700);
    assert!(!late.turns.is_empty(), "{late:?}");
}

/// Requirement: B35
#[test]
fn kill_in_a_canary_halts_the_deployment() {
    let one = baking(Some(readings(1)));
    let mut engine = Engine::new(2);
    let done = run(&mut engine, one, 100);
    assert!(done.turns.is_empty(), "{done:?}");
    assert_eq!(done.status.state, DeploymentState::Unhealthy, "{done:?}");
    assert!(done.status.evidence[0].contains("OOM"), "{done:?}");
}

#[test]
fn bake_without_figures_holds_until_a_person_lets_it_go_on() {
    let mut engine = Engine::new(2);
    run(&mut engine, baking(None), 100);
    let held = engine.world().expect("a world").clone();
    let late = run(&mut engine, held, 100 + 1800);
    assert_eq!(late.gate, "inconclusive", "{late:?}");
    let mut allowed = engine.world().expect("a world").clone();
    allowed.environment.spec.rollout.on_inconclusive = protocol::fleet::OnInconclusive::Proceed;
    let done = run(&mut engine, allowed, 100 + 1900);
    assert!(!done.turns.is_empty(), "{done:?}");
}

/// Requirement: B25, B34
#[test]
fn guests_that_join_together_get_one_deployment() {
    let done = run(
        &mut Engine::new(1),
        joined(500, &seen("0", PartSource::Image)),
        0,
    );
    let kinds: Vec<DeploymentKind> = done.created.iter().map(|spec| spec.kind).collect();
    assert_eq!(kinds, [DeploymentKind::NewInstance]);
    assert_eq!(done.created[0].instances.len(), 500);
    assert_eq!(done.turns.len(), 10, "as many as go at once");
}

/// Requirement: B25, B37
#[test]
fn guest_with_another_program_gets_a_repair() {
    let done = run(&mut Engine::new(1), joined(3, &seen("7", PartSource::A)), 0);
    let kinds: Vec<DeploymentKind> = done.created.iter().map(|spec| spec.kind).collect();
    assert_eq!(kinds, [DeploymentKind::HealthRepair]);
}

/// Requirement: B37
#[test]
fn second_pass_over_a_settled_world_writes_nothing() {
    let mut engine = Engine::new(1);
    let first = run(&mut engine, joined(3, &seen("1", PartSource::A)), 0);
    assert!(first.writes > 0, "{first:?}");
    let settled = engine.world().expect("a world").clone();
    for seconds in [1, 300] {
        let second = run(&mut engine, settled.clone(), seconds);
        assert_eq!(second.writes, 0, "{second:?}");
    }
}

/// Requirement: B33, B44
#[test]
fn stop_between_lock_and_start_gives_the_lock_back() {
    let mut stopped = world(half(), guests(3));
    stopped.deployments[0].status = DeploymentStatus::default();
    stopped.deployments[0].spec.stop = true;
    let done = run(&mut Engine::new(2), stopped, 0);
    assert_eq!(done.status.state, DeploymentState::Stopped);
    assert!(done.turns.is_empty() && !done.has_lock, "{done:?}");
}

/// Requirement: R16
#[test]
fn repair_waits_half_an_hour_after_an_attempt() {
    let mut sick = joined(1, &seen("7", PartSource::A));
    let mut engine = Engine::new(1);
    run(&mut engine, sick.clone(), 0);
    let turn = engine.world().expect("a world").guests["vm-0"]
        .turn
        .clone()
        .expect("a turn");
    let guest = sick.guests.get_mut("vm-0").expect("a guest");
    guest.uptime_seconds = Some(100_000);
    guest.last = Some(protocol::fleet::InstancePart {
        version: turn.version.clone(),
        sha256: "7".repeat(64),
        from: PartSource::A,
        phase: PartPhase::Settled,
        healthy: true,
        last: protocol::fleet::TurnEnd {
            token: turn.token.clone(),
            result: protocol::fleet::TurnResult::Wait,
            reason: "no connection".to_owned(),
            at: at(0).wall,
        },
    });
    guest.turn = Some(turn);
    for (seconds, expected) in [(1799, 0), (3541, 1)] {
        let done = run(&mut Engine::new(2), sick.clone(), seconds);
        assert_eq!(done.created.len(), expected, "{seconds} s");
    }
}
