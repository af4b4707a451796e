//! The gate before versions of sets: the same table without a canary and without a model.

use policy_contract::tally::{Evidence, Tally};
use protocol::policy::{Fault, Scope};
use protocol::time::WallTime;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::gate::{Case, Damage, Promote, Rules, Ruling, Short, Stage, Standing, rule};
use super::tally::Alarms;

const HOUR: i64 = 3_600_000_000;
const SEEDS: u64 = 200;

fn hour(number: i64) -> WallTime {
    WallTime((1000 + number) * HOUR)
}

/// Just enough evidence of a version that wants what the live one does.
fn enough() -> Evidence {
    let tally = Tally {
        vm_hours: 72.0,
        unit_hours: 200.0,
        reversals: 10,
        ..Tally::default()
    };
    Evidence {
        hours: 24,
        decisions: 2000,
        vms: ["a/web-0", "a/web-1", "a/web-2"].map(str::to_owned).into(),
        candidate: tally,
        live: tally,
        others: tally,
        ..Evidence::default()
    }
}

fn ruling(promote: Promote, stage: Stage, evidence: &Evidence, alarms: Alarms) -> Ruling {
    let rules = Rules {
        promote,
        ..Rules::default()
    };
    let standing = Standing {
        stage,
        since: hour(0),
        changed_at: Some(hour(0)),
        demoted_at: None,
    };
    let case = Case {
        scope: Scope::Set,
        rules: &rules,
        vms_shrunk_at_once_percent: Some(20),
        standing: &standing,
        evidence,
        alarms: &alarms,
    };
    rule(hour(24), &case)
}

fn of_shadow(promote: Promote, evidence: &Evidence) -> Ruling {
    ruling(promote, Stage::Shadow, evidence, Alarms::default())
}

/// Requirement: V07
#[test]
fn v07_version_of_sets_comes_from_shadow_to_live_without_a_canary() {
    let auto = of_shadow(Promote::Auto, &enough());
    assert_eq!(auto, Ruling::Promote(Stage::Live));
    let ask = of_shadow(Promote::Ask, &enough());
    assert_eq!(ask, Ruling::Promotable(Stage::Live));
    let live = ruling(Promote::Auto, Stage::Live, &enough(), Alarms::default());
    assert_eq!(live, Ruling::Stay(Vec::new()));
}

/// Requirement: V07
#[test]
fn v07_version_of_sets_that_wants_fewer_members_waits_for_a_person() {
    let fewer = Evidence {
        fewer_minutes: 1.0,
        ..enough()
    };
    for promote in [Promote::Auto, Promote::Ask] {
        let ruling = of_shadow(promote, &fewer);
        assert_eq!(ruling, Ruling::Promotable(Stage::Live), "{promote:?}");
    }
}

type Breach = (fn(&mut Evidence), fn(&Short) -> bool);

/// A planted breach of each rule that holds for sets, and the rule that must name it.
const BREACHES: [Breach; 8] = [
    (
        |e| e.hours = 23,
        |s| matches!(s, Short::Hours { has: 23, needs: 24 }),
    ),
    (
        |e| e.decisions = 1999,
        |s| matches!(s, Short::Decisions { has: 1999, .. }),
    ),
    (
        |e| {
            e.vms.pop_last();
        },
        |s| matches!(s, Short::Vms { has: 2, needs: 3 }),
    ),
    (
        |e| {
            e.faults.insert(Fault::Late, 1);
        },
        |s| {
            matches!(
                s,
                Short::Faults {
                    kind: Fault::Late,
                    count: 1
                }
            )
        },
    ),
    (
        |e| {
            e.faults.insert(Fault::Output, 2);
        },
        |s| {
            matches!(
                s,
                Short::Faults {
                    kind: Fault::Output,
                    count: 2
                }
            )
        },
    ),
    (
        |e| e.candidate.unit_hours = 211.0,
        |s| matches!(s, Short::UnitHours { most: 105, .. }),
    ),
    (
        |e| {
            // A set that had nothing is no reason for members without end.
            e.live.unit_hours = 0.0;
        },
        |s| matches!(s, Short::UnitHours { most: 105, .. }),
    ),
    (
        |e| e.candidate.reversals = 13,
        |s| matches!(s, Short::Reversals { most: 120, .. }),
    ),
];

