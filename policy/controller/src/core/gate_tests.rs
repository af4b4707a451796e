//! Each rule of the gate, alone and in sequence.

use proptest::prelude::*;
use protocol::policy::{Fault, Scope};
use protocol::time::WallTime;

use super::gate::{Case, Damage, Promote, Rules, Ruling, Short, Stage, Standing, rule};
use super::tally::{Alarms, Evidence, Tally};

const HOUR: i64 = 3_600_000_000;
const MOST_AT_ONCE: u32 = 20;

fn hour(number: i64) -> WallTime {
    WallTime((1000 + number) * HOUR)
}

fn rules() -> Rules {
    Rules {
        promote: Promote::Auto,
        ..Rules::default()
    }
}

fn tally() -> Tally {
    Tally {
        vm_hours: 72.0,
        oom_risk_minutes: 3.0,
        cpu_short_minutes: 5.0,
        unit_hours: 200.0,
        reversals: 10,
        refused_shrinks: 4,
    }
}

/// Evidence that is just enough for both stages.
fn enough() -> Evidence {
    Evidence {
        hours: 24,
        decisions: 2000,
        vms: ["a", "b", "c"].map(str::to_owned).into(),
        candidate: tally(),
        live: tally(),
        error_percent: 10.0,
        canary: tally(),
        others: tally(),
        ..Evidence::default()
    }
}

/// A case with its own parts.
#[derive(Clone)]
struct Parts {
    standing: Standing,
    evidence: Evidence,
    alarms: Alarms,
}

fn good(stage: Stage) -> Parts {
    Parts {
        standing: Standing {
            stage,
            since: hour(0),
            changed_at: Some(hour(0)),
            demoted_at: None,
        },
        evidence: enough(),
        alarms: Alarms {
            calls: 1000,
            ..Alarms::default()
        },
    }
}

fn ruling(now: WallTime, rules: &Rules, parts: &Parts) -> Ruling {
    rule(
        now,
        &Case {
            scope: Scope::Vm,
            rules,
            vms_shrunk_at_once_percent: Some(MOST_AT_ONCE),
            standing: &parts.standing,
            evidence: &parts.evidence,
            alarms: &parts.alarms,
        },
    )
}

/// Requirement: V07
#[test]
fn v07_candidate_that_keeps_all_rules_comes_to_decide() {
    let at = hour(24);
    for (stage, next) in [(Stage::Shadow, Stage::Canary), (Stage::Canary, Stage::Live)] {
        assert_eq!(ruling(at, &rules(), &good(stage)), Ruling::Promote(next));
        let asks = Rules::default();
        assert_eq!(ruling(at, &asks, &good(stage)), Ruling::Promotable(next));
    }
    let live = ruling(at, &rules(), &good(Stage::Live));
    assert_eq!(live, Ruling::Stay(Vec::new()));
}

type Change = fn(&mut Parts);
type Breach = (Change, fn(&Short) -> bool);
type Injury = (Change, fn(&Damage) -> bool);

