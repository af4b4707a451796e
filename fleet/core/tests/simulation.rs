//! Whole rollouts on a virtual clock, with faults of every kind, and checks that notice planted
//! faults.

#[path = "simulation/check.rs"]
mod check;
#[path = "simulation/guest.rs"]
mod guest;
#[path = "simulation/people.rs"]
mod people;
#[path = "simulation/rng.rs"]
mod rng;
#[path = "simulation/run.rs"]
mod run;
#[path = "simulation/sabotage.rs"]
mod sabotage;
#[path = "simulation/store.rs"]
mod store;

use run::{FleetOptions, FleetOutcome, Shape, run};
use sabotage::FleetSabotage;

const SEEDS: u64 = 27;

fn options(seed: u64, faults_ppm: u32) -> FleetOptions {
    FleetOptions {
        seed,
        guests: u32::try_from(seed % 9).unwrap_or(0) + 1,
        shape: Shape::Plain,
        churns: false,
        seconds: 2000,
        faults_ppm,
        sabotage: None,
    }
}

fn total(faults_ppm: u32) -> FleetOutcome {
    total_of((0..SEEDS).map(|seed| options(seed, faults_ppm)))
}

fn total_of(runs: impl Iterator<Item = FleetOptions>) -> FleetOutcome {
    let mut total = FleetOutcome::default();
    for options in runs {
        let outcome = run(options).unwrap_or_else(|problem| panic!("{problem}"));
        total.turns += outcome.turns;
        total.crashes += outcome.crashes;
        total.joined += outcome.joined;
        total.made += outcome.made;
        total.relabelled += outcome.relabelled;
        for (end, count) in outcome.ends {
            *total.ends.entry(end).or_default() += count;
        }
    }
    total
}

/// Requirement: B03, B22, B26, B36, B38, B44
#[test]
fn rollouts_hold_their_invariants_under_faults() {
    let total = total(3000);
    assert!(total.turns > 200, "{total:?}");
    assert!(total.crashes > 100, "{total:?}");
    for end in [
        "User Complete",
        "User Unhealthy",
        "User Stopped",
        "User Canceled",
        "Rollback Complete",
        "NewInstance Complete",
    ] {
        assert!(total.ends.contains_key(end), "{end} is missing: {total:?}");
    }
}

/// Requirement: B01, B17, B35
#[test]
fn rollouts_without_faults_end_as_their_releases_deserve() {
    let total = total(0);
    assert_eq!(total.crashes, 0);
    for end in ["User Complete", "User Unhealthy", "Rollback Complete"] {
        assert!(total.ends.contains_key(end), "{end} is missing: {total:?}");
    }
    assert!(!total.ends.contains_key("Rollback Unhealthy"), "{total:?}");
}

const fn shape_of(sabotage: FleetSabotage) -> Shape {
    match sabotage {
        FleetSabotage::NoWindows => Shape::Windows,
        FleetSabotage::HiddenHarm => Shape::Groups,
        _ => Shape::Plain,
    }
}

/// A release that passes its trials and does harm ends at the canaries, and is taken back.
///
/// Requirement: B17, B35
#[test]
fn groups_stop_a_harmful_release_at_the_canaries() {
    let total = total_of((0..12).map(|seed| FleetOptions {
        shape: Shape::Groups,
        guests: u32::try_from(seed).unwrap_or(0) + 3,
        ..options(seed, 2000)
    }));
    for end in ["User Complete", "User Unhealthy", "Rollback Complete"] {
        assert!(total.ends.contains_key(end), "{end} is missing: {total:?}");
    }
}

/// Requirement: R17
#[test]
fn no_trial_begins_outside_of_the_windows() {
    let total = total_of((0..12).map(|seed| FleetOptions {
        shape: Shape::Windows,
        ..options(seed, 2000)
    }));
    assert!(total.turns > 50, "{total:?}");
    assert!(total.ends.contains_key("User Complete"), "{total:?}");
}

/// Hundreds of guests join, leave and are relabelled, and environments are deleted.
///
/// Requirement: B03, B04, B06, B16, B41, B45
#[test]
fn guests_that_join_and_leave_keep_nothing_behind() {
    let total = total_of((0..12).map(|seed| FleetOptions {
        churns: true,
        ..options(seed, 8000)
    }));
    assert!(total.joined + total.relabelled > 300, "{total:?}");
    assert!(total.made > 3, "{total:?}");
    assert!(total.ends.contains_key("GroupChange Complete"), "{total:?}");
    assert!(total.ends.contains_key("NewInstance Complete"), "{total:?}");
}

/// The invariants in the run's messages, and the fault that each must notice.
#[test]
fn planted_faults_are_noticed() {
    let planted = [
        (FleetSabotage::ForgottenTokens, "F4"),
        (FleetSabotage::SecondDeployment, "F2"),
        (FleetSabotage::ExtraTurns, "F3"),
        (FleetSabotage::UnnamedGate, "F12"),
        (FleetSabotage::StuckLock, "F13"),
        (FleetSabotage::LowerEpochs, "F14"),
        (FleetSabotage::OpenTurns, "F17"),
        (FleetSabotage::FalseReports, "F1"),
        (FleetSabotage::NoWindows, "F5"),
        (FleetSabotage::HiddenResizes, "F8"),
        (FleetSabotage::HiddenHarm, "F11"),
        (FleetSabotage::EndlessTrials, "F16"),
        (FleetSabotage::HiddenPeers, "F9"),
        (FleetSabotage::HiddenSkew, "F10"),
        (FleetSabotage::ForgedPrograms, "F6"),
        (FleetSabotage::FallingEpochs, "F7"),
        (FleetSabotage::RefusedRecords, "F15"),
        (FleetSabotage::OtherWorlds, "F18"),
        (FleetSabotage::FalseReturns, "B16"),
    ];
    for (sabotage, invariant) in planted {
        let found = (0..20).find_map(|seed| {
            let options = FleetOptions {
                sabotage: Some(sabotage),
                shape: shape_of(sabotage),
                churns: sabotage == FleetSabotage::FalseReturns,
                guests: if sabotage == FleetSabotage::HiddenHarm {
                    14
                } else {
                    5
                },
                ..options(seed, 5000)
            };
            let problem = run(options).err();
            problem.filter(|problem| problem.contains(&format!("{invariant}:")))
        });
        assert!(
            found.is_some(),
            "{sabotage:?} is not noticed by {invariant}"
        );
    }
}

/// A few seeds of each shape. `cargo xtask sim --fleet` asks for more.
#[test]
fn long_rollouts_hold_their_invariants() {
    let number = |name: &str, default: u64| {
        let text = std::env::var(name).ok();
        text.map_or(default, |text| {
            text.parse().unwrap_or_else(|_| panic!("{name}={text}"))
        })
    };
    let first = number("BELLOWS_FLEET_SEED", 0);
    let count = number("BELLOWS_FLEET_SEEDS", 6);
    let seconds = number("BELLOWS_FLEET_STEPS", 2000);
    let shapes = [Shape::Plain, Shape::Groups, Shape::Windows];
    let total = total_of((first..first + count).map(|seed| {
        let shape = shapes[usize::try_from(seed % 3).unwrap_or(0)];
        FleetOptions {
            shape,
            guests: u32::try_from(seed % 50).unwrap_or(0) + 1,
            churns: shape == Shape::Plain && seed % 2 == 0,
            // The windows are those of one evening.
            seconds: if shape == Shape::Windows {
                2000
            } else {
                seconds
            },
            ..options(seed, u32::try_from(seed % 8).unwrap_or(0) * 1000)
        }
    }));
    println!("{count} seeds held: {total:?}");
}
