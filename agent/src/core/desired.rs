//! From the goal to the size the VM should have: wishes and refusals of the monitor, missing
//! metrics, bounds. Source: docs/compatibility/agent.md §2.4.
//!
//! Precedence, later wins: goal, calm (see [`super::calm`]), the monitor's wish or refusal
//! (whichever is more), hold without metrics or under memory pressure, maximum, minimum, and last
//! the refusal again: a VM stays above its maximum rather than run out of memory.

use protocol::time::Timestamp;
use protocol::units::{Bytes, MilliCpu, Resources};

use super::calm::{Calm, Calmed, calmed};
use super::config::{ScalingConfig, ShrinkStep};
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
    /// The smallest size it would have had, where it said so.
    pub smallest: Option<Resources>,
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
    /// What came before, where that is to keep the VM calm.
    pub calm: Calm,
    /// Time of the evaluation on the core's clock; the waits of `calm` are measured up to it.
    pub now: Timestamp,
}

/// The desired size and how it came about.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Desired {
    /// CPU and memory that the VM should have.
    pub size: Resources,
    /// What the metrics alone ask for.
    pub goal: Goal,
    /// Signal or rule that decided `size`.
    pub reason: Reason,
    /// Min and max, where they cut.
    pub bounded_by: Bounds,
    /// Conditions met on the way.
    pub warnings: Warnings,
    /// All metrics known and fresh.
    pub has_all_metrics: bool,
    /// When calm lets go of what it holds.
    pub calm_until: Option<Timestamp>,
    /// The goal, with its margin, is below the size in use, and for how long it has been so
    /// matters.
    pub is_below: bool,
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

/// The fewest units that have this much of both resources.
fn units_covering(size: Resources, unit: Resources) -> u32 {
    let cpu = size.cpu.0.div_ceil(unit.cpu.0.max(1));
    let mem = size.mem.0.div_ceil(unit.mem.0.max(1));
    cpu.max(u32::try_from(mem).unwrap_or(u32::MAX))
}

/// Each resource rounded up to whole units.
fn whole_units(size: Resources, unit: Resources) -> Resources {
    let cpu = size.cpu.0.div_ceil(unit.cpu.0.max(1));
    let mem = size.mem.0.div_ceil(unit.mem.0.max(1));
    Resources {
        cpu: MilliCpu(unit.cpu.0.saturating_mul(cpu)),
        mem: Bytes(unit.mem.0.saturating_mul(mem)),
    }
}

impl Denied {
    /// One unit step above what was refused, in each field.
    fn next_unit(&self, unit: Resources) -> Resources {
        let step = |size: u64, unit: u64| {
            let units = size.checked_div(unit).unwrap_or(0).saturating_add(1);
            unit.saturating_mul(units)
        };
        let cpu = step(self.requested.cpu.0.into(), unit.cpu.0.into());
        Resources {
            cpu: MilliCpu(u32::try_from(cpu).unwrap_or(u32::MAX)),
            mem: Bytes(step(self.requested.mem.0, unit.mem.0)),
        }
    }

    /// Half the way, in whole units, from what the monitor had to what it refused.
    fn half_way(&self, unit: Resources) -> Resources {
        let half = |current: u64, requested: u64, unit: u64| {
            let step = current.saturating_sub(requested);
            let units = step.checked_div(unit).unwrap_or(0) / 2;
            current.saturating_sub(unit.saturating_mul(units))
        };
        let (current, requested) = (self.current, self.requested);
        let cpu = half(
            current.cpu.0.into(),
            requested.cpu.0.into(),
            unit.cpu.0.into(),
        );
        let size = Resources {
            cpu: MilliCpu(u32::try_from(cpu).unwrap_or(u32::MAX)),
            mem: Bytes(half(current.mem.0, requested.mem.0, unit.mem.0)),
        };
        whole_units(size, unit)
    }

    /// The lowest size that respects the refusal; never above what the monitor had, always above
    /// what it refused, unless that is the same.
    fn floor(&self, unit: Resources, step: ShrinkStep) -> Resources {
        let next = self.next_unit(unit);
        let floor = match (step, self.smallest) {
            (ShrinkStep::Unit, _) => next,
            (ShrinkStep::Whole, Some(smallest)) => whole_units(smallest, unit).field_max(next),
            (ShrinkStep::Whole, None) => self.half_way(unit).field_max(next),
        };
        self.current.field_min(floor)
    }

