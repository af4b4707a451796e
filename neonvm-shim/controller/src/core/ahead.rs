//! CPUs that a guest starts before it may use them, and the write that waits for them.
//!
//! A growth is on its pod before it is ordered, and its guest needs longer to start a CPU than that
//! write takes. So the CPUs come first ([`Draft::plug_ahead`]), held back by the quota, and the
//! write just in time: what it sets off (an API server, a scheduler, a kubelet and its runtime)
//! works on the same node on which the guest starts its CPUs, and holds them up.
//!
//! How long a guest takes is what it took the last time; nothing waits for one that has not been
//! seen at it, for longer than [`LONGEST`], for memory, or once the guest has its CPUs.

use protocol::object::Pod;
use protocol::runner::{CpusAhead, QuotaState, RunnerState};
use protocol::time::{Span, Timestamp};
use protocol::units::{MilliCpu, Resources};
use serde::Serialize;

use super::action::Action;
use super::observe::{Fit, size_of};
use super::plan::{Draft, RunnerView};

/// How long before the guest has its CPUs the write begins: what it takes to write, to be seen and
/// to be ordered.
const WRITE: Span = Span::from_millis(20);
/// The longest that the write waits. A guest's first CPU takes it many times as long as the later
/// ones.
const LONGEST: Span = Span::from_millis(100);

/// CPUs the guest is starting ahead of their order, and how long it took for one of them the last
/// time.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct HeadStart {
    /// Measured time from the order until the guest had one more CPU.
    per_cpu: Option<Span>,
    #[serde(rename = "begun")]
    plugging: Option<Plugging>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Plugging {
    at: Timestamp,
    #[serde(rename = "wish")]
    target: MilliCpu,
    /// CPUs that the guest has to start for the target, one or more.
    more: u32,
}

impl HeadStart {
    /// Records a request for `cpu` to the runner of a guest that has `online` CPUs. A request for
    /// none cancels the one before.
    pub fn request(&mut self, now: Timestamp, cpu: MilliCpu, online: Option<u32>) {
        let more = online.map(|online| cpu.rounded_up_cores().saturating_sub(online));
        self.plugging = more.filter(|more| *more > 0).map(|more| Plugging {
            at: now,
            target: cpu,
            more,
        });
    }

    /// Ends the head start: the guest did not get its CPUs in time.
    pub fn cancel(&mut self) {
        self.plugging = None;
    }

    /// Records how many CPUs the guest has online.
    pub fn reported(&mut self, now: Timestamp, online: Option<u32>) {
        let Some(Plugging { at, target, more }) = self.plugging else {
            return;
        };
        if online.is_some_and(|online| online >= target.rounded_up_cores()) {
            self.per_cpu = Some(Span(now.since(at).0 / u64::from(more)));
            self.plugging = None;
        }
    }

    /// When the write for a growth to `cpu` begins, if the guest is starting these CPUs.
    #[must_use]
    pub fn until(&self, cpu: MilliCpu) -> Option<Timestamp> {
        let Plugging { at, target, more } = self.plugging?;
        let takes = self.per_cpu?.0.saturating_mul(u64::from(more));
        let waits = takes.saturating_sub(WRITE.0).min(LONGEST.0);
        (target == cpu).then_some(at + Span(waits))
    }
}

impl Draft<'_> {
    /// A guest that waits for its pod's requests, and only for them, need not wait for its own
    /// kernel after: that may start its CPUs meanwhile, as long as a quota holds them to the time
    /// they had.
    pub(super) fn plug_ahead(&mut self, pod: &Pod, state: &RunnerState, by_requests: bool) {
        let wanted = self.vm.spec.guest.in_use().cpu;
        let is_held = matches!(state.quota, QuotaState::Enforced { .. });
        let is_more = wanted.rounded_up_cores() > state.cpus.limit.rounded_up_cores();
        let waits = by_requests && is_held && is_more && self.fit(state) == Fit::Unordered;
        let cpu = if waits { wanted } else { MilliCpu(0) };
        if state.cpus.ahead.is_some_and(|ahead| ahead != cpu) {
            self.actions.push(Action::PlugAhead {
                pod: pod.metadata.name.clone(),
                wish: CpusAhead { cpu },
            });
        }
    }

    /// Whether the guest is starting CPUs and nothing else of the size waits for its pod to say so;
    /// then to be looked at again.
    pub(super) fn has_a_head_start(&mut self, wanted: Resources) -> bool {
        let RunnerView::Known(state) = self.input.runner else {
            return false;
        };
        let needs_no_memory = wanted.mem <= size_of(state).mem;
        let until = self.input.head_start.until(wanted.cpu);
        until.is_some_and(|until| needs_no_memory && self.is_before(until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1000;

    fn at(ms: u64) -> Timestamp {
        Timestamp(ms * MS)
    }

    /// One that took 80 ms for its second CPU.
    fn seen_once() -> HeadStart {
        let mut start = HeadStart::default();
        start.request(at(0), MilliCpu(2000), Some(1));
        assert_eq!(start.until(MilliCpu(2000)), None, "nothing is known of it");
        start.reported(at(40), Some(1));
        start.reported(at(80), Some(2));
        start
    }

    #[test]
    fn the_write_begins_as_long_before_the_cpus_as_it_takes() {
        let mut start = seen_once();
        start.request(at(1000), MilliCpu(1500), Some(1));
        assert_eq!(start.until(MilliCpu(1500)), Some(at(1060)));
        assert_eq!(start.until(MilliCpu(2500)), None, "another size");
        start.reported(at(1030), Some(2));
        assert_eq!(start.until(MilliCpu(1500)), None, "it has them");
        start.request(at(2000), MilliCpu(2000), Some(1));
        assert_eq!(start.until(MilliCpu(2000)), Some(at(2010)), "30 ms now");
    }

    #[test]
    fn nothing_waits_long_or_for_what_is_taken_back() {
        let mut start = seen_once();
        start.request(at(1000), MilliCpu(4000), Some(1));
        assert_eq!(start.until(MilliCpu(4000)), Some(at(1100)));
        start.request(at(1010), MilliCpu(0), Some(1));
        assert_eq!(start.until(MilliCpu(4000)), None);
        start.request(at(1020), MilliCpu(4000), Some(1));
        start.cancel();
        assert_eq!(start.until(MilliCpu(4000)), None);
        start.request(at(1030), MilliCpu(4000), None);
        assert_eq!(start.until(MilliCpu(4000)), None, "nobody knows its CPUs");
    }

    #[test]
    fn a_guest_that_is_quicker_than_the_write_has_none_wait_for_it() {
        let mut start = HeadStart::default();
        start.request(at(0), MilliCpu(2000), Some(1));
        start.reported(at(7), Some(2));
        start.request(at(100), MilliCpu(2000), Some(1));
        assert_eq!(start.until(MilliCpu(2000)), Some(at(100)));
    }
}
