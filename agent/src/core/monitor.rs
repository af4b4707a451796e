//! The monitor's side of the state machine: one request at a time over both directions. Source:
//! docs/compatibility/agent.md §3.5-3.7.
//!
//! The monitor learns of less first and of more last. A shrink is asked whole or one compute unit
//! at a time ([`ShrinkStep`]); a growth is told in full.
//!
//! A call whose answer is lost may have been acted on or not, so what the monitor holds is kept as
//! a range: `low ≤ true ≤ high`. The VM never shrinks below `high`; the monitor is told again while
//! `low` is behind.

use protocol::mode::Mode;
use protocol::monitor_v2::AskReason;
use protocol::revision::Revision;
use protocol::time::{Span, Timestamp};
use protocol::units::{Bytes, Resources};
use serde::Serialize;

use super::actions::{MonitorDownscale, MonitorUpscale, RequestId};
use super::config::{ShrinkStep, Timers};
use super::desired::{Denied, Desired, units_above};
use super::machine::Refusal;
use super::revision::StampedRevision;
use super::round::{Round, clamp};
use super::warnings::{Fault, Warning};

/// Direction of a monitor request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Upscale,
    Downscale,
}

/// The request under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ongoing {
    pub id: RequestId,
    pub kind: Kind,
    pub resources: Resources,
    pub revision: StampedRevision,
}

/// What a monitor says with its wish to grow. In version 1 of the link it says nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Wish {
    /// Rule by which the monitor asks; `None` when it gives no reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<AskReason>,
    /// The memory that would do, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted: Option<Bytes>,
}

/// The monitor's newest wish. It is always taken as memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestedUpscale {
    pub at: Timestamp,
    pub base: Resources,
    pub wish: Wish,
}

/// Shortest wait after a refusal, whatever the monitor says.
const LEAST_COOLDOWN: Span = Span::from_millis(100);

/// The newest refusal.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeniedDownscale {
    pub at: Timestamp,
    pub denied: Denied,
    /// Time until the monitor would accept what it refused, where it says so.
    pub again: Option<Span>,
}

impl DeniedDownscale {
    /// The end of the refusal: when the monitor said, and at the latest after the cooldown.
    fn end(&self, timers: &Timers) -> Timestamp {
        let cooldown = timers.monitor_denied_downscale_cooldown;
        let said = self.again.map(|again| again.max(LEAST_COOLDOWN));
        self.at + said.map_or(cooldown, |said| said.min(cooldown))
    }
}

/// What the monitor last agreed to; a range while an answer is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Approved {
    pub low: Resources,
    pub high: Resources,
}

/// The fewest units that have this much memory.
fn units_covering(memory: Bytes, unit: Resources) -> u32 {
    let units = memory.0.div_ceil(unit.mem.0.max(1));
    u32::try_from(units).unwrap_or(u32::MAX)
}

/// What is known of the monitor. `approved` is present while a connection is active.
#[derive(Debug, Clone, Default)]
pub(super) struct MonitorState {
    pub ongoing: Option<Ongoing>,
    pub requested_upscale: Option<RequestedUpscale>,
    pub denied_downscale: Option<DeniedDownscale>,
    pub approved: Option<Approved>,
    /// It may count on more than there is or will be: it is told the size once that is certain.
    pub is_in_doubt: bool,
    pub downscale_failure_at: Option<Timestamp>,
    pub upscale_failure_at: Option<Timestamp>,
    pub current_revision: Revision,
}

impl MonitorState {
    /// The connection is up; the monitor counts on some size in the range, or `in_doubt` on what
    /// its machine has left.
    pub(super) fn activate(&mut self, counts_on: Approved, in_doubt: bool) {
        *self = Self {
            approved: Some(counts_on),
            is_in_doubt: in_doubt,
            ..Self::default()
        };
    }

    /// The VM has at most `held`. A monitor that was told of more, before somebody else took it
    /// back, is told anew.
    pub(super) fn limit(&mut self, held: Resources) {
        if let Some(approved) = &mut self.approved {
            self.is_in_doubt |= approved.high.has_field_above(held);
            approved.high = approved.high.field_min(held);
            approved.low = approved.low.field_min(held);
        }
    }