    /// The units a VM keeps because of it.
    fn kept_units(&self, unit: Resources, step: ShrinkStep) -> u32 {
        match step {
            ShrinkStep::Unit => units_above(self.requested, unit, true, true),
            ShrinkStep::Whole => units_covering(self.floor(unit, step), unit),
        }
    }
}

/// The calmed goal with what the monitor asked for and refused.
struct Wishes {
    size: Resources,
    reason: Reason,
    is_upscale: bool,
    is_denied: bool,
}

/// Wish and refusal are each compared with the calmed goal, not with one another: both can make a
/// difference at once.
fn wishes(inputs: &Inputs<'_>, goal: &Goal, calmed: &Calmed) -> Wishes {
    let mut wishes = Wishes {
        size: calmed.size,
        reason: Reason::from(goal.winner),
        is_upscale: false,
        is_denied: false,
    };
    if let Some(wish) = inputs.requested_units {
        let wish = inputs.unit.saturating_mul(wish);
        if wish.has_field_above(calmed.size) {
            wishes.size = wishes.size.field_max(wish);
            wishes.reason = Reason::RequestedUpscale;
            wishes.is_upscale = true;
        }
    }
    if let Some(denied) = inputs.denied {
        let kept = denied.kept_units(inputs.unit, inputs.scaling.shrink_step);
        let kept = inputs.unit.saturating_mul(kept);
        if kept.has_field_above(calmed.size) {
            wishes.is_denied = true;
            if kept.has_field_above(wishes.size) {
                wishes.size = wishes.size.field_max(kept);
                wishes.reason = Reason::DeniedDownscale;
            }
        }
    }
    wishes
}

/// While tasks wait for memory more than the settings allow, the units in use, as whole a number as
/// they are.
fn pressure_vote(inputs: &Inputs<'_>) -> Option<f64> {
    let most = inputs.scaling.memory_pressure_hold_percent;
    let share = inputs.system?.signals.pressure_percent?;
    (most > 0.0 && share > most).then(|| {
        let cpu = f64::from(inputs.using.cpu.0) / f64::from(inputs.unit.cpu.0.max(1));
        let mem = inputs.using.mem.0 as f64 / inputs.unit.mem.0.max(1) as f64;
        cpu.max(mem)
    })
}

/// Why nothing may shrink now, if so: what is not known counts for more than what is.
fn held_by(inputs: &Inputs<'_>, goal: &Goal, has_all_metrics: bool) -> Option<Reason> {
    if !has_all_metrics && inputs.is_stale {
        return Some(Reason::StaleMetrics);
    }
    if !has_all_metrics {
        return Some(Reason::MissingMetrics);
    }
    let is_pressed = goal.votes.memory_pressure.is_some();
    is_pressed.then_some(Reason::MemoryPressure)
}

/// Computes the desired size.
#[must_use]
pub fn desired(inputs: &Inputs<'_>) -> Desired {
    let mut warnings = Warnings::default();
    let mut goal = goal(inputs.scaling, inputs.unit, inputs.system, inputs.lfc);
    goal.votes.memory_pressure = pressure_vote(inputs);
    let has_all_metrics =
        inputs.system.is_some() && (!inputs.scaling.enable_lfc_metrics || inputs.lfc.is_some());
    if goal.is_series_short {
        warnings.insert(Warning::WorkingSetSeriesShort);
    }
    if !has_all_metrics {
        warnings.insert(Warning::MissingMetrics);
    }

    let calmed = calmed(
        inputs.scaling,
        inputs.unit,
        inputs.using,
        &goal,
        inputs.calm,
        inputs.now,
    );
    let Wishes {
        mut size,
        mut reason,
        is_upscale,
        is_denied,
    } = wishes(inputs, &goal, &calmed);
    if let Some(why) = held_by(inputs, &goal, has_all_metrics)
        && inputs.using.has_field_above(size)
    {
        size = size.field_max(inputs.using);
        reason = why;
    }
    let mut bounded_by = calmed.by;
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
        let raised = size.field_max(denied.floor(inputs.unit, inputs.scaling.shrink_step));
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
        calm_until: calmed.until,
        is_below: calmed.is_below && has_all_metrics,
        is_upscale_affected: is_upscale,
        is_denied_affected,
        is_out_of_bounds,
    }
}
