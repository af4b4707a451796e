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
#[path = "simulation/store.rs"]
mod store;

use run::{FleetOptions, FleetOutcome, FleetSabotage, run};

const SEEDS: u64 = 27;

fn options(seed: u64, faults_ppm: u32) -> FleetOptions {
    FleetOptions {
        seed,
        guests: u32::try_from(seed % 9).unwrap_or(0) + 1,
        seconds: 2000,
        faults_ppm,
        sabotage: None,
    }
}

fn total(faults_ppm: u32) -> FleetOutcome {
    let mut total = FleetOutcome::default();
    for seed in 0..SEEDS {
        let outcome = run(options(seed, faults_ppm)).unwrap_or_else(|problem| panic!("{problem}"));
        total.turns += outcome.turns;
        total.crashes += outcome.crashes;
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
    ];
    for (sabotage, invariant) in planted {
        let found = (0..20).find_map(|seed| {
            let options = FleetOptions {
                sabotage: Some(sabotage),
                guests: 5,
                ..options(seed, 5000)
            };
            run(options).err()
        });
        let problem = found.unwrap_or_else(|| panic!("{sabotage:?} is not noticed"));
        assert!(
            problem.contains(&format!("{invariant}:")),
            "{sabotage:?}: {problem}"
        );
    }
}
