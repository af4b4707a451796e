//! From metrics to compute units: each signal votes, and the highest vote is the goal. Source:
//! docs/compatibility/agent.md §2.3.
//!
//! * CPU: the load average, divided by the load that one unit may carry. The load is that of one
//!   minute, of five minutes or a mix, depending on their difference.
//! * Memory: usage, divided by the share of memory that it may fill. With a known working set also
//!   usage plus cache, divided by their share.
//! * Working set: hot pages of the file cache, divided by the cache's share of memory.
//! * Monitor's estimate, if enabled: the estimated need, divided by the share for usage and cache.
//! * Memory pressure, if enabled: the size in use, so that nothing shrinks (see
//!   [`super::desired`]).
//!
//! The CPU vote is rounded to the nearest unit, the other votes are rounded up.

use protocol::units::Resources;
use serde::Serialize;

use super::config::ScalingConfig;
use super::lfc::{self, PAGE_BYTES};
use super::metrics::{KERNEL_ALLOWANCE_BYTES, LfcMetrics, SystemMetrics};

/// Added to the divisor in the mixed zone, which may be zero.
const MIX_EPSILON: f64 = 0.000_001;

/// Votes of the signals in compute units; `None` = no fresh metrics, or no vote by the settings.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Votes {
    /// Vote by the load average.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Vote by memory usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    /// Vote by the file cache's working set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_set: Option<f64>,
    /// Vote by the monitor's estimate of the working set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub monitor_estimate: Option<f64>,
    /// Units in use while memory pressure is above its limit. It never makes a VM grow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_pressure: Option<f64>,
    /// Newest advice of the policy that decides; the units in use if it was to hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<f64>,
}

/// A signal whose vote can be the goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// Vote by the guest's load average; it is rounded to the nearest whole compute unit.
    Cpu,
    /// Vote by the guest's memory usage.
    Memory,
    /// Vote by the file cache's working set.
    WorkingSet,
    /// Vote by the monitor's estimate of the working set.
    MonitorEstimate,
}

/// Size that the metrics call for.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Goal {
    /// Compute units of the highest vote, rounded up; 0 without a vote above 0.
    pub units: u32,
    /// Vote of each signal.
    pub votes: Votes,
    /// Signal with the highest vote; `None` without a vote above 0.
    pub winner: Option<Signal>,
    /// Working set of the file cache; `None` without one.
    pub working_set: Option<lfc::WorkingSet>,
    /// The series of file cache metrics is too short for the configured windows.
    pub is_series_short: bool,
}

/// Computes the goal. Absent metrics give no vote.
#[must_use]
pub fn goal(
    scaling: &ScalingConfig,
    unit: Resources,
    system: Option<&SystemMetrics>,
    lfc: Option<&LfcMetrics>,
) -> Goal {
    let unit_mem = unit.mem.0 as f64;
    let working_set = lfc.and_then(|lfc| lfc::working_set(scaling, &lfc.working_set_pages));
    let is_series_short = lfc.is_some() && working_set.is_none();
    let votes = Votes {
        cpu: system.map(|system| {
            let load = effective_load(scaling, system);
            load / scaling.load_average_fraction_target / unit.cpu.as_cores()
        }),
        memory: system.map(|system| {
            let bytes = working_set.map(|set| (set.predicted_pages * PAGE_BYTES).floor());
            memory_vote(scaling, unit_mem, system, bytes)
        }),
        working_set: lfc.map(|_| {
            working_set.map_or(0.0, |set| {
                set.predicted_pages * PAGE_BYTES / scaling.lfc_to_memory_ratio / unit_mem
            })
        }),
        monitor_estimate: system
            .filter(|_| scaling.enable_monitor_estimate)
            .and_then(|system| system.signals.estimate_bytes)
            .map(|bytes| {
                let needs = bytes + KERNEL_ALLOWANCE_BYTES;
                needs / scaling.memory_total_fraction_target / unit_mem
            }),
        memory_pressure: None,
        policy: None,
    };
    let (units, winner) = combine(&votes);
    Goal {
        units,
        votes,
        winner,
        working_set,
        is_series_short,
    }
}

impl Goal {
    /// Compute units of the highest vote without the CPU vote.
    #[must_use]
    pub fn units_without_cpu(&self) -> u32 {
        combine(&Votes {
            cpu: None,
            ..self.votes
        })
        .0
    }

    /// Compute units of the highest vote if each vote were `margin` units higher.
    #[must_use]
    pub fn units_with(&self, margin: f64) -> u32 {
        let more = |vote: Option<f64>| vote.map(|vote| vote + margin);
        combine(&Votes {
            cpu: more(self.votes.cpu),
            memory: more(self.votes.memory),
            working_set: more(self.votes.working_set),
            monitor_estimate: more(self.votes.monitor_estimate),
            memory_pressure: None,
            policy: None,
        })
        .0
    }
}

/// One load from both averages: `load5` while they are close, `load1` when they are far apart.
fn effective_load(scaling: &ScalingConfig, system: &SystemMetrics) -> f64 {
    let stable = scaling.cpu_stable_zone_ratio * system.load5;
    let mixed = stable + scaling.cpu_mixed_zone_ratio * system.load5;
    let apart = (system.load1 - system.load5).abs();
    let weight = if apart <= stable {
        0.0
    } else if apart >= mixed {
        1.0
    } else {
        (apart - stable) / (mixed - stable + MIX_EPSILON)
    };
    weight * system.load1 + (1.0 - weight) * system.load5
}

fn memory_vote(
    scaling: &ScalingConfig,
    unit_mem: f64,
    system: &SystemMetrics,
    working_set_bytes: Option<f64>,
) -> f64 {
    let usage = system.memory_usage_bytes;
    let by_usage = (usage / scaling.memory_usage_fraction_target).round() / unit_mem;
    match working_set_bytes {
        None => by_usage,
        Some(bytes) => {
            let hot = bytes.min(system.memory_cached_bytes);
            by_usage.max((hot + usage) / scaling.memory_total_fraction_target / unit_mem)
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and NaN becomes 0"
)]
fn combine(votes: &Votes) -> (u32, Option<Signal>) {
    let candidates = [
        (Signal::Cpu, votes.cpu.map(f64::round)),
        (Signal::Memory, votes.memory),
        (Signal::WorkingSet, votes.working_set),
        (Signal::MonitorEstimate, votes.monitor_estimate),
    ];
    let mut highest = 0.0_f64;
    let mut winner = None;
    for (signal, vote) in candidates {
        if let Some(vote) = vote
            && vote > highest
        {
            (highest, winner) = (vote, Some(signal));
        }
    }
    (highest.ceil() as u32, winner)
}
