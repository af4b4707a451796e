//! Environments that verify at their times.

use fleet_core::{Engine, Observed, World};
use protocol::fleet::{
    Cron, CronVerb, Day, DeploymentKind, DeploymentState, EnvironmentType, Health, Rollout, Tick,
};
use protocol::parts::{PartPhase, PartSource};

use super::world::*;

const DAY: u64 = 86_400;
/// From noon to two o'clock at night.
const TO_NIGHT: u64 = 14 * 3600;

/// Three guests that run the program of the only revision. A person's run is complete.
fn verified() -> World {
    let mut world = world(Rollout::default(), guests(3));
    world.environment.spec.r#type = EnvironmentType::Cron;
    world.environment.spec.cron = Some(Cron {
        days: Day::ALL.to_vec(),
        start: "02:00".to_owned(),
        time_zone: "UTC".to_owned(),
        verb: CronVerb::Verify,
    });
    world.environment.status.lock = None;
    world.deployments[0].status.state = DeploymentState::Complete;
    for guest in world.guests.values_mut() {
        guest.observed = seen("1", PartSource::A);
    }
    world
}

fn see(world: &mut World, guest: &str, observed: Observed) {
    world.guests.get_mut(guest).expect("a guest").observed = observed;
}

/// Ticks of all runs, with their states and figures, after looks of one engine at these seconds.
fn looked(mut world: World, seconds: impl Iterator<Item = u64>) -> (World, Vec<Tick>) {
    let mut engine = Engine::new(1);
    for second in seconds {
        let done = run(&mut engine, world, second);
        assert_eq!(
            (done.turns.len(), done.calls.len()),
            (0, 0),
            "nothing changes"
        );
        world = engine.world().expect("a world").clone();
    }
    let ticks = world.deployments.iter().filter_map(|one| one.spec.tick);
    let ticks = ticks.collect();
    (world, ticks)
}

/// Requirement: B24
#[test]
fn verification_runs_once_per_tick_and_match() {
    // The driver looks every 30 s: 14 days.
    let looks = (0..14 * DAY / 30).map(|look| look * 30);
    let (world, ticks) = looked(verified(), looks);
    let due: Vec<Tick> = (0..14)
        .map(|day| Tick {
            at: at(day * DAY + TO_NIGHT).wall,
            missed: 0,
        })
        .collect();
    assert_eq!(ticks, due);
    for one in &world.deployments[1..] {
        let progress = one.status.progress;
        assert_eq!(one.spec.kind, DeploymentKind::Cron);
        assert_eq!(one.status.state, DeploymentState::Complete, "{one:?}");
        assert_eq!((progress.done, progress.total), (3, 3), "{one:?}");
    }
    assert_eq!(world.environment.status.health, Health::Healthy);
}

/// Requirement: B24
#[test]
fn one_run_catches_up_and_the_other_missed_ticks_are_counted() {
    // Nobody looks from the first day to the fifth, and again from the sixth to the eighth.
    let looks = [
        0,
        4 * DAY + 20 * 3600,
        5 * DAY + TO_NIGHT,
        7 * DAY + TO_NIGHT,
    ];
    let (world, ticks) = looked(verified(), looks.into_iter());
    let tick = |day: u64, missed| Tick {
        at: at(day * DAY + TO_NIGHT).wall,
        missed,
    };
    assert_eq!(ticks, [tick(4, 4), tick(5, 0), tick(7, 1)]);
    let reasons = world.deployments[1..].iter().map(|one| &*one.spec.reason);
    let reasons: Vec<&str> = reasons.collect();
    let said = [
        "4 times before it were missed",
        "",
        "the time before it was missed",
    ];
    assert_eq!(reasons, said);
    let condition = &world.environment.status.conditions[0];
    assert!(
        condition.message.contains("1 times before it were missed"),
        "{condition:?}"
    );
}

/// Requirement: B24
#[test]
fn engine_that_begins_anew_or_beside_another_runs_no_tick_again() {
    let (mut world, _) = looked(verified(), [TO_NIGHT].into_iter());
    assert_eq!(world.deployments.len(), 2);
    for second in [TO_NIGHT + 1, TO_NIGHT + 30, DAY] {
        let done = run(&mut Engine::new(2), world.clone(), second);
        assert_eq!(done.created, [], "{second}");
    }
    // Another one that has not seen the run names it alike, so the API refuses it.
    let name = world.deployments[1].name.clone();
    world.deployments.truncate(1);
    let (world, _) = looked(world, [TO_NIGHT + 40].into_iter());
    assert_eq!(world.deployments[1].name, name);
}

/// Requirement: B24
#[test]
fn clock_that_ran_ahead_holds_no_later_run_up() {
    let (world, _) = looked(verified(), [400 * DAY].into_iter());
    assert_eq!(world.deployments.len(), 2, "a run of next year");
    let (_, ticks) = looked(world, [DAY, DAY + TO_NIGHT].into_iter());
    let days: Vec<_> = ticks[1..].iter().map(|tick| tick.at).collect();
    assert_eq!(days, [at(TO_NIGHT).wall, at(DAY + TO_NIGHT).wall]);
}

