//! From the goal to the desired size: the monitor's requests and refusals, missing metrics, bounds.
//! Source: docs/compatibility/agent.md §2.4.
//!
//! Precedence, later wins: goal or advice of a policy (see [`super::advice`]), stabilization (see
//! [`super::stabilization`]), the rate of a policy's shrinks, the larger of the
//! monitor's upscale request and refusal, hold without metrics or under memory pressure, maximum,
//! minimum, and again the refusal. A VM stays above its maximum rather than run out of memory.

use protocol::time::Timestamp;
use protocol::units::{Bytes, MilliCpu, Resources};

use super::advice::{Advised, Target, target};
use super::config::{ScalingConfig, ShrinkStep};
use super::decision::{Bound, Bounds, Reason};
use super::goal::{Goal, goal};
use super::metrics::{LfcMetrics, SystemMetrics};
use super::stabilization::{Stabilization, Stabilized, stabilize};
use super::units::{units_covering, units_in, whole_units};
use super::warnings::{Warning, Warnings};

/// A refused shrink that is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denied {
    /// Size that the monitor had approved before.
    pub current: Resources,
    /// Size that the monitor refused.
    pub requested: Resources,
    /// Smallest size that the monitor would approve, if it named one.
    pub smallest: Option<Resources>,
}

/// Input of [`desired`].
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// The compute unit; neither field is zero.
    pub unit: Resources,
    /// Lower bound of the VM's size.
    pub min: Resources,
    /// Upper bound of the VM's size.
    pub max: Resources,
    /// Size in use.
    pub using: Resources,
    /// The VM's effective scaling settings.
    pub scaling: &'a ScalingConfig,
    /// System metrics; `None` when absent or too old.
    pub system: Option<&'a SystemMetrics>,
    /// File cache metrics; `None` when absent or too old.
    pub lfc: Option<&'a LfcMetrics>,
    /// A metric is missing that arrived before.
    pub is_stale: bool,
    /// Compute units of the monitor's upscale request, while it is in force.
    pub requested_units: Option<u32>,
    /// A refused shrink, while it is in force.
    pub denied: Option<Denied>,
    /// Advice of the policy that decides; `None` without one.
    pub advised: Option<Advised>,
    /// Times of the VM's last changes.
    pub stabilization: Stabilization,
    /// Time of the computation; the waits of `stabilization` are measured up to it.
    pub now: Timestamp,
}

/// The desired size and its causes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Desired {
    /// CPU and memory that the VM should have.
    pub size: Resources,
    /// Goal by the metrics alone. Its votes hold that of the policy too.
    pub goal: Goal,
    /// Advice that counted; `None` without a policy and without all metrics.
    pub advised: Option<Advised>,
    /// Signal or rule that decided `size`.
    pub reason: Reason,
    /// Bounds that changed the size, stabilization included.
    pub bounded_by: Bounds,
    /// Abnormal conditions during the computation.
    pub warnings: Warnings,
    /// All metrics that the settings use are fresh.
    pub has_all_metrics: bool,
    /// When stabilization stops to hold the size; `None` when no wait holds it.
    pub stabilized_until: Option<Timestamp>,
    /// The goal, with its margin, is below the size in use, and a downscale hold is configured.
    pub is_below: bool,
    /// The upscale request changed the size, so its end will change it again.
    pub is_upscale_affected: bool,
    /// The refusal changed the size, so its end will change it again.
    pub is_denied_affected: bool,
    /// The size is outside the bounds without a refusal. Cannot happen while min ≤ max.
    pub is_out_of_bounds: bool,
}

/// Fields of a size that [`units_above`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fields {
    /// Memory limited the size, and CPU did not.
    Memory,
    /// CPU and memory.
    Both,
}

/// Smallest number of units that is above `size` in the given fields.
#[must_use]
pub fn units_above(size: Resources, unit: Resources, fields: Fields) -> u32 {
    let whole = size.mem.0.checked_div(unit.mem.0).unwrap_or(0);
    let by_memory = u32::try_from(whole).unwrap_or(u32::MAX).saturating_add(1);
    let whole_cpu = size.cpu.0.checked_div(unit.cpu.0).unwrap_or(0);
    match fields {
        Fields::Memory => by_memory,
        Fields::Both => by_memory.max(whole_cpu.saturating_add(1)),
    }
}

