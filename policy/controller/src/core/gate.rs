//! The gate: may the next stage of a version begin, or must the version be taken back? One pure
//! function over figures. Its reasons are data.
//!
//! ```text
//!   shadow --promotable--> canary --promotable--> live
//!      ^                     |                     |
//!      +------- demoted -----+------- demoted -----+     and banned for 24 hours
//! ```
//!
//! Versions of sets have no canary: `shadow --promotable--> live`. No model says what fewer members
//! would lack, so a person begins the stage of a version that wants fewer.
//!
//! # Invariants
//! * A version with a fault is never let on, and a version is let on only where no rule is short:
//!   `v07_each_rule_alone_keeps_a_candidate_back`.
//! * A demoted version is not let on for 24 hours: `v07_demoted_version_is_banned_for_a_day`.
//! * At most one change an hour, demotions apart:
//!   `v07_stages_change_at_most_once_an_hour_but_for_demotions`.
//! * A seeded bad policy never decides about all VMs, and a good one comes to it:
//!   `v07_bad_policy_is_never_promoted_and_a_good_one_always`.
//! * No version of sets that wants fewer members comes to decide by itself:
//!   `v07_version_of_sets_that_wants_fewer_members_waits_for_a_person`.

use std::cmp::Ordering;

use protocol::policy::{Fault, Scope};
use protocol::time::WallTime;
use serde::{Deserialize, Serialize};

use super::tally::{Alarms, Evidence};

const HOUR: i64 = 3_600_000_000;
/// Time for which a demoted version cannot be let on, microseconds.
const BAN: i64 = 24 * HOUR;
/// Shortest time between two changes, microseconds.
const BETWEEN_CHANGES: i64 = HOUR;
/// Time of a canary after which its figures count, microseconds.
const CANARY_SETTLES: i64 = HOUR;
/// Largest error of the model, percent.
const MAX_ERROR: f64 = 10.0;
/// Faults in a row that demote.
const FAULTS_IN_A_ROW: u32 = 3;
/// Share of faulty calls in ten minutes that demotes, percent; fewer faults than in a row do not.
const FAULTY_PERCENT: u64 = 1;
/// Deaths of the worker in ten minutes that are allowed.
const WORKER_DEATHS: u32 = 3;
/// Unit-hours of a canary that demote, percent of the live version's.
const CANARY_UNIT_HOURS_PERCENT: f64 = 120.0;
/// Refused shrinks of a canary that demote, as a multiple of the other VMs'.
const REFUSED_FACTOR: f64 = 2.0;

/// `spec.gate` of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Rules {
    /// Whether the next stage begins by itself.
    pub promote: Promote,
    /// Hours of evidence that a candidate needs.
    pub hours: u32,
    /// Answers that it needs.
    pub decisions: u64,
    /// VMs that it needs.
    pub vms: u32,
    /// Hours that a canary lasts.
    pub canary_hours: u32,
    /// Most unit-hours, percent of the live version's.
    pub cu_hours_percent: u32,
    /// Most reversals, percent of the live version's.
    pub reversals_percent: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            promote: Promote::Ask,
            hours: 24,
            decisions: 2000,
            vms: 3,
            canary_hours: 6,
            cu_hours_percent: 105,
            reversals_percent: 120,
        }
    }
}

/// Who lets a candidate on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Promote {
    /// A person lets it on.
    #[default]
    Ask,
    /// The gate lets it on.
    Auto,
}

/// How far a version has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Its answers are recorded.
    Shadow,
    /// It decides about some of the VMs.
    Canary,
    /// It decides about all VMs.
    Live,
}

/// Standing of a version. Times are calendar times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    /// How far it has come.
    pub stage: Stage,
    /// When it got this far.
    pub since: WallTime,
    /// Newest change of the policy's versions.
    pub changed_at: Option<WallTime>,
    /// Newest demotion of this version.
    pub demoted_at: Option<WallTime>,
}

/// Why a version is not let on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the figure and its bound; the names say which")]
pub enum Short {
    Hours { has: u32, needs: u32 },
    Decisions { has: u64, needs: u64 },
    Vms { has: u32, needs: u32 },
    Faults { kind: Fault, count: u64 },
    FaultsInARow { count: u32 },
    OomRisk { minutes: f64, most: f64 },
    CpuShort { minutes: f64, most: f64 },
    UnitHours { percent: f64, most: u32 },
    Reversals { percent: f64, most: u32 },
    Error { percent: f64, most: f64 },
    Gaps { count: u64 },
    CanaryHours { has: u32, needs: u32 },
    CanaryIsEmpty,
    Banned { until: WallTime },
    TooSoon { until: WallTime },
}

