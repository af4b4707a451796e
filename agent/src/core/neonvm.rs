//! The VM object's side of the state machine: one patch at a time. Source: spec/agent.md §3.4.
//!
//! A patch whose answer is lost may have been applied or not. Until a later patch succeeds the VM is taken to have any size
//! between both: towards the scheduler the larger, towards the monitor the smaller; and the patch is made again even when the
//! wanted size is the one believed to be there.

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
    /// A size the VM may have after an answer was lost.
    pub uncertain: Option<Resources>,
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
        self.possible().fold(using, Resources::field_max)
    }

    /// The smallest size the VM may have.
    pub(super) fn certain(&self, using: Resources) -> Resources {
        self.possible().fold(using, Resources::field_min)
    }

    fn possible(&self) -> impl Iterator<Item = Resources> {
        self.ongoing.map(|(_, size)| size).into_iter().chain(self.uncertain)
    }

    pub(super) fn plan(
        &self,
        round: &mut Round<'_>,
        limits: Limits,
        revision: Revision,
    ) -> Option<NeonVmRequest> {
        let using = round.using;
        let low = limits.approved.unwrap_or(using);
        let high = limits.permit.unwrap_or(using);
        let mut target = clamp(using, round.desired, Some(low), Some(high));
        target.mem = whole_slots(using.mem, target.mem, round.slot);
        if round.is_migrating || (target == using && self.uncertain.is_none()) {
            return None;
        }
        let is_blocked = self.ongoing.is_some()
            || limits.plugin_request.is_some_and(|asked| asked.has_field_below(target));
        if is_blocked {
            let is_other = self.ongoing.is_some_and(|(_, size)| size != target);
            if limits.is_plugin_ongoing || is_other {
                round.warn(Warning::NeonVmBusy);
            }
            return None;
        }
        if let Some(failure) = self.request_failed_at
            && round.must_wait_until(failure + round.timers.neonvm_retry_wait, Warning::NeonVmFailed)
        {
            return None;
        }
        Some(NeonVmRequest { current: using, target, revision })
    }

    pub(super) fn start(&mut self, now: Timestamp, id: RequestId, request: &NeonVmRequest) {
        self.ongoing = Some((id, request.target));
        self.target_revision = StampedRevision { revision: request.revision, at: now };
    }

    pub(super) fn succeed(&mut self, now: Timestamp) -> Option<Resources> {
        self.uncertain = None;
        self.last_success = Some(now);
        self.ongoing.take().map(|(_, size)| size)
    }

    /// The patch failed. With `may_have_arrived` it may have been applied.
    pub(super) fn fail(&mut self, now: Timestamp, using: Resources, may_have_arrived: bool) {
        self.request_failed_at = Some(now);
        let Some((_, size)) = self.ongoing.take() else { return };
        if may_have_arrived && (size != using || self.uncertain.is_some()) {
            // With an older uncertainty the two could differ on both sides; the newest answer lost is the likelier truth, and
            // the older one was below or above it by the same rules, so each field keeps what is farther away.
            self.uncertain = Some(self.uncertain.map_or(size, |old| farther(using, old, size)));
        }
    }
}

/// Of two possible sizes, per field the one farther from `using`.
fn farther(using: Resources, a: Resources, b: Resources) -> Resources {
    Resources {
        cpu: if a.cpu.0.abs_diff(using.cpu.0) > b.cpu.0.abs_diff(using.cpu.0) { a.cpu } else { b.cpu },
        mem: if a.mem.0.abs_diff(using.mem.0) > b.mem.0.abs_diff(using.mem.0) { a.mem } else { b.mem },
    }
}
