//! One round of planning: the context that the plans of all peers share.

use protocol::mode::Mode;
use protocol::time::{Span, Timestamp};
use protocol::units::{Bytes, Resources};

use super::config::{ShrinkStep, Timers};
use super::warnings::{Fault, FaultCounts, Warning, Warnings};

/// Context of one computation. The plans add warnings, faults and a deadline.
#[derive(Debug)]
pub(super) struct Round<'a> {
    pub now: Timestamp,
    pub timers: &'a Timers,
    pub unit: Resources,
    pub slot: Bytes,
    pub shrink_step: ShrinkStep,
    /// U: the size in use.
    pub using: Resources,
    /// D: the desired size within the VM's mode.
    pub desired: Resources,
    pub is_migrating: bool,
    pub mode: Mode,
    pub warnings: Warnings,
    pub wait: Option<Span>,
    pub faults: &'a mut FaultCounts,
}

impl Round<'_> {
    /// Whether `until` is after now. It then is a deadline, and `warning` is added.
    pub(super) fn must_wait_until(&mut self, until: Timestamp, warning: Warning) -> bool {
        let is_ahead = until > self.now;
        if is_ahead {
            self.wait_at_most(until.since(self.now));
            self.warn(warning);
        }
        is_ahead
    }

    /// Sets a deadline `span` from now, unless an earlier one is set.
    pub(super) fn wait_at_most(&mut self, span: Span) {
        self.wait = Some(self.wait.map_or(span, |wait| wait.min(span)));
    }

    pub(super) fn warn(&mut self, warning: Warning) {
        self.warnings.insert(warning);
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        self.faults.count(fault);
    }
}

/// Limits the change from `current` to `want`: a decrease stops at `low`, an increase at `high`. A
/// limit on the wrong side of `current` counts as `current`, so a violated invariant holds the
/// size.
pub(super) fn clamp(
    current: Resources,
    want: Resources,
    low: Option<Resources>,
    high: Option<Resources>,
) -> Resources {
    fn field<T: Ord + Copy>(current: T, want: T, low: Option<T>, high: Option<T>) -> T {
        if want < current {
            low.map_or(want, |low| want.max(low.min(current)))
        } else {
            high.map_or(want, |high| want.min(high.max(current)))
        }
    }
    Resources {
        cpu: field(
            current.cpu,
            want.cpu,
            low.map(|r| r.cpu),
            high.map(|r| r.cpu),
        ),
        mem: field(
            current.mem,
            want.mem,
            low.map(|r| r.mem),
            high.map(|r| r.mem),
        ),
    }
}

/// Rounds memory to whole slots: down for a growth, to stay within the permit, and up for a shrink,
/// to stay within the approval.
pub(super) fn whole_slots(current: Bytes, target: Bytes, slot: Bytes) -> Bytes {
    let size = slot.0.max(1);
    let slots = if target > current {
        target.0 / size
    } else {
        target.0.div_ceil(size)
    };
    Bytes(slots.saturating_mul(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clamp_limits_each_field_alone() {
        let r = Resources::new;
        assert_eq!(
            clamp(r(2, 20), r(1, 30), Some(r(2, 20)), Some(r(2, 20))),
            r(2, 20)
        );
        assert_eq!(clamp(r(2, 20), r(1, 30), None, Some(r(2, 25))), r(1, 25));
        assert_eq!(clamp(r(2, 20), r(1, 30), Some(r(2, 20)), None), r(2, 30));
        assert_eq!(clamp(r(2, 20), r(2, 20), None, None), r(2, 20));
    }

    #[test]
    fn limits_on_the_wrong_side_hold_the_size() {
        let r = Resources::new;
        assert_eq!(clamp(r(2, 20), r(1, 10), Some(r(9, 90)), None), r(2, 20));
        assert_eq!(clamp(r(2, 20), r(9, 90), None, Some(r(1, 10))), r(2, 20));
    }

    #[test]
    fn slots_round_to_the_safe_side() {
        let slot = Bytes(10);
        assert_eq!(whole_slots(Bytes(20), Bytes(39), slot), Bytes(30));
        assert_eq!(whole_slots(Bytes(40), Bytes(31), slot), Bytes(40));
        assert_eq!(whole_slots(Bytes(40), Bytes(40), slot), Bytes(40));
        assert_eq!(whole_slots(Bytes(40), Bytes(41), Bytes(0)), Bytes(41));
    }
}
