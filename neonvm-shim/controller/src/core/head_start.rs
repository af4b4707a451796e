//! How long the write for a growth waits for the CPUs that its guest is starting.
//!
//! The wait is the time that the guest took the last time. A write does not wait for a guest
//! without a measured time, longer than [`LONGEST`], or once the guest has its CPUs.

use protocol::time::{Span, Timestamp};
use protocol::units::MilliCpu;
use serde::Serialize;

/// The write begins this long before the guest has its CPUs. It covers the write, its watch event
/// and the order.
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
    fn write_begins_its_own_duration_before_cpus_are_online() {
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
    fn write_waits_neither_long_nor_for_cancelled_request() {
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
    fn write_does_not_wait_for_quick_guest() {
        let mut start = HeadStart::default();
        start.request(at(0), MilliCpu(2000), Some(1));
        start.reported(at(7), Some(2));
        start.request(at(100), MilliCpu(2000), Some(1));
        assert_eq!(start.until(MilliCpu(2000)), Some(at(100)));
    }
}
