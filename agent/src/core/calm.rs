//! Calm: what keeps a VM whose load goes up and down from following every turn. All of it is
//! optional and off by default; what it did is in the decision as a [`Bound`].
//!
//! | setting | effect |
//! |---|---|
//! | `downscaleMarginUnits` | a size is left only for one with that much room above every vote: a dead band |
//! | `downscaleHoldSeconds` | a size is left only when the goal has been below it for so long, with fresh metrics |
//! | `downscaleCooldownSeconds` | after a growth nothing shrinks for so long |
//! | `upscaleCooldownSeconds` | after a shrink the load alone makes nothing grow for so long |
//!
//! It is applied to the goal, before wishes, refusals and bounds: those win over it. What memory
//! asks for is never delayed.

use protocol::time::{Span, Timestamp};
use protocol::units::Resources;

use super::decision::{Bound, Bounds};
use super::goal::Goal;
use super::scaling::ScalingConfig;

/// What calm remembers of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Calm {
    /// When it last grew.
    pub grown_at: Option<Timestamp>,
    /// When it last shrank.
    pub shrunk_at: Option<Timestamp>,
    /// Since when the goal has been below its size; kept only while that is to be held.
    pub below_since: Option<Timestamp>,
}

impl Calm {
    /// A patch changed the size.
    pub(super) fn resized(&mut self, now: Timestamp, from: Resources, to: Resources) {
        if to.has_field_above(from) {
            self.grown_at = Some(now);
        }
        if to.has_field_below(from) {
            self.shrunk_at = Some(now);
        }
    }

    /// Whether the goal is below the size now.
    pub(super) fn is_below(&mut self, now: Timestamp, is_below: bool) {
        self.below_since = is_below.then(|| self.below_since.unwrap_or(now));
    }
}

/// A goal calmed down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Calmed {
    /// The size to go on with.
    pub size: Resources,
    /// What made it another one than the goal.
    pub by: Bounds,
    /// When the last of that ends, for what ends by time.
    pub until: Option<Timestamp>,
    /// The goal is below the size in use, and for how long it has been so matters.
    pub is_below: bool,
}

/// Calms the goal of a VM that uses `using`.
pub(super) fn calmed(
    scaling: &ScalingConfig,
    unit: Resources,
    using: Resources,
    goal: &Goal,
    calm: Calm,
    now: Timestamp,
) -> Calmed {
    let mut calmed = Calmed {
        size: unit.saturating_mul(goal.units),
        by: Bounds::default(),
        until: None,
        is_below: false,
    };
    let cooldown = end(calm.shrunk_at, scaling.upscale_cooldown_seconds, now);
    if cooldown.is_some() && calmed.size.has_field_above(using) {
        let at_once = unit.saturating_mul(goal.units_without_cpu());
        let held = calmed.size.field_min(using).field_max(at_once);
        calmed.hold(held, Bound::UpscaleCooldown, cooldown);
    }
    if scaling.downscale_margin_units > 0.0 && calmed.size.has_field_below(using) {
        let roomy = unit.saturating_mul(goal.units_with(scaling.downscale_margin_units));
        let held = calmed.size.field_max(roomy.field_min(using));
        calmed.hold(held, Bound::DownscaleMargin, None);
    }
    if calmed.size.has_field_below(using) {
        calmed.is_below = scaling.downscale_hold_seconds > 0;
        let below_since = Some(calm.below_since.unwrap_or(now));
        let held = calmed.size.field_max(using);
        for (since, seconds, bound) in [
            (
                below_since,
                scaling.downscale_hold_seconds,
                Bound::DownscaleHold,
            ),
            (
                calm.grown_at,
                scaling.downscale_cooldown_seconds,
                Bound::DownscaleCooldown,
            ),
        ] {
            let end = end(since, seconds, now);
            // Both may hold at once: then both are the reason.
            if end.is_some() {
                calmed.size = held;
                calmed.by.insert(bound);
                calmed.until = calmed.until.max(end);
            }
        }
    }
    calmed
}

impl Calmed {
    fn hold(&mut self, size: Resources, bound: Bound, until: Option<Timestamp>) {
        if size != self.size {
            self.by.insert(bound);
            self.until = self.until.max(until);
        }
        self.size = size;
    }
}

/// When a wait that began at `since` ends, if that is still to come.
fn end(since: Option<Timestamp>, seconds: u32, now: Timestamp) -> Option<Timestamp> {
    since
        .map(|since| since + Span::from_secs(seconds.into()))
        .filter(|end| seconds > 0 && *end > now)
}
