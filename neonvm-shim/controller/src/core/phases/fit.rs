//! How far a runner is on its way to the size in use.

use protocol::runner::RunnerState;
use protocol::time::Timestamp;
use protocol::units::Resources;
use protocol::vm::VmPhase;

use crate::core::draft::Draft;
use crate::core::observe::{Fit, fit};

impl Draft<'_> {
    /// Whether the resize may end before its progress is worth a write. If so, looks again.
    pub(super) fn may_be_quick(&mut self) -> bool {
        let until = self.input.wanted_since + self.input.settings.quick;
        self.stored.phase == VmPhase::Running && self.is_before(until)
    }

    /// Whether `at` is in the future. If so, the plan wakes then.
    pub(in crate::core) fn is_before(&mut self, at: Timestamp) -> bool {
        let is_before = self.input.at.now < at;
        if is_before {
            self.wake_at(at);
        }
        is_before
    }

    /// How the runner stands to the size in use. While an order of another size is in flight, the
    /// size is not reached for good, because the runner may still take up that order.
    pub(in crate::core) fn fit(&self, state: &RunnerState) -> Fit {
        match fit(self.vm.spec.guest.in_use(), state) {
            Fit::Reached if self.is_ordering_another() => Fit::Unordered,
            fit => fit,
        }
    }

    /// Whether an order of another size than the wanted one is on its way, or its fate not known.
    pub(super) fn is_ordering_another(&self) -> bool {
        let wanted = self.vm.spec.guest.in_use();
        self.ordering().any(|size| size != wanted)
    }

    /// Sizes of orders in flight, or with an unknown outcome.
    pub(super) fn ordering(&self) -> impl Iterator<Item = Resources> {
        let orders = self.input.ordering.iter();
        let pod = &self.status.pod_name;
        orders.filter_map(move |(of, size)| (of == pod).then_some(*size))
    }

    /// Revision of the target size; 0 without one.
    pub(super) fn revision(&self) -> i64 {
        self.vm
            .spec
            .target_revision
            .map_or(0, |target| target.revision.value)
    }
}
