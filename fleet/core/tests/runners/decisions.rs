//! Whether a guest begins to move, and when the core looks.

use fleet_core::Now;
use fleet_core::permit::Gate;
use fleet_core::runners::start::{Budget, start};
use fleet_core::runners::{
    Event, Fixed, Guest, Migration, Movers, Next, Order, Settings, World, is_same_runner,
    migration_name,
};
use protocol::core::Core as _;
use protocol::fleet::{Day, MoveResult, RunnerMoveEnd, Window};
use protocol::time::{Timestamp, WallTime};

use super::played::{Cluster, Ending, NEW, OLD, guest, wanted};

fn windows(days: &[Day]) -> Vec<Window> {
    vec![Window {
        days: days.to_vec(),
        start: "00:00".to_owned(),
        minutes: 1440,
        time_zone: "UTC".to_owned(),
    }]
}

/// A Sunday at noon.
fn noon() -> Now {
    Now {
        monotonic: Timestamp(1_000_000),
        wall: WallTime::parse("2026-01-04T12:00:00Z").expect("a time"),
    }
}

fn begins(guest: &Guest, world: &World, settings: &Settings) -> Next {
    let mut budget = Budget::of(world, settings);
    start(guest, world, settings, &mut budget, noon())
}

fn world_of(guest: &Guest, is_critical: bool) -> World {
    let wanted = fleet_core::runners::Wanted {
        is_critical,
        ..wanted()
    };
    World {
        wanted: Some(wanted),
        guests: vec![guest.clone()],
    }
}

/// Requirement: R36
#[test]
fn critical_goes_then_unhealthy_then_a_window_else_it_waits() {
    for bits in 0_u8..8 {
        let [is_critical, is_degraded, is_open] = [1, 2, 4].map(|bit| bits & bit != 0);
        let pg = Guest {
            is_degraded,
            ..guest("pg")
        };
        let days = if is_open { Day::Sun } else { Day::Mon };
        let settings = Settings {
            windows: windows(&[days]),
            ..Settings::default()
        };
        let next = begins(&pg, &world_of(&pg, is_critical), &settings);
        let goes = matches!(next, Next::Order(Order::Begin(_)));
        assert_eq!(goes, bits != 0, "{bits:03b} {next:?}");
        if !goes {
            assert_eq!(next, Next::Gate(Gate::Window));
        }
    }
}

/// Connections from outside end with a move.
#[test]
fn settings_without_a_window_let_nobody_go() {
    let pg = guest("pg");
    let next = begins(&pg, &world_of(&pg, false), &Settings::default());
    assert_eq!(next, Next::Gate(Gate::Window));
}

#[test]
fn windows_of_the_owner_narrow_those_of_the_settings() {
    let pg = Guest {
        windows: windows(&[Day::Mon]),
        ..guest("pg")
    };
    let settings = Settings {
        windows: windows(&[Day::Sun]),
        ..Settings::default()
    };
    let next = begins(&pg, &world_of(&pg, false), &settings);
    assert_eq!(next, Next::Gate(Gate::Window));
}

fn ordered() -> Settings {
    Settings {
        ordered_at: Some(noon().wall),
        ..Settings::default()
    }
}

#[test]
fn guest_that_cannot_move_is_pending_restart_and_said_once() {
    for fixed in [Fixed::DisksOnClaims, Fixed::DisksOfNode, Fixed::WithoutKvm] {
        let mut pg = Guest {
            fixed: Some(fixed),
            ..guest("pg")
        };
        let world = world_of(&pg, false);
        let Next::Order(Order::End(end)) = begins(&pg, &world, &ordered()) else {
            panic!("{fixed:?} is not written");
        };
        assert_eq!(end.result, MoveResult::PendingRestart);
        assert_eq!(end.reason, fixed.as_str());
        pg.end = Some(end);
        let again = begins(&pg, &world_of(&pg, false), &ordered());
        assert_eq!(again, Next::Gate(Gate::Unmanaged));
        pg.runs = Some(NEW.to_owned());
        let after = begins(&pg, &world_of(&pg, false), &ordered());
        assert_eq!(after, Next::Wait, "it has started again");
    }
}

/// The record of an end has whole seconds, an order has its microseconds.
#[test]
fn guest_whose_move_failed_in_the_second_of_the_order_is_not_tried_again() {
    let ordered = Settings {
        ordered_at: Some(WallTime(noon().wall.0 + 900_000)),
        ..Settings::default()
    };
    let ended = |seconds: i64, result| Guest {
        end: Some(RunnerMoveEnd {
            at: WallTime(noon().wall.0 + seconds * 1_000_000),
            result,
            to: NEW.to_owned(),
            migration: "fleet-1".to_owned(),
            reason: String::new(),
        }),
        ..guest("pg")
    };
    for (result, gate) in [
        (MoveResult::Bad, Gate::Halted),
        (MoveResult::Skip, Gate::Spacing),
    ] {
        let pg = ended(0, result);
        let next = begins(&pg, &world_of(&pg, false), &ordered);
        assert_eq!(next, Next::Gate(gate), "{result:?}");
        let pg = ended(-1, result);
        let next = begins(&pg, &world_of(&pg, false), &ordered);
        assert!(
            matches!(next, Next::Order(_)),
            "{result:?} before the order"
        );
    }
}

#[test]
fn guest_that_runs_the_wanted_runner_is_left_alone() {
    for runs in [NEW, "mirror/r:1@sha256:0b"] {
        let pg = Guest {
            runs: Some(runs.to_owned()),
            ..guest("pg")
        };
        assert_eq!(begins(&pg, &world_of(&pg, true), &ordered()), Next::Wait);
    }
    assert!(!is_same_runner(OLD, NEW));
    assert!(!is_same_runner("r:1", "r:2"));
    assert!(is_same_runner("r:1", "r:1"));
}