/// A planted breach of each rule, and the rule that must name it.
const SHORTS: [Breach; 14] = [
    (
        |p| p.evidence.hours = 23,
        |s| matches!(s, Short::Hours { has: 23, needs: 24 }),
    ),
    (
        |p| p.evidence.decisions = 1999,
        |s| matches!(s, Short::Decisions { has: 1999, .. }),
    ),
    (
        |p| {
            p.evidence.vms.pop_last();
        },
        |s| matches!(s, Short::Vms { has: 2, needs: 3 }),
    ),
    (
        |p| {
            p.evidence.faults.insert(Fault::NotFixpoint, 1);
        },
        |s| {
            matches!(
                s,
                Short::Faults {
                    kind: Fault::NotFixpoint,
                    count: 1
                }
            )
        },
    ),
    (
        |p| {
            p.evidence.faults.insert(Fault::Nondeterministic, 1);
        },
        |s| {
            matches!(
                s,
                Short::Faults {
                    kind: Fault::Nondeterministic,
                    ..
                }
            )
        },
    ),
    (
        |p| p.alarms.faults_in_a_row = 1,
        |s| matches!(s, Short::FaultsInARow { count: 1 }),
    ),
    (
        |p| p.evidence.candidate.oom_risk_minutes = 3.01,
        |s| matches!(s, Short::OomRisk { .. }),
    ),
    (
        |p| p.evidence.candidate.oom_risk_minutes = f64::NAN,
        |s| matches!(s, Short::OomRisk { .. }),
    ),
    (
        |p| p.evidence.candidate.cpu_short_minutes = 5.01,
        |s| matches!(s, Short::CpuShort { .. }),
    ),
    (
        |p| p.evidence.candidate.unit_hours = 210.1,
        |s| matches!(s, Short::UnitHours { .. }),
    ),
    (
        |p| p.evidence.candidate.reversals = 13,
        |s| matches!(s, Short::Reversals { .. }),
    ),
    (
        |p| p.evidence.error_percent = 10.1,
        |s| matches!(s, Short::Error { .. }),
    ),
    (
        |p| p.evidence.gaps = 1,
        |s| matches!(s, Short::Gaps { count: 1 }),
    ),
    (
        |p| p.standing.changed_at = Some(WallTime(hour(23).0 + 1)),
        |s| matches!(s, Short::TooSoon { .. }),
    ),
];

/// Requirement: V07
#[test]
fn v07_each_rule_alone_keeps_a_candidate_back() {
    for (number, (breach, names)) in SHORTS.iter().enumerate() {
        let mut parts = good(Stage::Shadow);
        breach(&mut parts);
        for promote in [Promote::Auto, Promote::Ask] {
            let rules = Rules { promote, ..rules() };
            let Ruling::Stay(shorts) = ruling(hour(24), &rules, &parts) else {
                panic!("breach {number} was let through");
            };
            assert!(
                shorts.len() == 1 && names(&shorts[0]),
                "{number}: {shorts:?}"
            );
        }
    }
}

/// Requirement: V07
#[test]
fn v07_canary_stays_for_its_hours_and_needs_a_vm() {
    let mut parts = good(Stage::Canary);
    parts.evidence.hours = 5;
    let has = Short::CanaryHours { has: 5, needs: 6 };
    assert_eq!(ruling(hour(5), &rules(), &parts), Ruling::Stay(vec![has]));
    let mut parts = good(Stage::Canary);
    parts.evidence.canary = Tally::default();
    let stays = Ruling::Stay(vec![Short::CanaryIsEmpty]);
    assert_eq!(ruling(hour(6), &rules(), &parts), stays);
}

/// A planted harm of each kind, and the rule that must name it.
const ALARMS: [Injury; 5] = [
    (
        |p| p.alarms.faults_in_a_row = 3,
        |d| matches!(d, Damage::FaultsInARow { count: 3 }),
    ),
    (
        |p| p.alarms.faulty_calls = 11,
        |d| matches!(d, Damage::FaultyCalls { faulty: 11, .. }),
    ),
    (
        |p| p.alarms.out_of_memory = 1,
        |d| matches!(d, Damage::OutOfMemory { vms: 1 }),
    ),
    (
        |p| p.alarms.worker_deaths = 4,
        |d| matches!(d, Damage::WorkerDeaths { count: 4, .. }),
    ),
    (
        |p| p.alarms.shrinks_at_once_percent = MOST_AT_ONCE + 1,
        |d| {
            matches!(
                d,
                Damage::ShrinksAtOnce {
                    percent: 21,
                    most: 20
                }
            )
        },
    ),
];

/// Harm that a canary does after its first hour.
const CANARY: [Injury; 4] = [
    (
        |p| p.evidence.canary.oom_risk_minutes = 3.1,
        |d| matches!(d, Damage::CanaryOomRisk { .. }),
    ),
    (
        |p| p.evidence.candidate.unit_hours = 241.0,
        |d| matches!(d, Damage::CanaryUnitHours { .. }),
    ),
    (
        |p| p.evidence.canary.refused_shrinks = 9,
        |d| matches!(d, Damage::CanaryRefusals { .. }),
    ),
    (
        |p| {
            // All VMs are canaries.
            p.evidence.others = Tally::default();
            p.evidence.canary.oom_risk_minutes = 3.1;
        },
        |d| matches!(d, Damage::CanaryOomRisk { .. }),
    ),
];