    /// The least the VM may be left with, counting a growth it may already have been told of.
    pub(super) fn least_approved(&self) -> Option<Resources> {
        let high = self.approved?.high;
        Some(match self.ongoing {
            Some(Ongoing {
                kind: Kind::Upscale,
                resources,
                ..
            }) => high.field_max(resources),
            _ => high,
        })
    }

    /// When the wish ends, while it is in force.
    pub(super) fn wish_end(&self, now: Timestamp, timers: &Timers) -> Option<Timestamp> {
        self.requested_upscale
            .map(|wish| wish.at + timers.monitor_requested_upscale_valid_period)
            .filter(|end| now < *end)
    }

    /// Compute units the wish asks for, while it is in force.
    pub(super) fn wish_units(
        &self,
        now: Timestamp,
        timers: &Timers,
        unit: Resources,
    ) -> Option<u32> {
        self.wish_end(now, timers)?;
        self.requested_upscale.map(|requested| {
            // One unit more is what every wish asks for; a size that would do may be further away.
            let next = units_above(requested.base, unit, false, true);
            let wanted = requested.wish.wanted;
            next.max(wanted.map_or(0, |wanted| units_covering(wanted, unit)))
        })
    }

    /// When the refusal ends, while it is in force.
    pub(super) fn denial_end(&self, now: Timestamp, timers: &Timers) -> Option<Timestamp> {
        self.denied_downscale
            .map(|denial| denial.end(timers))
            .filter(|end| now < *end)
    }

    /// The refusal, while it is in force.
    pub(super) fn denial(&self, now: Timestamp, timers: &Timers) -> Option<Denied> {
        self.denial_end(now, timers)?;
        self.denied_downscale.map(|denial| denial.denied)
    }

    /// Plans to tell of a growth, or of a size in doubt. `certain` is the smallest size the VM may
    /// have by now, `is_certain` whether it is the only one.
    pub(super) fn plan_upscale(
        &self,
        round: &mut Round<'_>,
        certain: Resources,
        is_certain: bool,
        revision: Revision,
    ) -> Option<MonitorUpscale> {
        let current = self.approved?.low;
        let high = round.desired.field_max(current);
        let target = clamp(current, certain, Some(current), Some(high));
        let (target, must_tell) = if self.is_in_doubt && is_certain {
            (certain, true)
        } else {
            (target, false)
        };
        if target == current && !must_tell {
            return None;
        }
        if let Some(ongoing) = self.ongoing {
            if ongoing.kind != Kind::Upscale || ongoing.resources != target {
                round.warn(Warning::MonitorUpscaleBusy);
            }
            return None;
        }
        if let Some(failure) = self.upscale_failure_at
            && round.must_wait_until(
                failure + round.timers.monitor_retry_wait,
                Warning::MonitorUpscaleFailed,
            )
        {
            return None;
        }
        Some(MonitorUpscale {
            current,
            target,
            revision,
        })
    }

    /// Plans to ask for a shrink. `certain` is the smallest size the VM may have by now.
    pub(super) fn plan_downscale(
        &self,
        round: &mut Round<'_>,
        certain: Resources,
        is_upscale_planned: bool,
        revision: Revision,
    ) -> Option<MonitorDownscale> {
        let Some(approved) = self.approved else {
            if round.desired.has_field_below(round.using) {
                round.warn(Warning::MonitorDownscaleInactive);
            }
            return None;
        };
        let current = approved.high;
        let lowest = self.lowest_to_ask(current, round);
        let target = current.field_min(round.desired).field_max(lowest);
        // Of what is only observed, a patch of before may still be under way, so that the monitor
        // counts on more than is gone for.
        if target == current || round.is_migrating || round.mode == Mode::Observe {
            return None;
        }
        // While a growth is under way the monitor may count on more than there is yet; asking now
        // would promise it that.
        if target.has_field_above(certain) {
            round.warn(Warning::MonitorDownscaleBusy);
            return None;
        }
        if is_upscale_planned {
            round.warn(Warning::MonitorDownscalePlannedUp);
            return None;
        }
        if let Some(ongoing) = self.ongoing {
            if ongoing.kind != Kind::Downscale || ongoing.resources != target {
                round.warn(Warning::MonitorDownscaleBusy);
            }
            return None;
        }
        if let Some(failure) = self.downscale_failure_at
            && round.must_wait_until(
                failure + round.timers.monitor_retry_wait,
                Warning::MonitorDownscaleFailed,
            )
        {
            return None;
        }
        let denied = self.denial(round.now, round.timers);
        if denied.is_some_and(|denied| !target.has_field_above(denied.requested)) {
            round.fault(Fault::DownscaleBelowDenied);
            return None;
        }
        Some(MonitorDownscale {
            current,
            target,
            revision,
        })
    }

