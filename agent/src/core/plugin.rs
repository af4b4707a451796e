//! The scheduler's side of the state machine: one permit request at a time. Source:
//! docs/compatibility/agent.md §3.3.
//!
//! Increases are asked before they are used; decreases are told after they happened; a heartbeat
//! repeats what is in use. The first request ever carries no permit and exactly what is in use.
//!
//! A request whose answer is lost may have been granted or not. For an increase the old permit is
//! simply kept. For a decrease the scheduler may already have given the rest away, so the permit is
//! taken to be the lower of both, and the request is made again until one answer arrives.

use protocol::permit::{PluginResponse, RequestMetrics};
use protocol::revision::Revision;
use protocol::time::Timestamp;
use protocol::units::{Bytes, Resources};
use serde::Serialize;

use super::actions::{PluginRequest, RequestId};
use super::revision::StampedRevision;
use super::round::{Round, clamp, whole_slots};
use super::warnings::Warning;

/// The newest request, finished or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct LastRequest {
    pub at: Timestamp,
    pub resources: Resources,
    pub revision: StampedRevision,
}

/// What is known of the scheduler.
#[derive(Debug, Clone, Default)]
pub(super) struct PluginState {
    pub ongoing: Option<RequestId>,
    pub last_request: Option<LastRequest>,
    pub last_failure_at: Option<Timestamp>,
    pub permit: Option<Resources>,
    pub current_revision: Revision,
    /// The newest request got no usable answer: ask again soon, not only at the next heartbeat.
    pub is_unanswered: bool,
    /// A permit announced a migration.
    pub migrating_since: Option<Timestamp>,
}

/// A permit that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InvalidPermit;

impl PluginState {
    /// Plans the request of this round. `held` is the largest size the VM may have by now.
    pub(super) fn plan(
        &self,
        round: &mut Round<'_>,
        held: Resources,
        metrics: Option<RequestMetrics>,
        revision: Revision,
    ) -> Option<PluginRequest> {
        let want = wanted(round, held);
        let tick_end = self
            .last_request
            .map(|last| last.at + round.timers.plugin_request_tick);
        let is_refused = self.ongoing.is_none()
            && matches!((self.last_request, self.permit),
                (Some(last), Some(permit)) if last.resources.has_field_above(permit));
        let backoff_end = self
            .last_request
            .filter(|_| is_refused)
            .map(|last| last.at + round.timers.plugin_denied_retry_wait)
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
                round.warn(Warning::PluginOngoing);
            }
            return None;
        }
        if let Some(failure) = self.last_failure_at
            && round.must_wait_until(
                failure + round.timers.plugin_retry_wait,
                Warning::PluginFailed,
            )
        {
            return None;
        }
        let is_due = tick_end.is_none_or(|end| end <= round.now);
        if is_due || is_new {
            return Some(PluginRequest {
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
                round.warn(Warning::PluginDenied);
            }
        }
        None
    }

    pub(super) fn start(&mut self, now: Timestamp, id: RequestId, request: &PluginRequest) {
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

    /// The request failed. With `may_have_arrived` the scheduler may have acted on it.
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

    /// The request was answered. `held` is the largest size the VM may have by now.
    pub(super) fn succeed(
        &mut self,
        now: Timestamp,
        response: &PluginResponse,
        held: Resources,
        migration_hold: protocol::time::Span,
    ) -> Result<Option<(protocol::time::Span, u64)>, InvalidPermit> {
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

/// The increase to ask for, or what is held.
fn wanted(round: &Round<'_>, held: Resources) -> Resources {
    let want = clamp(round.using, round.desired, Some(round.using), None);
    // Memory moves in slots: asking for part of one would be asked again after every heartbeat.
    let mem: Bytes = whole_slots(round.using.mem, want.mem, round.slot);
    Resources { cpu: want.cpu, mem }.field_max(held)
}
