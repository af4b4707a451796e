//! The monitor's side of the state machine: one request at a time over both directions. Source:
//! docs/compatibility/agent.md §3.5-3.7.
//!
//! The monitor approves a shrink first and is notified of a growth last. A downscale request goes
//! the whole way or one compute unit ([`ShrinkStep`]). A notification names the whole growth.
//!
//! The monitor may have acted on a request whose response is lost. The approved size is therefore a
//! range: `low ≤ true ≤ high`. The VM never shrinks below `high`. The core repeats notifications
//! while `low` is below the size in use.

use protocol::mode::Mode;
use protocol::revision::Revision;
use protocol::time::{Span, Timestamp};
use protocol::units::{Bytes, Resources};

use super::actions::{MonitorDownscale, MonitorUpscale, RequestId};
use super::config::{ShrinkStep, Timers};
use super::desired::{Denied, Desired, Fields, units_above};
use super::event::{Refusal, UpscaleRequest};
use super::revision::StampedRevision;
use super::round::{Round, clamp};
use super::warnings::{Fault, Warning};

/// Direction of a monitor request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Upscale,
    Downscale,
}

/// The request in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ongoing {
    pub id: RequestId,
    pub kind: Kind,
    pub resources: Resources,
    pub revision: StampedRevision,
}

/// The monitor's newest upscale request. It always counts as a request for memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestedUpscale {
    pub at: Timestamp,
    pub base: Resources,
    pub request: UpscaleRequest,
}

/// Lower bound of the wait after a refusal, whatever time the monitor names.
const LEAST_COOLDOWN: Span = Span::from_millis(100);

/// The newest refusal.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeniedDownscale {
    pub at: Timestamp,
    pub denied: Denied,
    /// Time until the monitor would approve the refused size, if it names one.
    pub again: Option<Span>,
}

impl DeniedDownscale {
    /// End of the refusal: the time that the monitor named, bounded by the cooldown.
    fn end(&self, timers: &Timers) -> Timestamp {
        let cooldown = timers.monitor_denied_downscale_cooldown;
        let named = self.again.map(|again| again.max(LEAST_COOLDOWN));
        self.at + named.map_or(cooldown, |named| named.min(cooldown))
    }
}

/// Size that the monitor counts on; `low < high` after a lost response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Approved {
    pub low: Resources,
    pub high: Resources,
}

/// Smallest number of units with at least `memory`.
fn units_covering(memory: Bytes, unit: Resources) -> u32 {
    let units = memory.0.div_ceil(unit.mem.0.max(1));
    u32::try_from(units).unwrap_or(u32::MAX)
}

/// State of the monitor and of requests to it. `approved` is present while the link is up.
#[derive(Debug, Clone, Default)]
pub(super) struct MonitorState {
    pub ongoing: Option<Ongoing>,
    pub requested_upscale: Option<RequestedUpscale>,
    pub denied_downscale: Option<DeniedDownscale>,
    pub approved: Option<Approved>,
    /// The monitor may count on more than the VM has. It is notified as soon as the size is
    /// certain.
    pub is_in_doubt: bool,
    pub downscale_failure_at: Option<Timestamp>,
    pub upscale_failure_at: Option<Timestamp>,
    pub current_revision: Revision,
}

impl MonitorState {
    /// Starts a connection. The monitor counts on a size in the range. With `in_doubt` it may count
    /// on an older size of its guest instead.
    pub(super) fn activate(&mut self, counts_on: Approved, in_doubt: bool) {
        *self = Self {
            approved: Some(counts_on),
            is_in_doubt: in_doubt,
            ..Self::default()
        };
    }

    /// Limits the approved size to `held`, the largest size that the VM may have. A monitor that
    /// counts on more is notified again.
    pub(super) fn limit(&mut self, held: Resources) {
        if let Some(approved) = &mut self.approved {
            self.is_in_doubt |= approved.high.has_field_above(held);
            approved.high = approved.high.field_min(held);
            approved.low = approved.low.field_min(held);
        }
    }

    /// Lower bound of the VM's size: the approved one, or the size in a notification in flight.
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

    /// When the upscale request ends, while it is in force.
    pub(super) fn upscale_request_end(&self, now: Timestamp, timers: &Timers) -> Option<Timestamp> {
        self.requested_upscale
            .map(|requested| requested.at + timers.monitor_requested_upscale_valid_period)
            .filter(|end| now < *end)
    }

    /// Size of the upscale request in compute units, while it is in force.
    pub(super) fn requested_units(
        &self,
        now: Timestamp,
        timers: &Timers,
        unit: Resources,
    ) -> Option<u32> {
        self.upscale_request_end(now, timers)?;
        self.requested_upscale.map(|requested| {
            // Every request counts as one unit more at least.
            let next = units_above(requested.base, unit, Fields::Memory);
            let wanted = requested.request.wanted;
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

    /// Plans the notification of a growth, or of the true size to a monitor in doubt. `certain` is
    /// the smallest size that the VM may have now; `is_certain` = it has exactly that size.
    pub(super) fn plan_upscale(
        &self,
        round: &mut Round<'_>,
        certain: Resources,
        is_certain: bool,
        revision: Revision,
    ) -> Option<MonitorUpscale> {
        let current = self.approved?.low;
        let high = round.desired.field_max(current);
        let must_notify = self.is_in_doubt && is_certain;
        let target = if must_notify {
            certain
        } else {
            clamp(current, certain, Some(current), Some(high))
        };
        if target == current && !must_notify {
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

    /// Plans a downscale request. `certain` is the smallest size that the VM may have now.
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
        let lowest = self.lowest_to_request(current, round);
        let target = current.field_min(round.desired).field_max(lowest);
        // In observe mode an earlier patch may still be in flight. The monitor then counts on more
        // than the core would patch.
        if target == current || round.is_migrating || round.mode == Mode::Observe {
            return None;
        }
        // The size is above the smallest that the VM may have. An approval would promise the
        // monitor that much before a growth has arrived.
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

    /// Lowest size of one request: one unit less, or the size that was refused last. A monitor that
    /// refuses that size again gets no larger request. One that approves it gets the rest next.
    fn lowest_to_request(&self, current: Resources, round: &Round<'_>) -> Resources {
        if round.shrink_step == ShrinkStep::Unit {
            return current.saturating_sub(round.unit);
        }
        let refused = self.denied_downscale.map(|denial| denial.denied.requested);
        refused
            .filter(|refused| refused.has_field_below(current))
            .map_or(Resources::default(), |refused| refused.field_min(current))
    }

    /// Sets a deadline at the end of an upscale request or a refusal that changes the size now.
    pub(super) fn wait_for_ends(
        &self,
        round: &mut Round<'_>,
        desired: &Desired,
        is_downscale_planned: bool,
    ) {
        if desired.is_upscale_affected
            && let Some(end) = self.upscale_request_end(round.now, round.timers)
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

    /// Ends the request with success: the monitor counts on the requested size from now on.
    pub(super) fn succeed(&mut self) {
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

    /// Ends a downscale request with a refusal.
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

    /// Ends the request without success. With `may_have_arrived` the monitor may have acted on it.
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
