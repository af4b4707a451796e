//! The VM object's side of the state machine: one patch at a time. Source:
//! docs/compatibility/agent.md §3.4.
//!
//! A patch whose answer is lost may have been applied or not. Until a later patch succeeds the VM
//! is taken to have any size between both: towards the scheduler the larger, towards the monitor
//! the smaller; and the patch is made again even when the wanted size is the one believed to be
//! there.
//!
//! Others write the object too: a person, or a patch of an earlier agent that arrives after its
//! death. So a size seen in a state newer than the last one known puts the size in the same doubt,
//! and it is patched again.

use protocol::mode::Mode;
use protocol::revision::Revision;
use protocol::time::Timestamp;
use protocol::units::Resources;

use super::actions::{NeonVmRequest, RequestId};
use super::revision::StampedRevision;
use super::round::{Round, clamp, whole_slots};
use super::warnings::Warning;

/// What is known of the VM object.
#[derive(Debug, Clone, Default)]
pub(super) struct NeonVmState {
    pub ongoing: Option<(RequestId, Resources)>,
    pub request_failed_at: Option<Timestamp>,
    pub last_success: Option<Timestamp>,
    /// The smallest and the largest size the VM may have after answers were lost.
    pub uncertain: Option<(Resources, Resources)>,
    /// The VM had another size once: what reads its own machine may have read that, and who changed
    /// it may have died before telling.
    pub was_on_the_way: bool,
    /// The newest version of the object whose size is known or judged.
    pub version: Option<u64>,
    /// The newest state seen while a patch is under way: judged when that has ended.
    pub unjudged: Option<(u64, Resources)>,
    pub target_revision: StampedRevision,
    pub current_revision: Revision,
}

/// What the other peers allow and do in this round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The least the monitor may be left with.
    pub approved: Option<Resources>,
    /// The most the scheduler permits.
    pub permit: Option<Resources>,
    /// What a permit request, under way or planned, asks for.
    pub plugin_request: Option<Resources>,
    /// A permit request is under way.
    pub is_plugin_ongoing: bool,
}

impl NeonVmState {
    /// The largest size the VM may have.
    pub(super) fn held(&self, using: Resources) -> Resources {
        let ongoing = self
            .ongoing
            .map_or(using, |(_, size)| using.field_max(size));
        self.uncertain
            .map_or(ongoing, |(_, high)| ongoing.field_max(high))
    }

    /// The smallest size the VM may have.
    pub(super) fn certain(&self, using: Resources) -> Resources {
        let ongoing = self
            .ongoing
            .map_or(using, |(_, size)| using.field_min(size));
        self.uncertain
            .map_or(ongoing, |(low, _)| ongoing.field_min(low))
    }

    /// Nothing is under way and no answer is missing: the size believed is the size there is.
    pub(super) fn is_certain(&self) -> bool {
        self.ongoing.is_none() && self.uncertain.is_none()
    }

    /// Whether a state of the object is newer than the last one known.
    pub(super) fn is_news(&self, version: u64) -> bool {
        self.version.is_none_or(|known| version > known)
    }

    /// A state of the object was seen. What is older than the last one known says nothing new.
    pub(super) fn saw(&mut self, version: u64, size: Resources, using: Resources) {
        if !self.is_news(version) {
            return;
        }
        if self.ongoing.is_some() {
            self.unjudged = Some((version, size));
            return;
        }
        self.version = Some(version);
        self.doubt(size, using);
    }

    /// A patch ended, at `version` of the object if that is known: now what was seen meanwhile is
    /// judged.
    pub(super) fn ended_at(&mut self, version: Option<u64>, using: Resources) {
        self.version = self.version.max(version);
        if let Some((version, size)) = self.unjudged.take() {
            self.saw(version, size, using);
        }
    }

    fn doubt(&mut self, size: Resources, using: Resources) {
        if size != using {
            let (low, high) = self.uncertain.unwrap_or((using, using));
            self.uncertain = Some((low.field_min(size), high.field_max(size)));
        }
    }

    pub(super) fn plan(
        &self,
        round: &mut Round<'_>,
        limits: Limits,
        revision: Revision,
    ) -> Option<NeonVmRequest> {
        let using = round.using;
        let held = self.held(using);
        let low = limits.approved.unwrap_or(held);
        let high = limits.permit.unwrap_or(using);
        let mut target = clamp(using, round.desired, Some(low), Some(high));
        target.mem = whole_slots(using.mem, target.mem, round.slot);
        // Only with answers lost can the monitor count on more than is believed to be there: then
        // that is made true.
        target = target.field_max(low.field_min(held));
        // A patch whose answer was lost may have made it larger; that is not taken back.
        if round.mode == Mode::Grow {
            target = target.field_max(held);
        }
        let is_frozen = round.is_migrating || round.mode == Mode::Observe;
        if is_frozen || (target == using && self.uncertain.is_none()) {
            return None;
        }
        // Somebody else, or a task before this one, made it larger than is permitted: first the
        // permit, then it is made true.
        if target.has_field_above(high) {
            return None;
        }
        let is_blocked = self.ongoing.is_some()
            || limits
                .plugin_request
                .is_some_and(|asked| asked.has_field_below(target));
        if is_blocked {
            let is_other = self.ongoing.is_some_and(|(_, size)| size != target);
            if limits.is_plugin_ongoing || is_other {
                round.warn(Warning::NeonVmBusy);
            }
            return None;
        }
        if let Some(failure) = self.request_failed_at
            && round.must_wait_until(
                failure + round.timers.neonvm_retry_wait,
                Warning::NeonVmFailed,
            )
        {
            return None;
        }
        Some(NeonVmRequest {
            current: using,
            target,
            revision,
        })
    }

    pub(super) fn start(&mut self, now: Timestamp, id: RequestId, request: &NeonVmRequest) {
        self.ongoing = Some((id, request.target));
        self.was_on_the_way = true;
        self.target_revision = StampedRevision {
            revision: request.revision,
            at: now,
        };
    }

    pub(super) fn succeed(&mut self, now: Timestamp) -> Option<Resources> {
        self.uncertain = None;
        self.last_success = Some(now);
        self.ongoing.take().map(|(_, size)| size)
    }

    /// The patch failed. With `may_have_arrived` it may have been applied.
    pub(super) fn fail(&mut self, now: Timestamp, using: Resources, may_have_arrived: bool) {
        self.request_failed_at = Some(now);
        let Some((_, size)) = self.ongoing.take() else {
            return;
        };
        if may_have_arrived {
            let (low, high) = self.uncertain.unwrap_or((using, using));
            self.uncertain = Some((low.field_min(size), high.field_max(size)));
        }
    }
}
