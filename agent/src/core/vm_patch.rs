//! The VM object's side of the state machine: one patch at a time. Source:
//! docs/compatibility/agent.md §3.4.
//!
//! A patch whose response is lost may have been applied. Until a later patch succeeds the VM may
//! have any size between both. The core then reports the larger size to the scheduler and the
//! smaller one to the monitor. It repeats the patch even if the target equals the size in use.
//!
//! Others write the object too: a person, or a dead agent whose patch arrives late. A different
//! size in a newer state of the object makes the size uncertain in the same way.

use protocol::mode::Mode;
use protocol::revision::Revision;
use protocol::time::Timestamp;
use protocol::units::Resources;

use super::actions::{RequestId, VmPatch};
use super::revision::StampedRevision;
use super::round::{Round, clamp, whole_slots};
use super::warnings::Warning;

/// Size of the VM object and patches of it.
#[derive(Debug, Clone, Default)]
pub(super) struct VmPatchState {
    pub ongoing: Option<(RequestId, Resources)>,
    pub request_failed_at: Option<Timestamp>,
    pub last_success: Option<Timestamp>,
    /// Smallest and largest size that the VM may have; `None` when the size is certain.
    pub uncertain: Option<(Resources, Resources)>,
    /// The VM may have had another size. A monitor may have read that size from its guest, and an
    /// earlier agent may not have notified the monitor of the change.
    pub was_resized: bool,
    /// Newest version of the object that the state accounts for.
    pub version: Option<u64>,
    /// Newest version and size seen while a patch is in flight. They count when the patch has
    /// ended.
    pub unjudged: Option<(u64, Resources)>,
    pub target_revision: StampedRevision,
    pub current_revision: Revision,
}

/// Bounds by the other peers in this round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Smallest size that the monitor has approved.
    pub approved: Option<Resources>,
    /// Largest size that the scheduler permits.
    pub permit: Option<Resources>,
    /// Size in the permit request that is in flight or planned.
    pub permit_request: Option<Resources>,
    pub is_permit_ongoing: bool,
}

impl VmPatchState {
    /// The largest size that the VM may have now.
    pub(super) fn held(&self, using: Resources) -> Resources {
        let ongoing = self
            .ongoing
            .map_or(using, |(_, size)| using.field_max(size));
        self.uncertain
            .map_or(ongoing, |(_, high)| ongoing.field_max(high))
    }

    /// The smallest size that the VM may have now.
    pub(super) fn certain(&self, using: Resources) -> Resources {
        let ongoing = self
            .ongoing
            .map_or(using, |(_, size)| using.field_min(size));
        self.uncertain
            .map_or(ongoing, |(low, _)| ongoing.field_min(low))
    }

    /// Whether the VM has exactly the size in use: no patch is in flight and no response was lost.
    pub(super) fn is_certain(&self) -> bool {
        self.ongoing.is_none() && self.uncertain.is_none()
    }

    /// Whether `version` of the object is newer than all versions accounted for.
    pub(super) fn is_news(&self, version: u64) -> bool {
        self.version.is_none_or(|known| version > known)
    }

    /// Takes a state of the object. An old version changes nothing.
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

    /// Takes the version that the ended patch made, if known, and the state seen meanwhile.
    pub(super) fn ended_at(&mut self, version: Option<u64>, using: Resources) {
        self.version = self.version.max(version);
        if let Some((version, size)) = self.unjudged.take() {
            self.saw(version, size, using);
        }
    }

    /// Widens the range of possible sizes by `size`.
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
    ) -> Option<VmPatch> {
        let using = round.using;
        let held = self.held(using);
        let low = limits.approved.unwrap_or(held);
        let high = limits.permit.unwrap_or(using);
        let mut target = clamp(using, round.desired, Some(low), Some(high));
        target.mem = whole_slots(using.mem, target.mem, round.slot);
        // After a lost response the monitor may count on more than the size in use. The patch then
        // gives the VM that size.
        target = target.field_max(low.field_min(held));
        // A patch whose response was lost may have grown the VM. Grow mode does not undo that.
        if round.mode == Mode::Grow {
            target = target.field_max(held);
        }
        let is_frozen = round.is_migrating || round.mode == Mode::Observe;
        if is_frozen || (target == using && self.uncertain.is_none()) {
            return None;
        }
        // Another writer may have set a size above the permit. The permit then comes first.
        if target.has_field_above(high) {
            return None;
        }
        let is_blocked = self.ongoing.is_some()
            || limits
                .permit_request
                .is_some_and(|requested| requested.has_field_below(target));
        if is_blocked {
            let is_other = self.ongoing.is_some_and(|(_, size)| size != target);
            if limits.is_permit_ongoing || is_other {
                round.warn(Warning::VmPatchBusy);
            }
            return None;
        }
        if let Some(failure) = self.request_failed_at
            && round.must_wait_until(
                failure + round.timers.vm_patch_retry_wait,
                Warning::VmPatchFailed,
            )
        {
            return None;
        }
        Some(VmPatch {
            current: using,
            target,
            revision,
        })
    }

    pub(super) fn start(&mut self, now: Timestamp, id: RequestId, request: &VmPatch) {
        self.ongoing = Some((id, request.target));
        self.was_resized = true;
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

    /// Ends the patch without success. With `may_have_arrived` it may have been applied.
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