    /// How far down one request may go: one unit, or to what was refused last, so that a monitor
    /// that refuses it again is not asked for more, and one that agrees is asked for the rest next.
    fn lowest_to_ask(&self, current: Resources, round: &Round<'_>) -> Resources {
        if round.shrink_step == ShrinkStep::Unit {
            return current.saturating_sub(round.unit);
        }
        let refused = self.denied_downscale.map(|denial| denial.denied.requested);
        refused
            .filter(|refused| refused.has_field_below(current))
            .map_or(Resources::default(), |refused| refused.field_min(current))
    }

    /// Looks again when a wish or a refusal ends that makes a difference now.
    pub(super) fn wait_for_ends(
        &self,
        round: &mut Round<'_>,
        desired: &Desired,
        is_downscale_planned: bool,
    ) {
        if desired.is_upscale_affected
            && let Some(end) = self.wish_end(round.now, round.timers)
        {
            round.wait_at_most(end.since(round.now));
        }
        if desired.is_denied_affected
            && !is_downscale_planned
            && self.ongoing.is_none()
            && let Some(end) = self.denial_end(round.now, round.timers)
        {
            round.wait_at_most(end.since(round.now));
        }
    }

    pub(super) fn start(
        &mut self,
        now: Timestamp,
        id: RequestId,
        kind: Kind,
        resources: Resources,
        revision: Revision,
    ) {
        match kind {
            Kind::Upscale => self.upscale_failure_at = None,
            Kind::Downscale => self.downscale_failure_at = None,
        }
        let revision = StampedRevision { revision, at: now };
        self.ongoing = Some(Ongoing {
            id,
            kind,
            resources,
            revision,
        });
    }

    /// The monitor confirmed a growth or agreed to a shrink: from now on it counts on what it was
    /// told.
    pub(super) fn agree(&mut self) {
        if let Some(ongoing) = self.ongoing.take()
            && let Some(approved) = &mut self.approved
        {
            *approved = Approved {
                low: ongoing.resources,
                high: ongoing.resources,
            };
            self.is_in_doubt = false;
        }
    }

    /// The monitor refused a shrink.
    pub(super) fn deny(&mut self, now: Timestamp, refusal: Refusal) {
        if let (Some(ongoing), Some(approved)) = (self.ongoing.take(), self.approved) {
            let denied = Denied {
                current: approved.high,
                requested: ongoing.resources,
                smallest: refusal.smallest,
            };
            self.denied_downscale = Some(DeniedDownscale {
                at: now,
                denied,
                again: refusal.again,
            });
        }
    }

    /// The call failed. With `may_have_arrived` the monitor may have acted on it.
    pub(super) fn fail(&mut self, now: Timestamp, may_have_arrived: bool) {
        let Some(ongoing) = self.ongoing.take() else {
            return;
        };
        match ongoing.kind {
            Kind::Upscale => self.upscale_failure_at = Some(now),
            Kind::Downscale => self.downscale_failure_at = Some(now),
        }
        if may_have_arrived && let Some(approved) = &mut self.approved {
            match ongoing.kind {
                Kind::Upscale => approved.high = approved.high.field_max(ongoing.resources),
                Kind::Downscale => approved.low = approved.low.field_min(ongoing.resources),
            }
        }
    }
}
