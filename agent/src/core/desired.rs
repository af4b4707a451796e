//! From the goal to the size the VM should have: wishes and refusals of the monitor, missing metrics, bounds.
//! Source: spec/agent.md §2.4.
//!
//! Precedence, later wins: goal, the monitor's wish or refusal (whichever is more), hold without metrics, maximum, minimum,
//! and last the refusal again: a VM stays above its maximum rather than run out of memory.

use protocol::units::{Bytes, MilliCpu, Resources};

use super::config::ScalingConfig;
use super::decision::{Bound, Bounds, Reason};
use super::goal::{Goal, goal};
use super::metrics::{LfcMetrics, SystemMetrics};
use super::warnings::{Warning, Warnings};

/// A refused shrink that still holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denied {
    /// What the monitor had.
    pub current: Resources,
    /// What it refused to have.
    pub requested: Resources,
}

/// Everything the desired size is made of.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// The compute unit.
    pub unit: Resources,
    /// The VM's smallest size.
    pub min: Resources,
    /// The VM's largest size.
    pub max: Resources,
    /// What it uses now.
    pub using: Resources,
    /// Its scaling settings.
    pub scaling: &'a ScalingConfig,
    /// Fresh system metrics.
    pub system: Option<&'a SystemMetrics>,
    /// Fresh file cache metrics.
    pub lfc: Option<&'a LfcMetrics>,
    /// A missing metric was there once.
    pub is_stale: bool,
    /// Units the monitor's wish asks for, while it is in force.
    pub requested_units: Option<u32>,
    /// A refused shrink, while it is in force.
    pub denied: Option<Denied>,
}

/// The desired size and how it came about.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Desired {
    /// The size.
    pub size: Resources,
    /// What the metrics alone ask for.
    pub goal: Goal,
    /// What decided.
    pub reason: Reason,
    /// Min and max, where they cut.
    pub bounded_by: Bounds,
    /// Conditions met on the way.
    pub warnings: Warnings,
    /// All metrics known and fresh.
    pub has_all_metrics: bool,
    /// The monitor's wish made a difference, so its end will too.
    pub is_upscale_affected: bool,
    /// The refusal made a difference, so its end will too.
    pub is_denied_affected: bool,
    /// The size left the bounds without a refusal being the reason. Cannot happen while min ≤ max.
    pub is_out_of_bounds: bool,
}

/// Smallest number of units above `size` in any of the fields asked for.
#[must_use]
pub fn units_above(size: Resources, unit: Resources, cpu: bool, memory: bool) -> u32 {
    let by_cpu = if cpu {
        size.cpu
            .0
            .checked_div(unit.cpu.0)
            .unwrap_or(0)
            .saturating_add(1)
    } else {
        0
    };
    let by_memory = if memory {
        let whole = size.mem.0.checked_div(unit.mem.0).unwrap_or(0);
        u32::try_from(whole).unwrap_or(u32::MAX).saturating_add(1)
    } else {
        0
    };
    by_cpu.max(by_memory)
}

/// The lowest size that respects a refusal: one unit step above it in each field, but never above what the monitor had.
fn floor_of_denial(denied: Denied, unit: Resources) -> Resources {
    let cpu_units = denied
        .requested
        .cpu
        .0
        .checked_div(unit.cpu.0)
        .unwrap_or(0)
        .saturating_add(1);
    let mem_units = denied
        .requested
        .mem
        .0
        .checked_div(unit.mem.0)
        .unwrap_or(0)
        .saturating_add(1);
    denied.current.field_min(Resources {
        cpu: MilliCpu(unit.cpu.0.saturating_mul(cpu_units)),
        mem: Bytes(unit.mem.0.saturating_mul(mem_units)),
    })
}

/// The goal with what the monitor asked for and refused.
struct Wishes {
    units: u32,
    reason: Reason,
    is_upscale: bool,
    is_denied: bool,
}

/// Wish and refusal are each compared with the goal, not with one another: both can make a difference at once.
fn wishes(inputs: &Inputs<'_>, goal: &Goal) -> Wishes {
    let mut wishes = Wishes {
        units: goal.units,
        reason: Reason::from(goal.winner),
        is_upscale: false,
        is_denied: false,
    };
    if let Some(wish) = inputs.requested_units
        && wish > goal.units
    {
        wishes.units = wish;
        wishes.reason = Reason::RequestedUpscale;
        wishes.is_upscale = true;
    }
    let kept = inputs
        .denied
        .map(|denied| units_above(denied.requested, inputs.unit, true, true));
    if let Some(kept) = kept
        && kept > goal.units
    {
        wishes.is_denied = true;
        if kept > wishes.units {
            wishes.units = kept;
            wishes.reason = Reason::DeniedDownscale;
        }
    }
    wishes
}

/// Computes the desired size.
#[must_use]
pub fn desired(inputs: &Inputs<'_>) -> Desired {
    let mut warnings = Warnings::default();
    let mut bounded_by = Bounds::default();
    let goal = goal(inputs.scaling, inputs.unit, inputs.system, inputs.lfc);
    let has_all_metrics =
        inputs.system.is_some() && (!inputs.scaling.enable_lfc_metrics || inputs.lfc.is_some());
    if goal.is_series_short {
        warnings.insert(Warning::WorkingSetSeriesShort);
    }
    if !has_all_metrics {
        warnings.insert(Warning::MissingMetrics);
    }

    let Wishes {
        units,
        mut reason,
        is_upscale,
        is_denied,
    } = wishes(inputs, &goal);
    let mut size = inputs.unit.saturating_mul(units);
    if !has_all_metrics && inputs.using.has_field_above(size) {
        size = size.field_max(inputs.using);
        reason = if inputs.is_stale {
            Reason::StaleMetrics
        } else {
            Reason::MissingMetrics
        };
    }
    if size.has_field_above(inputs.max) {
        bounded_by.insert(Bound::Max);
        size = size.field_min(inputs.max);
    }
    if size.has_field_below(inputs.min) {
        bounded_by.insert(Bound::Min);
        size = size.field_max(inputs.min);
    }

    let mut is_denied_affected = is_denied;
    let mut is_above_max_allowed = is_denied_affected;
    if let Some(denied) = inputs.denied {
        if !size.has_field_above(denied.requested) {
            warnings.insert(Warning::DeniedAtMaximum);
        }
        let raised = size.field_max(floor_of_denial(denied, inputs.unit));
        if raised != size {
            size = raised;
            reason = Reason::DeniedDownscale;
            is_denied_affected = true;
            is_above_max_allowed = true;
        }
    }
    let is_out_of_bounds = size.has_field_below(inputs.min)
        || (size.has_field_above(inputs.max) && !is_above_max_allowed);
    Desired {
        size,
        goal,
        reason,
        bounded_by,
        warnings,
        has_all_metrics,
        is_upscale_affected: is_upscale,
        is_denied_affected,
        is_out_of_bounds,
    }
}
