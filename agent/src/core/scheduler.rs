//! The scheduler's side of the state machine: one permit request at a time. Source:
//! docs/compatibility/agent.md §3.3.
//!
//! A request asks for an increase before its use, reports a decrease after the patch, or repeats
//! the size in use as a heartbeat. The first request carries no permit and exactly the size in use.
//!
//! A request whose response is lost may have been granted. For an increase the core keeps the old
//! permit. For a decrease the scheduler may already have granted the rest to another VM, so the
//! core assumes the lower of both permits. It repeats the request until a response arrives.

use protocol::permit::{PluginResponse, RequestMetrics};
use protocol::revision::Revision;
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;

use super::actions::{PermitRequest, RequestId};
use super::revision::StampedRevision;
use super::round::{Round, clamp, whole_slots};
use super::warnings::Warning;

/// The newest request, in flight or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LastRequest {
    pub at: Timestamp,
    pub resources: Resources,
    pub revision: StampedRevision,
}

/// Permit and permit requests of the VM.
#[derive(Debug, Clone, Default)]
pub(super) struct SchedulerState {
    pub ongoing: Option<RequestId>,
    pub last_request: Option<LastRequest>,
    pub last_failure_at: Option<Timestamp>,
    pub permit: Option<Resources>,
    pub current_revision: Revision,
    /// The newest request got no usable response and is due again before the next heartbeat.
    pub is_unanswered: bool,
    /// When a permit first announced a migration that still holds the size.
    pub migrating_since: Option<Timestamp>,
}

/// The response violates a rule: zero, above the request, or below the size in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InvalidPermit;

impl SchedulerState {
    /// Plans the request of this round. `held` is the largest size that the VM may have now.
    pub(super) fn plan(
        &self,
        round: &mut Round<'_>,
        held: Resources,
        metrics: Option<RequestMetrics>,
        revision: Revision,
    ) -> Option<PermitRequest> {
        let want = wanted(round, held);
        let tick_end = self
            .last_request
            .map(|last| last.at + round.timers.permit_request_tick);
        let is_refused = self.ongoing.is_none()
            && matches!((self.last_request, self.permit),
                (Some(last), Some(permit)) if last.resources.has_field_above(permit));
        let backoff_end = self
            .last_request
            .filter(|_| is_refused)
            .map(|last| last.at + round.timers.permit_denied_retry_wait)
            .filter(|end| *end > round.now);
        let wants_other =
            self.last_request.is_some() && self.permit.is_some_and(|permit| permit != want);
        let is_new = (wants_other || self.is_unanswered) && backoff_end.is_none();
        let target = if is_new && self.permit.is_some() {
            want
        } else {
            held
        };

        if self.ongoing.is_some() {
            if self
                .last_request
                .is_some_and(|last| last.resources != target)
            {
                round.warn(Warning::PermitOngoing);
            }
            return None;
        }
        if let Some(failure) = self.last_failure_at
            && round.must_wait_until(
                failure + round.timers.permit_retry_wait,
                Warning::PermitFailed,
            )
        {
            return None;
        }
        let is_due = tick_end.is_none_or(|end| end <= round.now);
        if is_due || is_new {
            return Some(PermitRequest {
                last_permit: self.permit,
                target,
                metrics,
                revision,
            });
        }
        if let Some(end) = tick_end {
            round.wait_at_most(end.since(round.now));
        }
        if let Some(end) = backoff_end {
            round.wait_at_most(end.since(round.now));
            if wants_other {
                round.warn(Warning::PermitDenied);
            }
        }
        None
    }

    pub(super) fn start(&mut self, now: Timestamp, id: RequestId, request: &PermitRequest) {
        self.ongoing = Some(id);
        let revision = StampedRevision {
            revision: request.revision,
            at: now,
        };
        self.last_request = Some(LastRequest {
            at: now,
            resources: request.target,
            revision,
        });
    }

    /// Ends the request without a permit. With `may_have_arrived` the scheduler may have acted.
    pub(super) fn fail(&mut self, now: Timestamp, may_have_arrived: bool) {
        self.ongoing = None;
        self.last_failure_at = Some(now);
        let Some(last) = self.last_request else {
            return;
        };
        match self.permit {
            Some(permit) if may_have_arrived => {
                self.is_unanswered |= permit != last.resources;
                self.permit = Some(permit.field_min(last.resources));
            }
            Some(permit) => self.is_unanswered |= permit != last.resources,
            None => self.is_unanswered = true,
        }
    }

    /// Ends the request with a response. `held` is the largest size that the VM may have now.
    pub(super) fn succeed(
        &mut self,
        now: Timestamp,
        response: &PluginResponse,
        held: Resources,
        migration_hold: Span,
    ) -> Result<Option<(Span, u64)>, InvalidPermit> {
        let Some(last) = self.last_request else {
            return Err(InvalidPermit);
        };
        let permit = response.permit;
        if permit.zero_field().is_some()
            || permit.has_field_above(last.resources)
            || permit.has_field_below(held)
        {
            self.fail(now, true);
            return Err(InvalidPermit);
        }
        self.ongoing = None;
        self.is_unanswered = false;
        self.permit = Some(permit);
        match (response.migrate, self.migrating_since) {
            (Some(_), None) => self.migrating_since = Some(now),
            (None, Some(since)) if last.at >= since + migration_hold => self.migrating_since = None,
            _ => {}
        }
        Ok(last.revision.propagate(now, &mut self.current_revision))
    }
}

/// The increase to request, or `held`.
fn wanted(round: &Round<'_>, held: Resources) -> Resources {
    let want = clamp(round.using, round.desired, Some(round.using), None);
    // Memory changes in slots. A request for part of a slot would be repeated at every heartbeat.
    let mem = whole_slots(round.using.mem, want.mem, round.slot);
    Resources { cpu: want.cpu, mem }.field_max(held)
}