/// Requirement: V07
#[test]
fn v07_each_rule_alone_keeps_a_candidate_of_sets_back() {
    for (breach, names) in BREACHES {
        let mut evidence = enough();
        breach(&mut evidence);
        let Ruling::Stay(shorts) = of_shadow(Promote::Auto, &evidence) else {
            panic!("{evidence:?} was let through");
        };
        assert!(shorts.len() == 1 && names(&shorts[0]), "{shorts:?}");
    }
}

/// Requirement: V07
#[test]
fn v07_faults_and_deaths_of_the_worker_take_a_version_of_sets_back() {
    for (alarms, is_it) in [
        (
            Alarms {
                faults_in_a_row: 3,
                ..Alarms::default()
            },
            true,
        ),
        (
            Alarms {
                worker_deaths: 4,
                ..Alarms::default()
            },
            true,
        ),
        (
            Alarms {
                faults_in_a_row: 2,
                worker_deaths: 3,
                ..Alarms::default()
            },
            false,
        ),
    ] {
        let ruling = ruling(Promote::Auto, Stage::Live, &enough(), alarms);
        assert_eq!(matches!(&ruling, Ruling::Demote(_)), is_it, "{ruling:?}");
        if let Ruling::Demote(damages) = ruling {
            let is_known = |one: &Damage| {
                matches!(
                    one,
                    Damage::FaultsInARow { .. } | Damage::WorkerDeaths { .. }
                )
            };
            assert!(damages.len() == 1 && is_known(&damages[0]), "{damages:?}");
        }
    }
}

/// What is wrong with a policy of sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    Costly,
    TooFew,
    Swings,
    Refused,
    Late,
    Rare,
}

/// Figures of one hour of a version with a flaw.
fn figures(rng: &mut ChaCha8Rng, flaw: Flaw, members: u32) -> Evidence {
    let live = Tally {
        vm_hours: f64::from(members),
        unit_hours: f64::from(members) * rng.random_range(1.0..4.0),
        reversals: rng.random_range(0..3),
        ..Tally::default()
    };
    let mut hour = Evidence {
        hours: 1,
        decisions: 360,
        vms: (0..members).map(|n| format!("a/web-{n}")).collect(),
        candidate: live,
        live,
        others: live,
        ..Evidence::default()
    };
    match flaw {
        Flaw::None => {}
        Flaw::Costly => hour.candidate.unit_hours *= rng.random_range(1.2..3.0),
        Flaw::TooFew => {
            hour.candidate.unit_hours *= rng.random_range(0.0..0.9);
            hour.fewer_minutes = rng.random_range(1.0..60.0);
        }
        Flaw::Swings => hour.candidate.reversals = 2 * live.reversals + 2,
        Flaw::Refused => _ = hour.faults.insert(Fault::Output, 1),
        Flaw::Late => _ = hour.faults.insert(Fault::Late, 1),
        Flaw::Rare => hour.decisions = 40,
    }
    hour
}

/// Requirement: V07
#[test]
fn v07_bad_policy_of_sets_never_decides_by_itself_and_a_good_one_always() {
    let flaws = [
        Flaw::Costly,
        Flaw::TooFew,
        Flaw::Swings,
        Flaw::Refused,
        Flaw::Late,
        Flaw::Rare,
    ];
    for seed in 0..SEEDS {
        let comes_at = |flaw: Flaw| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let members = rng.random_range(3..40);
            let mut evidence = Evidence::default();
            (1..=40).find(|_| {
                evidence.add(&figures(&mut rng, flaw, members));
                let ruling = of_shadow(Promote::Auto, &evidence);
                matches!(ruling, Ruling::Promote(_))
            })
        };
        assert_eq!(comes_at(Flaw::None), Some(24), "seed {seed}");
        for flaw in flaws {
            assert_eq!(comes_at(flaw), None, "seed {seed}, {flaw:?}");
        }
    }
}