/// Why a version is taken back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the figure and its bound; the names say which")]
pub enum Damage {
    FaultsInARow { count: u32 },
    FaultyCalls { faulty: u64, calls: u64 },
    OutOfMemory { vms: u32 },
    WorkerDeaths { count: u32, most: u32 },
    ShrinksAtOnce { percent: u32, most: u32 },
    CanaryOomRisk { per_hour: f64, others: f64 },
    CanaryUnitHours { percent: f64, most: f64 },
    CanaryRefusals { per_hour: f64, others: f64 },
}

/// What is to be done about a version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", content = "because", rename_all = "snake_case")]
pub enum Ruling {
    /// The next stage begins.
    Promote(Stage),
    /// The next stage may begin; a person says when.
    Promotable(Stage),
    /// It stays, because these rules are short. None: it has come as far as it can.
    Stay(Vec<Short>),
    /// It goes back, and the version before decides.
    Demote(Vec<Damage>),
}

/// What the gate knows of a version.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// What the policy decides about.
    pub scope: Scope,
    /// The policy's rules.
    pub rules: &'a Rules,
    /// Most VMs that may begin to shrink at once, percent.
    pub vms_shrunk_at_once_percent: Option<u32>,
    /// Standing of the version.
    pub standing: &'a Standing,
    /// What was seen of it since it has its stage.
    pub evidence: &'a Evidence,
    /// What agents report now.
    pub alarms: &'a Alarms,
}

/// Decides about a version. Equal cases have equal rulings.
#[must_use]
pub fn rule(now: WallTime, case: &Case<'_>) -> Ruling {
    let damages = damages(now, case);
    if case.standing.stage > Stage::Shadow && !damages.is_empty() {
        return Ruling::Demote(damages);
    }
    let Some(next) = next_stage(case.scope, case.standing.stage) else {
        return Ruling::Stay(Vec::new());
    };
    let shorts = shorts(now, case);
    match case.rules.promote {
        _ if !shorts.is_empty() => Ruling::Stay(shorts),
        Promote::Auto if !wants_fewer(case) => Ruling::Promote(next),
        Promote::Auto | Promote::Ask => Ruling::Promotable(next),
    }
}

/// The stage after a stage. `None` after the last one.
#[must_use]
pub fn next_stage(scope: Scope, stage: Stage) -> Option<Stage> {
    match (scope, stage) {
        (Scope::Vm, Stage::Shadow) => Some(Stage::Canary),
        (Scope::Set, Stage::Shadow) | (_, Stage::Canary) => Some(Stage::Live),
        (_, Stage::Live) => None,
    }
}

/// Whether a version of sets wanted fewer members than those that it is set beside.
fn wants_fewer(case: &Case<'_>) -> bool {
    case.scope == Scope::Set && exceeds(case.evidence.fewer_minutes, 0.0)
}

/// One figure in percent of another.
fn share(part: f64, whole: f64) -> f64 {
    if part <= 0.0 {
        0.0
    } else {
        100.0 * part / whole.max(f64::MIN_POSITIVE)
    }
}

/// Whether a figure is over its bound. One that is no number is.
fn exceeds(figure: f64, most: f64) -> bool {
    !matches!(
        figure.partial_cmp(&most),
        Some(Ordering::Less | Ordering::Equal)
    )
}

/// What keeps a candidate from the next stage.
fn shorts(now: WallTime, case: &Case<'_>) -> Vec<Short> {
    let evidence = case.evidence;
    let mut shorts = amounts(case);
    let faults = evidence.faults.iter().filter(|(_, count)| **count > 0);
    shorts.extend(faults.map(|(kind, count)| Short::Faults {
        kind: *kind,
        count: *count,
    }));
    let count = case.alarms.faults_in_a_row;
    if count > 0 {
        // Newer than the last whole hour.
        shorts.push(Short::FaultsInARow { count });
    }
    shorts.extend(figures(case));
    let count = evidence.gaps;
    if count > 0 {
        shorts.push(Short::Gaps { count });
    }
    shorts.extend(waits(now, case.standing));
    shorts
}

/// Figures of the model that are over their bounds.
fn figures(case: &Case<'_>) -> Vec<Short> {
    let (rules, evidence) = (case.rules, case.evidence);
    let (own, live) = (&evidence.candidate, &evidence.live);
    let mut shorts = Vec::new();
    let (minutes, most) = (own.oom_risk_minutes, live.oom_risk_minutes);
    if exceeds(minutes, most) {
        shorts.push(Short::OomRisk { minutes, most });
    }
    let (minutes, most) = (own.cpu_short_minutes, live.cpu_short_minutes);
    if exceeds(minutes, most) {
        shorts.push(Short::CpuShort { minutes, most });
    }
    let (percent, most) = (
        share(own.unit_hours, live.unit_hours),
        rules.cu_hours_percent,
    );
    if exceeds(percent, f64::from(most)) {
        shorts.push(Short::UnitHours { percent, most });
    }
    // A live version without reversals allows one.
    let percent = share(own.reversals as f64, live.reversals.max(1) as f64);
    let most = rules.reversals_percent;
    if exceeds(percent, f64::from(most)) {
        shorts.push(Short::Reversals { percent, most });
    }
    let (percent, most) = (evidence.error_percent, MAX_ERROR);
    if exceeds(percent, most) {
        shorts.push(Short::Error { percent, most });
    }
    shorts
}