impl Denied {
    /// One unit above the refused size, in each field.
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

    /// Half the way, in whole units, from the approved size to the refused one.
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

    /// Smallest size that respects the refusal: above the refused size and not above the approved
    /// one. If those are equal, that size.
    fn floor(&self, unit: Resources, step: ShrinkStep) -> Resources {
        let next = self.next_unit(unit);
        let floor = match (step, self.smallest) {
            (ShrinkStep::Unit, _) => next,
            (ShrinkStep::Whole, Some(smallest)) => whole_units(smallest, unit).field_max(next),
            (ShrinkStep::Whole, None) => self.half_way(unit).field_max(next),
        };
        self.current.field_min(floor)
    }

    /// Units that the VM keeps because of the refusal.
    fn kept_units(&self, unit: Resources, step: ShrinkStep) -> u32 {
        match step {
            ShrinkStep::Unit => units_above(self.requested, unit, Fields::Both),
            ShrinkStep::Whole => units_covering(self.floor(unit, step), unit),
        }
    }
}

/// The stabilized goal, raised by the monitor's request and refusal.
struct Raised {
    size: Resources,
    reason: Reason,
    is_upscale: bool,
    is_denied: bool,
}

/// Raises the goal to the monitor's upscale request and refusal. Each is compared with the
/// stabilized goal, not with the other: both can change the size at once.
fn raise_for_monitor(inputs: &Inputs<'_>, target: &Target, stabilized: &Stabilized) -> Raised {
    let mut raised = Raised {
        size: stabilized.size,
        reason: target.reason,
        is_upscale: false,
        is_denied: false,
    };
    if let Some(units) = inputs.requested_units {
        let requested = inputs.unit.saturating_mul(units);
        if requested.has_field_above(stabilized.size) {
            raised.size = raised.size.field_max(requested);
            raised.reason = Reason::RequestedUpscale;
            raised.is_upscale = true;
        }
    }
    if let Some(denied) = inputs.denied {
        let units = denied.kept_units(inputs.unit, inputs.scaling.shrink_step);
        let kept = inputs.unit.saturating_mul(units);
        if kept.has_field_above(stabilized.size) {
            raised.is_denied = true;
            if kept.has_field_above(raised.size) {
                raised.size = raised.size.field_max(kept);
                raised.reason = Reason::DeniedDownscale;
            }
        }
    }
    raised
}

/// Units in use while tasks wait for memory longer than the settings allow. Not a whole number if
/// the size in use is none.
fn pressure_vote(inputs: &Inputs<'_>) -> Option<f64> {
    let most = inputs.scaling.memory_pressure_hold_percent;
    let share = inputs.system?.signals.pressure_percent?;
    (most > 0.0 && share > most).then(|| units_in(inputs.using, inputs.unit))
}

/// Reason that forbids a shrink now, if there is one. Missing metrics come before memory pressure.
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

/// Computes the desired size. The result depends on `inputs` only.
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

    let advised = inputs.advised.filter(|_| has_all_metrics);
    let target = target((inputs.unit, inputs.using), advised.as_ref(), &goal);
    goal.votes.policy = target.vote;
    if let Some(warning) = advised.and_then(|advised| advised.warning) {
        warnings.insert(warning);
    }
    let stabilized = stabilize(inputs, &goal, &target);
    let Raised {
        mut size,
        mut reason,
        is_upscale,
        is_denied,
    } = raise_for_monitor(inputs, &target, &stabilized);
    if let Some(why) = held_by(inputs, &goal, has_all_metrics)
        && inputs.using.has_field_above(size)
    {
        size = size.field_max(inputs.using);
        reason = why;
    }
    let mut bounded_by = stabilized.by;
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
        advised,
        reason,
        bounded_by,
        warnings,
        has_all_metrics,
        stabilized_until: stabilized.until,
        is_below: stabilized.is_below && has_all_metrics,
        is_upscale_affected: is_upscale,
        is_denied_affected,
        is_out_of_bounds,
    }
}