fn demoted(now: WallTime, parts: &Parts, names: fn(&Damage) -> bool) {
    let Ruling::Demote(damages) = ruling(now, &rules(), parts) else {
        panic!("{:?} was let through", parts.alarms);
    };
    assert!(damages.len() == 1 && names(&damages[0]), "{damages:?}");
}

/// Requirement: V07
#[test]
fn v07_each_harm_alone_demotes_a_version_that_decides() {
    for (change, names) in ALARMS {
        for stage in [Stage::Canary, Stage::Live] {
            let mut parts = good(stage);
            change(&mut parts);
            demoted(WallTime(hour(0).0 + 1), &parts, names);
        }
        // A candidate has nothing to be taken from.
        let mut parts = good(Stage::Shadow);
        change(&mut parts);
        assert!(!matches!(
            ruling(hour(24), &rules(), &parts),
            Ruling::Demote(_)
        ));
    }
}

/// A VM is asked a hundred times in ten minutes, so one late answer would be a share of 1 %.
///
/// Requirement: V07
#[test]
fn v07_two_faults_in_few_calls_demote_nothing() {
    for (faulty, is_demoted) in [(2, false), (3, true)] {
        let mut parts = good(Stage::Live);
        (parts.alarms.calls, parts.alarms.faulty_calls) = (50, faulty);
        let ruling = ruling(hour(1), &rules(), &parts);
        assert_eq!(matches!(ruling, Ruling::Demote(_)), is_demoted, "{faulty}");
    }
}

/// Requirement: V07
#[test]
fn v07_figures_of_a_canary_count_after_an_hour() {
    for (change, names) in CANARY {
        let mut parts = good(Stage::Canary);
        change(&mut parts);
        demoted(hour(1), &parts, names);
        let early = ruling(WallTime(hour(1).0 - 1), &rules(), &parts);
        assert!(!matches!(early, Ruling::Demote(_)), "{early:?}");
    }
}

/// Requirement: V07
#[test]
fn v07_bounds_themselves_are_allowed() {
    let mut parts = good(Stage::Canary);
    parts.alarms = Alarms {
        faults_in_a_row: 2,
        faulty_calls: 10,
        worker_deaths: 3,
        shrinks_at_once_percent: MOST_AT_ONCE,
        ..parts.alarms
    };
    parts.evidence.candidate.unit_hours = 240.0;
    parts.evidence.canary.refused_shrinks = 8;
    assert!(!matches!(
        ruling(hour(6), &rules(), &parts),
        Ruling::Demote(_)
    ));
}

/// Requirement: V07
#[test]
fn v07_demoted_version_is_banned_for_a_day() {
    let mut parts = good(Stage::Shadow);
    parts.standing.demoted_at = Some(hour(0));
    let until = hour(24);
    let stays = Ruling::Stay(vec![Short::Banned { until }]);
    assert_eq!(ruling(WallTime(until.0 - 1), &rules(), &parts), stays);
    assert_eq!(
        ruling(until, &rules(), &parts),
        Ruling::Promote(Stage::Canary)
    );
}