/// Evidence that is still missing.
fn amounts(case: &Case<'_>) -> Vec<Short> {
    let (rules, evidence) = (case.rules, case.evidence);
    let mut shorts = Vec::new();
    if case.standing.stage == Stage::Canary {
        if evidence.hours < rules.canary_hours {
            shorts.push(Short::CanaryHours {
                has: evidence.hours,
                needs: rules.canary_hours,
            });
        }
        if evidence.canary.vm_hours <= 0.0 {
            shorts.push(Short::CanaryIsEmpty);
        }
        return shorts;
    }
    if evidence.hours < rules.hours {
        shorts.push(Short::Hours {
            has: evidence.hours,
            needs: rules.hours,
        });
    }
    if evidence.decisions < rules.decisions {
        shorts.push(Short::Decisions {
            has: evidence.decisions,
            needs: rules.decisions,
        });
    }
    let vms = u32::try_from(evidence.vms.len()).unwrap_or(u32::MAX);
    if vms < rules.vms {
        shorts.push(Short::Vms {
            has: vms,
            needs: rules.vms,
        });
    }
    shorts
}

/// Times before which nothing is let on.
fn waits(now: WallTime, standing: &Standing) -> Vec<Short> {
    let end = |at: Option<WallTime>, span: i64| {
        let until = WallTime(at?.0.saturating_add(span));
        (now < until).then_some(until)
    };
    let banned = end(standing.demoted_at, BAN).map(|until| Short::Banned { until });
    let soon = end(standing.changed_at, BETWEEN_CHANGES).map(|until| Short::TooSoon { until });
    banned.into_iter().chain(soon).collect()
}

/// What a version that decides has done.
fn damages(now: WallTime, case: &Case<'_>) -> Vec<Damage> {
    let alarms = case.alarms;
    let mut damages = Vec::new();
    let count = alarms.faults_in_a_row;
    if count >= FAULTS_IN_A_ROW {
        damages.push(Damage::FaultsInARow { count });
    }
    let allowed = alarms.calls.saturating_mul(FAULTY_PERCENT) / 100;
    if alarms.faulty_calls > allowed.max(u64::from(FAULTS_IN_A_ROW - 1)) {
        damages.push(Damage::FaultyCalls {
            faulty: alarms.faulty_calls,
            calls: alarms.calls,
        });
    }
    let vms = alarms.out_of_memory;
    if vms > 0 {
        damages.push(Damage::OutOfMemory { vms });
    }
    if alarms.worker_deaths > WORKER_DEATHS {
        damages.push(Damage::WorkerDeaths {
            count: alarms.worker_deaths,
            most: WORKER_DEATHS,
        });
    }
    if let Some(most) = case.vms_shrunk_at_once_percent
        && alarms.shrinks_at_once_percent > most
    {
        damages.push(Damage::ShrinksAtOnce {
            percent: alarms.shrinks_at_once_percent,
            most,
        });
    }
    let age = now.0.saturating_sub(case.standing.since.0);
    if case.standing.stage == Stage::Canary && age >= CANARY_SETTLES {
        damages.extend(canary_damages(case.evidence));
    }
    damages
}

/// The canary beside the other VMs, and beside the live version in the model. Where all VMs are
/// canaries, the live version stands for the others too.
fn canary_damages(evidence: &Evidence) -> Vec<Damage> {
    let canary = &evidence.canary;
    let others = if evidence.others.vm_hours > 0.0 {
        &evidence.others
    } else {
        &evidence.live
    };
    let mut damages = Vec::new();
    let risk = canary.rate(canary.oom_risk_minutes);
    let of_others = others.rate(others.oom_risk_minutes);
    if exceeds(risk, of_others) {
        damages.push(Damage::CanaryOomRisk {
            per_hour: risk,
            others: of_others,
        });
    }
    let most = CANARY_UNIT_HOURS_PERCENT;
    let percent = share(evidence.candidate.unit_hours, evidence.live.unit_hours);
    if exceeds(percent, most) {
        damages.push(Damage::CanaryUnitHours { percent, most });
    }
    let refused = canary.rate(canary.refused_shrinks as f64);
    let of_others = others.rate(others.refused_shrinks as f64);
    if exceeds(refused, REFUSED_FACTOR * of_others) {
        damages.push(Damage::CanaryRefusals {
            per_hour: refused,
            others: of_others,
        });
    }
    damages
}
