//! Rulings in words, with their numbers, for conditions and events.

use std::collections::{BTreeMap, BTreeSet};

use protocol::policy::Scope;
use serde::Serialize;

use super::gate::{Damage, Short, Stage};
use super::tally::Evidence;

/// Why a candidate with a fault is not let on.
pub const FAULTS: &str = "Faults";

/// Most nodes that a sentence names.
const NODES: usize = 3;

/// Limits that agents' files cut, each with the nodes of the agents.
pub(super) fn cut_limits(cut: &BTreeMap<String, BTreeSet<&str>>) -> String {
    let on = |nodes: &BTreeSet<&str>| {
        let named: Vec<&str> = nodes.iter().copied().take(NODES).collect();
        let noun = if nodes.len() == 1 { "node" } else { "nodes" };
        let more = match nodes.len().saturating_sub(NODES) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{noun} {}{more}", named.join(", "))
    };
    let limits = cut.iter();
    let limits = limits.map(|(limits, nodes)| format!("; on {} {limits}", on(nodes)));
    format!("agents follow it{}", limits.collect::<String>())
}

/// The digits of a digest that people see.
pub(super) fn short(digest: &str) -> &str {
    digest.get(..8).unwrap_or(digest)
}

pub(super) fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Shadow => "shadow",
        Stage::Canary => "canary",
        Stage::Live => "live",
    }
}

/// Why a candidate is held, in one word. Faults come first.
pub(super) fn reason(shorts: &[Short]) -> String {
    let is_fault = |one: &Short| matches!(one, Short::Faults { .. } | Short::FaultsInARow { .. });
    if shorts.iter().any(is_fault) {
        return FAULTS.to_owned();
    }
    shorts.first().map(name_of).unwrap_or_default()
}

/// Why a version is taken back, in one word.
pub(super) fn cause(damages: &[Damage]) -> String {
    match damages.first() {
        Some(Damage::FaultsInARow { .. } | Damage::FaultyCalls { .. }) => FAULTS.to_owned(),
        first => first.map(name_of).unwrap_or_default(),
    }
}

/// Name of a rule, in camel case.
fn name_of(rule: &impl Serialize) -> String {
    let value = serde_json::to_value(rule).unwrap_or_default();
    let words = value["rule"].as_str().unwrap_or_default().split('_');
    words
        .filter_map(|word| word.split_at_checked(1))
        .map(|(first, rest)| first.to_uppercase() + rest)
        .collect()
}

pub(super) fn shorts(all: &[Short]) -> String {
    joined(all.iter().map(missing))
}

pub(super) fn damages(all: &[Damage]) -> String {
    joined(all.iter().map(harm))
}

fn joined(texts: impl Iterator<Item = String>) -> String {
    texts.collect::<Vec<_>>().join("; ")
}

pub(super) fn followed(scope: Scope) -> &'static str {
    match scope {
        Scope::Vm => "agents follow it",
        Scope::Set => "the policy controller asks it",
    }
}

/// What the gate does not judge: a second sentence, or nothing.
pub(super) fn not_judged(scope: Scope) -> &'static str {
    match scope {
        Scope::Vm => "",
        Scope::Set => {
            ". There is no model of sets, so OOM-risk, CPU-short minutes and a model's error are not judged"
        }
    }
}

pub(super) fn evidence(scope: Scope, seen: &Evidence) -> String {
    match scope {
        Scope::Vm => of_vms(seen),
        Scope::Set => of_sets(seen),
    }
}

fn of_sets(seen: &Evidence) -> String {
    let fewer = if seen.fewer_minutes > 0.0 {
        "; a person begins it, because nothing says what fewer members would lack"
    } else {
        ""
    };
    format!(
        "hours {}, decisions {}, members {}, unit-hours {:.1} (live {:.1}, the sets had {:.1}), reversals {} (live {}), minutes with fewer members {:.0}{fewer}{}",
        seen.hours,
        seen.decisions,
        seen.vms.len(),
        seen.candidate.unit_hours,
        seen.live.unit_hours,
        seen.others.unit_hours,
        seen.candidate.reversals,
        seen.live.reversals,
        seen.fewer_minutes,
        not_judged(Scope::Set),
    )
}

fn of_vms(seen: &Evidence) -> String {
    format!(
        "hours {}, decisions {}, VMs {}, OOM-risk minutes {:.1} (live {:.1}), unit-hours {:.1} (live {:.1}), model's error {:.1} %",
        seen.hours,
        seen.decisions,
        seen.vms.len(),
        seen.candidate.oom_risk_minutes,
        seen.live.oom_risk_minutes,
        seen.candidate.unit_hours,
        seen.live.unit_hours,
        seen.error_percent,
    )
}

fn missing(short: &Short) -> String {
    match short {
        Short::Hours { has, needs } => format!("hours {has} of {needs}"),
        Short::Decisions { has, needs } => format!("decisions {has} of {needs}"),
        Short::Vms { has, needs } => format!("VMs {has} of {needs}"),
        Short::Faults { kind, count } => format!("{count} faults {}", kind.word()),
        Short::FaultsInARow { count } => format!("{count} faults in a row"),
        Short::OomRisk { minutes, most } => {
            format!("OOM-risk minutes {minutes:.1}, at most {most:.1}")
        }
        Short::CpuShort { minutes, most } => {
            format!("CPU-short minutes {minutes:.1}, at most {most:.1}")
        }
        Short::UnitHours { percent, most } => {
            format!("unit-hours {percent:.0} %, at most {most} %")
        }
        Short::Reversals { percent, most } => format!("reversals {percent:.0} %, at most {most} %"),
        Short::Error { percent, most } => {
            format!("model's error {percent:.1} %, at most {most:.0} %")
        }
        Short::Gaps { count } => format!("{count} gaps in journals"),
        Short::CanaryHours { has, needs } => format!("canary hours {has} of {needs}"),
        Short::CanaryIsEmpty => "no judged hour of a VM in canary".to_owned(),
        Short::Banned { until } => format!("it was taken back, so it waits until {until}"),
        Short::TooSoon { until } => format!("one change an hour, so it waits until {until}"),
    }
}

fn harm(damage: &Damage) -> String {
    match damage {
        Damage::FaultsInARow { count } => format!("{count} faults in a row"),
        Damage::FaultyCalls { faulty, calls } => format!("{faulty} faults in {calls} calls"),
        Damage::OutOfMemory { vms } => format!("{vms} VMs ran out of memory"),
        Damage::WorkerDeaths { count, most } => {
            format!("{count} deaths of the worker in ten minutes, at most {most}")
        }
        Damage::ShrinksAtOnce { percent, most } => {
            format!("{percent} % of its VMs wanted smaller at once, at most {most} %")
        }
        Damage::CanaryOomRisk { per_hour, others } => {
            format!("OOM-risk minutes an hour {per_hour:.2}, others {others:.2}")
        }
        Damage::CanaryUnitHours { percent, most } => {
            format!("unit-hours {percent:.0} %, at most {most:.0} %")
        }
        Damage::CanaryRefusals { per_hour, others } => {
            format!("refused shrinks an hour {per_hour:.2}, others {others:.2}")
        }
    }
}
