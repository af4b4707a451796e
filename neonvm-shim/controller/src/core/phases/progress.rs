//! Size, phase and revision of a resize in the status.

use protocol::quantity::Quantity;
use protocol::revision::RevisionWithTime;
use protocol::runner::{RunnerPhase, RunnerState};
use protocol::time::Span;
use protocol::vm::VmPhase;

use crate::core::conditions::whole_seconds;
use crate::core::draft::Draft;
use crate::core::observe::{Fit, size_of, status_size};
use crate::core::problem::Problem;
use crate::core::vm_event::VmEvent;

/// Progress of a resize is written at most this often.
pub const PROGRESS_INTERVAL: Span = Span::from_millis(250);

impl Draft<'_> {
    /// The phase by the size, and the size into the status.
    pub(super) fn sized(&mut self, state: &RunnerState) {
        if let Some(problem) = state
            .resize
            .as_ref()
            .and_then(|report| report.problem.clone())
        {
            self.problems.push(Problem::Resize { problem });
        }
        if self.fit(state) == Fit::Reached {
            self.status.phase = VmPhase::Running;
            self.measured(state);
            self.propagate(state);
            self.scaled(state);
            return;
        }
        if self.may_be_quick() {
            return;
        }
        let began_before = self.stored.phase == VmPhase::Scaling;
        self.status.phase = VmPhase::Scaling;
        let next = self.input.progress_at + PROGRESS_INTERVAL;
        if began_before && self.input.at.now < next {
            let held = (self.status.cpus, self.status.memory_size);
            self.measured(state);
            if held != (self.status.cpus, self.status.memory_size) {
                (self.status.cpus, self.status.memory_size) = held;
                self.wake_at(next);
            }
        } else {
            self.measured(state);
        }
    }

    /// Reports a resize that is done, also one that was done before phase Scaling was written.
    fn scaled(&mut self, state: &RunnerState) {
        let to = size_of(state);
        let from = self.input.scaling_from;
        if self.stored.phase == VmPhase::Scaling || from.is_some_and(|from| from != to) {
            let (from, revision) = (from.unwrap_or(to), self.revision());
            self.events.push(VmEvent::Scaled { from, to, revision });
        }
    }

    /// Writes the guest's size into the status. A guest with an order of another size, or whose
    /// QEMU is still asked for more memory, may be about to grow, so the status does not shrink
    /// then. The scheduler assumes that a guest which is seen to shrink goes on shrinking.
    pub(super) fn measured(&mut self, state: &RunnerState) {
        // A runner that has just adopted its QEMU reports too little. The status keeps the last
        // size.
        if state.phase == RunnerPhase::Booting && self.status.memory_size.is_some() {
            return;
        }
        let mut size = size_of(state);
        let is_asked_for_more = state.memory.requested > state.memory.plugged;
        let is_unordered = self.fit(state) == Fit::Unordered || self.is_ordering_another();
        if is_asked_for_more || is_unordered {
            size = size.field_max(status_size(&self.status));
        }
        self.status.cpus = Some(size.cpu);
        self.status.memory_size = Some(Quantity::from_bytes(size.mem.0));
    }

    /// The guest has the spec's size, so the spec's revision is current. Only equality matters.
    pub(super) fn propagate(&mut self, state: &RunnerState) {
        let Some(target) = self.vm.spec.target_revision else {
            return;
        };
        let current = self.status.current_revision.map(|current| current.revision);
        let reached = self.fit(state) == Fit::Reached;
        if self.status.phase == VmPhase::Running && reached && current != Some(target.revision) {
            self.status.current_revision = Some(RevisionWithTime {
                revision: target.revision,
                updated_at: whole_seconds(self.input.at.wall),
            });
        }
    }
}