#[test]
fn each_gate_holds_a_guest() {
    let held = |change: fn(&mut Guest)| {
        let mut pg = guest("pg");
        change(&mut pg);
        begins(&pg, &world_of(&pg, true), &ordered())
    };
    let resizing = held(|pg| pg.gate = Some(Gate::Resizing));
    assert_eq!(resizing, Next::Gate(Gate::Resizing));
    let out = held(|pg| {
        pg.gate = Some(Gate::OptedOut);
        pg.fixed = Some(Fixed::WithoutKvm);
    });
    assert_eq!(
        out,
        Next::Gate(Gate::OptedOut),
        "nothing is written about it"
    );
    let unknown = held(|pg| pg.runs = None);
    assert_eq!(unknown, Next::Gate(Gate::Unreachable));
    for left in [Migration::Live, Migration::Leaving] {
        let pg = Guest {
            migration: left,
            ..guest("pg")
        };
        let next = begins(&pg, &world_of(&pg, true), &ordered());
        assert_eq!(next, Next::Gate(Gate::Migrating));
    }
    let bad = held(|pg| {
        pg.end = Some(RunnerMoveEnd {
            migration: "fleet-1".to_owned(),
            to: NEW.to_owned(),
            result: MoveResult::Bad,
            reason: String::new(),
            at: noon().wall,
        });
    });
    assert_eq!(bad, Next::Gate(Gate::Halted));
}

#[test]
fn nothing_is_wanted_nothing_begins() {
    let pg = guest("pg");
    let world = World {
        wanted: None,
        guests: vec![pg.clone()],
    };
    assert_eq!(begins(&pg, &world, &ordered()), Next::Wait);
}

/// Requirement: R36
#[test]
fn core_without_settings_does_nothing() {
    let mut core = Movers::new(None);
    for hour in 0..48 {
        let now = Now {
            monotonic: Timestamp(hour * 3_600_000_000),
            wall: noon().wall,
        };
        core.handle(now, Event::LookFailed);
        assert_eq!(core.poll_action(now), None);
        assert_eq!(core.poll_deadline(), None);
    }
}

/// A day without a window: passes alone.
///
/// Requirement: R36
#[test]
fn passes_of_a_day_are_half_an_hour_apart() {
    let mut cluster = Cluster::new(Settings::default(), vec![guest("pg")]);
    cluster.run(24 * 3600);
    assert_eq!(cluster.looks.len(), 48);
    let pairs = cluster.looks.windows(2);
    assert!(
        pairs
            .clone()
            .all(|pair| pair[1].since(pair[0]).0 >= 1_800_000_000)
    );
    assert_eq!(cluster.done, []);
}

/// A move that fails each time: two attempts, then it waits for another runner.
///
/// Requirement: R16
#[test]
fn attempts_of_a_guest_are_spaced_and_end() {
    let settings = Settings {
        windows: windows(&Day::ALL),
        ..Settings::default()
    };
    let pg = guest("pg");
    let key = pg.key.clone();
    let mut cluster = Cluster::new(settings, vec![pg]);
    cluster.endings.insert(key.clone(), Ending::Fails);
    cluster.run(24 * 3600);
    assert_eq!(cluster.created.len(), 2, "{:?}", cluster.created);
    let at: Vec<i64> = cluster.ends.iter().map(|(_, end)| end.at.0).collect();
    assert!(at[1] - at[0] >= 1_800_000_000, "{at:?}");
    let names: Vec<&String> = cluster.created.keys().map(|(_, name)| name).collect();
    let expected = [1, 2].map(|attempt| migration_name("uid-pg", NEW, attempt));
    assert!(
        expected.iter().all(|name| names.contains(&name)),
        "{names:?}"
    );
    cluster.world.wanted = Some(fleet_core::runners::Wanted {
        to: "r@sha256:0c".to_owned(),
        ..wanted()
    });
    cluster.endings.insert(key, Ending::Moves);
    cluster.run(2 * 3600);
    let runs = cluster.world.guests[0].runs.as_deref();
    assert_eq!(runs, Some("r@sha256:0c"));
}

/// A move that people delete again and again keeps its number, and gets another name each time.
#[test]
fn attempt_that_was_given_up_is_made_again_by_another_name() {
    let settings = Settings {
        windows: windows(&Day::ALL),
        ..Settings::default()
    };
    let pg = guest("pg");
    let key = pg.key.clone();
    let mut cluster = Cluster::new(settings, vec![pg]);
    cluster.endings.insert(key.clone(), Ending::Cancelled);
    cluster.run(5 * 3600);
    assert!(cluster.ends.len() > 2, "{:?}", cluster.ends);
    let pairs: Vec<_> = cluster.ends.windows(2).collect();
    assert!(
        pairs
            .iter()
            .all(|pair| pair[0].1.migration != pair[1].1.migration)
    );
    assert!(
        cluster
            .ends
            .iter()
            .all(|(_, end)| end.result == MoveResult::Skip)
    );
    cluster.endings.insert(key, Ending::Moves);
    cluster.run(2 * 3600);
    assert_eq!(cluster.world.guests[0].runs.as_deref(), Some(NEW));
}

#[test]
fn names_of_migrations_differ_and_repeat() {
    let name = migration_name("u", NEW, 1);
    assert_eq!(name, migration_name("u", NEW, 1));
    assert_eq!(name.len(), "fleet-".len() + 8);
    for other in [
        migration_name("v", NEW, 1),
        migration_name("u", OLD, 1),
        migration_name("u", NEW, 2),
    ] {
        assert_ne!(name, other);
    }
}