/// Requirement: B24
#[test]
fn run_fails_for_a_program_that_no_revision_has_and_names_it() {
    let mut world = verified();
    let mut older = world.revisions["m-r1"].clone();
    older.program.sha256 = "0".repeat(64);
    world.revisions.insert("m-r0".to_owned(), older);
    see(&mut world, "vm-0", seen("0", PartSource::Image));
    let (world, _) = looked(world, [TO_NIGHT].into_iter());
    let one = &world.deployments[1];
    let progress = one.status.progress;
    assert_eq!(one.status.state, DeploymentState::Complete);
    assert_eq!((progress.done, progress.skipped), (2, 1));
    assert_eq!(one.status.evidence, ["vm-0 runs m-r0"]);

    let mut world = world;
    see(&mut world, "vm-1", seen("7", PartSource::A));
    let mut forged = seen("8", PartSource::A);
    if let Observed::Seen(part) = &mut forged {
        part.state.version = "1.1.0".to_owned();
    }
    see(&mut world, "vm-2", forged);
    let (world, _) = looked(world, [DAY + TO_NIGHT].into_iter());
    let one = &world.deployments[2];
    assert_eq!(one.status.state, DeploymentState::Unhealthy);
    assert_eq!(one.status.progress.failed, 2);
    let evidence = [
        "vm-1: runs 1.0.0 sha256:777777777777, which no revision has",
        "vm-2: runs 1.1.0 sha256:888888888888, which is not the program of that version",
        "vm-0 runs m-r0",
    ];
    assert_eq!(one.status.evidence, evidence);
    let status = &world.environment.status;
    assert_eq!(status.health, Health::Unhealthy);
    assert_eq!(status.conditions[0].status, "False");
    assert_eq!(status.lock, None);
}

/// Requirement: B24
#[test]
fn run_waits_for_guests_that_cannot_be_seen_and_ends_without_them() {
    let mut world = verified();
    see(&mut world, "vm-0", Observed::Silent);
    let mut trial = seen("7", PartSource::A);
    if let Observed::Seen(part) = &mut trial {
        part.state.phase = PartPhase::Trial;
    }
    see(&mut world, "vm-1", trial);
    let (world, _) = looked(world, [TO_NIGHT, TO_NIGHT + 30].into_iter());
    let one = &world.deployments[1];
    assert_eq!(one.status.state, DeploymentState::Blocked);
    let gate = one.status.blocked_by.as_ref().map(|by| by.gate.as_str());
    assert_eq!(gate, Some("unreachable"));

    let mut seen_later = world.clone();
    for guest in ["vm-0", "vm-1"] {
        see(&mut seen_later, guest, seen("1", PartSource::A));
    }
    let (seen_later, _) = looked(seen_later, [TO_NIGHT + 40].into_iter());
    assert_eq!(seen_later.deployments[1].status.progress.done, 3);

    let (world, _) = looked(world, [TO_NIGHT + 60].into_iter());
    let one = &world.deployments[1];
    let progress = one.status.progress;
    assert_eq!(one.status.state, DeploymentState::Complete);
    assert_eq!((progress.done, progress.deferred), (1, 2));
    assert_eq!(world.environment.status.health, Health::Unknown);
    assert_eq!(world.environment.status.conditions[0].status, "Unknown");
}

/// Requirement: B24
#[test]
fn nothing_is_verified_before_the_first_start_and_after_a_stop() {
    let looks = || (0..3 * 24).map(|hour| hour * 3600);
    let mut inactive = verified();
    inactive.deployments.clear();
    assert_eq!(looked(inactive, looks()).1, []);
    let mut stopped = verified();
    stopped.deployments[0].spec.stop = true;
    assert_eq!(looked(stopped.clone(), looks()).1, []);
    // Started again after three days: what passed meanwhile was not missed.
    let mut again = stopped.deployments[0].clone();
    again.name = "e".to_owned();
    again.created = at(3 * DAY).wall;
    again.spec.stop = false;
    again.status.started_at = Some(at(3 * DAY).wall);
    stopped.deployments.push(again);
    let (_, ticks) = looked(stopped, [3 * DAY, 3 * DAY + TO_NIGHT].into_iter());
    let due = Tick {
        at: at(3 * DAY + TO_NIGHT).wall,
        missed: 0,
    };
    assert_eq!(ticks, [due]);
}

/// Of two runs that were made in one second the one that ended last counts, whatever their names.
///
/// Requirement: B24
#[test]
fn health_is_that_of_the_run_that_ended_last() {
    let (world, _) = looked(verified(), [TO_NIGHT].into_iter());
    let mut late = world.clone();
    let created = late.deployments[1].created;
    let first = &mut late.deployments[0];
    (first.created, first.status.state) = (created, DeploymentState::Unhealthy);
    for (ended_at, health) in [
        (TO_NIGHT - 60, Health::Healthy),
        (TO_NIGHT + 60, Health::Unhealthy),
    ] {
        late.deployments[0].status.ended_at = Some(at(ended_at).wall);
        late.deployments[0].name = "z".to_owned();
        late.environment.status.health = Health::Unknown;
        let (world, _) = looked(late.clone(), [TO_NIGHT + 120].into_iter());
        assert_eq!(world.environment.status.health, health);
    }
}
