//! CPUs that a guest starts before it may use them, and the write that waits for them.
//!
//! The pod says a growth before the controller orders it. A guest takes longer to start a CPU than
//! that write takes. So the runner plugs the CPUs first ([`Draft::plug_ahead`]), and the quota
//! holds them back. The write follows just in time. Its consequences (an API server, a scheduler, a
//! kubelet and its runtime) run on the node on which the guest starts its CPUs, and would delay it.

use protocol::object::Pod;
use protocol::runner::{CpusAhead, QuotaState, RunnerState};
use protocol::units::{MilliCpu, Resources};

use super::action::Action;
use super::draft::Draft;
use super::observe::{Fit, size_of};
use super::view::RunnerView;

impl Draft<'_> {
    /// A guest that waits for its pod's requests, and only for them, need not wait for its own
    /// kernel after: that may start its CPUs meanwhile, as long as a quota holds them to the time
    /// they had. While memory leaves after a shrink, the quota is still the larger one of before.
    pub(super) fn plug_ahead(&mut self, pod: &Pod, state: &RunnerState, by_requests: bool) {
        let wanted = self.vm.spec.guest.in_use().cpu;
        let limit = state.cpus.limit;
        let is_held =
            matches!(state.quota, QuotaState::Enforced { milli } if MilliCpu(milli) <= limit);
        let is_more = wanted.rounded_up_cores() > limit.rounded_up_cores();
        let waits = by_requests && is_held && is_more && self.fit(state) == Fit::Unordered;
        let cpu = if waits { wanted } else { MilliCpu(0) };
        if state.cpus.ahead.is_some_and(|ahead| ahead != cpu) {
            self.actions.push(Action::PlugAhead {
                pod: pod.metadata.name.clone(),
                cpus: CpusAhead { cpu },
            });
        }
    }

    /// Whether the guest is starting CPUs, and the size waits for the write to its pod alone. If
    /// so, the plan wakes when the write is due.
    pub(super) fn has_a_head_start(&mut self, wanted: Resources) -> bool {
        let RunnerView::Known(state) = self.input.runner else {
            return false;
        };
        let needs_no_memory = wanted.mem <= size_of(state).mem;
        let until = self.input.head_start.until(wanted.cpu);
        until.is_some_and(|until| needs_no_memory && self.is_before(until))
    }
}