#[test]
fn ruling_is_data() {
    let mut parts = good(Stage::Shadow);
    parts.evidence.gaps = 2;
    let text = serde_json::to_string(&ruling(hour(24), &rules(), &parts)).expect("JSON");
    assert_eq!(
        text,
        r#"{"do":"stay","because":[{"rule":"gaps","count":2}]}"#
    );
    let text = serde_json::to_string(&Ruling::Promote(Stage::Canary)).expect("JSON");
    assert_eq!(text, r#"{"do":"promote","because":"canary"}"#);
    let rules: Rules = serde_json::from_str(r#"{"promote": "auto", "hours": 2}"#).expect("rules");
    assert_eq!(
        (rules.promote, rules.hours, rules.vms),
        (Promote::Auto, 2, 3)
    );
}

fn any_evidence() -> impl Strategy<Value = Evidence> {
    let figure = || 0.0..10.0_f64;
    let tally = move || {
        (figure(), figure(), figure(), 0..5_u64).prop_map(|(risk, short, units, count)| Tally {
            vm_hours: 10.0,
            oom_risk_minutes: risk,
            cpu_short_minutes: short,
            unit_hours: units,
            reversals: count,
            refused_shrinks: count,
        })
    };
    let groups = (tally(), tally(), tally(), tally());
    (groups, 0..30_u32, 0..4000_u64, 0..3_u64).prop_map(|(groups, hours, decisions, faults)| {
        let (candidate, live, canary, others) = groups;
        Evidence {
            hours,
            decisions,
            faults: [(Fault::Steps, faults / 2)].into(),
            candidate,
            live,
            canary,
            others,
            ..enough()
        }
    })
}

fn any_alarms() -> impl Strategy<Value = Alarms> {
    (0..4_u32, 0..12_u64, 0..2_u32, 0..5_u32, 0..25_u32).prop_map(
        |(row, faulty, killed, deaths, percent)| Alarms {
            faults_in_a_row: row,
            calls: 1000,
            faulty_calls: faulty,
            out_of_memory: killed,
            worker_deaths: deaths,
            shrinks_at_once_percent: percent,
        },
    )
}

/// The standing after a ruling.
pub(super) fn carried_out(now: WallTime, standing: &Standing, ruling: &Ruling) -> Option<Standing> {
    let changed = |stage| Standing {
        stage,
        since: now,
        changed_at: Some(now),
        ..*standing
    };
    match ruling {
        Ruling::Promote(stage) => Some(changed(*stage)),
        Ruling::Demote(_) => Some(Standing {
            demoted_at: Some(now),
            ..changed(Stage::Shadow)
        }),
        Ruling::Promotable(_) | Ruling::Stay(_) => None,
    }
}

proptest! {
    /// Requirement: V07
    #[test]
    fn v07_stages_change_at_most_once_an_hour_but_for_demotions(
        steps in prop::collection::vec((any_evidence(), any_alarms(), 0..90_i64), 1..60),
    ) {
        let mut parts = good(Stage::Shadow);
        let mut now = hour(0);
        for (evidence, alarms, minutes) in steps {
            now = WallTime(now.0 + minutes * HOUR / 60);
            (parts.evidence, parts.alarms) = (evidence, alarms);
            let before = parts.standing;
            let ruling = ruling(now, &rules(), &parts);
            if let Ruling::Promote(next) = &ruling {
                let changed_at = before.changed_at.map_or(0, |at| at.0);
                prop_assert!(now.0 - changed_at >= HOUR);
                prop_assert!(before.demoted_at.is_none_or(|at| now.0 - at.0 >= 24 * HOUR));
                prop_assert!(parts.evidence.faults.values().all(|count| *count == 0));
                prop_assert_eq!(parts.alarms.faults_in_a_row, 0);
                prop_assert_eq!(before.stage.max(*next), *next);
            }
            if let Ruling::Stay(shorts) = &ruling {
                prop_assert_eq!(shorts.is_empty(), before.stage == Stage::Live);
            }
            if let Some(standing) = carried_out(now, &before, &ruling) {
                parts.standing = standing;
            }
        }
    }

    /// Requirement: V07
    #[test]
    fn v07_more_harm_never_helps(
        (evidence, alarms) in (any_evidence(), any_alarms()),
        is_canary: bool,
    ) {
        let stage = if is_canary { Stage::Canary } else { Stage::Shadow };
        let parts = Parts { evidence, alarms, ..good(stage) };
        let rank = |parts: &Parts| match ruling(hour(24), &rules(), parts) {
            Ruling::Demote(_) => 0,
            Ruling::Stay(_) => 1,
            Ruling::Promote(_) | Ruling::Promotable(_) => 2,
        };
        let before = rank(&parts);
        let worse = Parts {
            evidence: {
                let mut evidence = parts.evidence.clone();
                evidence.candidate.oom_risk_minutes += 1.0;
                evidence.canary.refused_shrinks += 1;
                evidence
            },
            ..parts.clone()
        };
        prop_assert!(rank(&worse) <= before);
    }
}
