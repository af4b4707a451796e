//! Stabilization: keeps a VM with a varying load from following every change. All settings are off
//! by default. The decision names each one that held the size as a [`Bound`].
//!
//! | setting | effect |
//! |---|---|
//! | `downscaleMarginUnits` | shrinks only to a size with that margin above every vote: a dead band |
//! | `downscaleHoldSeconds` | shrinks only after the goal was below the size for that time |
//! | `downscaleCooldownSeconds` | shrinks only that time after a growth |
//! | `upscaleCooldownSeconds` | grows by load alone only that time after a shrink |
//!
//! It applies to the goal, or to the advice of a policy in its place. The rate of a policy's
//! shrinks applies to the result. Upscale requests, refusals and bounds come later and win. It
//! never delays a growth that memory asks for.

use protocol::time::{Span, Timestamp};
use protocol::units::Resources;

use super::advice::Target;
use super::decision::{Bound, Bounds};
use super::desired::Inputs;
use super::goal::Goal;
use super::units::plus_units;

/// Times of a VM's last changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stabilization {
    /// When a patch last grew the VM.
    pub grown_at: Option<Timestamp>,
    /// When a patch last shrank the VM.
    pub shrunk_at: Option<Timestamp>,
    /// Since when the goal is below the size; kept only while a hold is configured.
    pub below_since: Option<Timestamp>,
}

impl Stabilization {
    /// Takes a change of size by a patch.
    pub(super) fn resized(&mut self, now: Timestamp, from: Resources, to: Resources) {
        if to.has_field_above(from) {
            self.grown_at = Some(now);
        }
        if to.has_field_below(from) {
            self.shrunk_at = Some(now);
        }
    }

    /// Takes whether the goal is below the size now.
    pub(super) fn set_below(&mut self, now: Timestamp, is_below: bool) {
        self.below_since = is_below.then(|| self.below_since.unwrap_or(now));
    }
}

/// The goal after stabilization.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Stabilized {
    pub size: Resources,
    /// Settings that made `size` differ from the goal.
    pub by: Bounds,
    /// When the last hold or cooldown ends; `None` without one.
    pub until: Option<Timestamp>,
    /// The goal is below the size in use, and a hold is configured.
    pub is_below: bool,
}

/// Applies the settings to the target of a VM. `goal` is the built-in goal: its memory votes are
/// never delayed, and its margin is that of a policy too.
pub(super) fn stabilize(inputs: &Inputs<'_>, goal: &Goal, target: &Target) -> Stabilized {
    let Inputs {
        unit,
        using,
        scaling,
        now,
        stabilization: history,
        ..
    } = *inputs;
    let mut result = Stabilized {
        size: target.size,
        by: target.by,
        until: None,
        is_below: false,
    };
    let cooldown = end(history.shrunk_at, scaling.upscale_cooldown_seconds, now);
    if cooldown.is_some() && result.size.has_field_above(using) {
        let at_once = unit
            .saturating_mul(goal.units_without_cpu())
            .field_min(target.size);
        let held = result.size.field_min(using).field_max(at_once);
        result.hold(held, Bound::UpscaleCooldown, cooldown);
    }
    if scaling.downscale_margin_units > 0.0 && result.size.has_field_below(using) {
        let more = goal.units_with(scaling.downscale_margin_units);
        let roomy = plus_units(target.size, unit, more.saturating_sub(goal.units));
        let held = result.size.field_max(roomy.field_min(using));
        result.hold(held, Bound::DownscaleMargin, None);
    }
    if result.size.has_field_below(using) {
        result.is_below = scaling.downscale_hold_seconds > 0;
        let below_since = Some(history.below_since.unwrap_or(now));
        let held = result.size.field_max(using);
        for (since, seconds, bound) in [
            (
                below_since,
                scaling.downscale_hold_seconds,
                Bound::DownscaleHold,
            ),
            (
                history.grown_at,
                scaling.downscale_cooldown_seconds,
                Bound::DownscaleCooldown,
            ),
        ] {
            let end = end(since, seconds, now);
            // Both may hold at once. The decision then names both.
            if end.is_some() {
                result.size = held;
                result.by.insert(bound);
                result.until = result.until.max(end);
            }
        }
    }
    if let Some(allowance) = target.allowance {
        let floor = allowance.floor(using, unit);
        let held = result.size.field_max(floor);
        result.hold(held, Bound::DeclineRate, allowance.more_at);
    }
    result
}

impl Stabilized {
    fn hold(&mut self, size: Resources, bound: Bound, until: Option<Timestamp>) {
        if size != self.size {
            self.by.insert(bound);
            self.until = self.until.max(until);
        }
        self.size = size;
    }
}

/// End of a wait that began at `since`, if it is after `now`.
fn end(since: Option<Timestamp>, seconds: u32, now: Timestamp) -> Option<Timestamp> {
    since
        .map(|since| since + Span::from_secs(seconds.into()))
        .filter(|end| seconds > 0 && *end > now)
}
