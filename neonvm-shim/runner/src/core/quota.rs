//! How much CPU time QEMU may burn.
//!
//! The quota follows the order's milli-CPU. Three exceptions, each bounded: a guest boots at its
//! largest size's speed, because a quarter of a CPU makes a boot of five seconds one of twenty;
//! when CPUs leave, the quota stays up for a moment, because a throttled guest takes long to give a
//! CPU back; and when memory leaves, it stays up until that is done, because emptying a GiB is
//! seconds of work for the guest's kernel, which would take everything a smaller CPU can do.

use protocol::time::{Span, Timestamp};
use protocol::units::MilliCpu;

/// A guest whose daemon has not answered after this time is held to its size all the same.
pub const BOOT_ALLOWANCE: Span = Span::from_secs(60);
/// How long the quota waits for CPUs to leave.
pub const SHRINK_ALLOWANCE: Span = Span::from_secs(1);
/// How long it waits for memory to leave.
pub const MEMORY_ALLOWANCE: Span = Span::from_secs(30);

/// What the quota depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaInput {
    /// The limit ordered.
    pub ordered: MilliCpu,
    /// When it was.
    pub ordered_at: Timestamp,
    /// The limit in force before that order.
    pub before: MilliCpu,
    /// Whether more CPUs are plugged or online than the order needs.
    pub cpus_to_leave: bool,
    /// Whether more memory is plugged than the order needs.
    pub memory_to_leave: bool,
    /// The largest limit.
    pub largest: MilliCpu,
    /// When the guest began to boot, if it still does.
    pub booting_since: Option<Timestamp>,
}

/// The quota in milli-CPU, and when it must be looked at again.
#[must_use]
pub fn quota(input: &QuotaInput, now: Timestamp) -> (MilliCpu, Option<Timestamp>) {
    if let Some(since) = input.booting_since
        && now < since + BOOT_ALLOWANCE
    {
        let whole = MilliCpu(input.largest.rounded_up_cores().max(1).saturating_mul(1000));
        return (whole.max(input.ordered), Some(since + BOOT_ALLOWANCE));
    }
    let allowance = match input {
        QuotaInput {
            memory_to_leave: true,
            ..
        } => MEMORY_ALLOWANCE,
        QuotaInput {
            cpus_to_leave: true,
            ..
        } => SHRINK_ALLOWANCE,
        _ => Span::from_secs(0),
    };
    let until = input.ordered_at + allowance;
    if input.before > input.ordered && now < until {
        return (input.before, Some(until));
    }
    (input.ordered, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUT: QuotaInput = QuotaInput {
        ordered: MilliCpu(250),
        ordered_at: Timestamp(10_000_000),
        before: MilliCpu(2000),
        cpus_to_leave: false,
        memory_to_leave: false,
        largest: MilliCpu(1250),
        booting_since: None,
    };

    #[test]
    fn n20_the_quota_is_the_limit() {
        assert_eq!(quota(&INPUT, Timestamp(10_000_000)), (MilliCpu(250), None));
    }

    #[test]
    fn n20_a_boot_is_not_starved_and_not_for_ever() {
        let booting = QuotaInput {
            booting_since: Some(Timestamp(9_000_000)),
            ..INPUT
        };
        let end = Timestamp(69_000_000);
        assert_eq!(
            quota(&booting, Timestamp(10_000_000)),
            (MilliCpu(2000), Some(end))
        );
        assert_eq!(quota(&booting, end), (MilliCpu(250), None));
    }

    #[test]
    fn n20_leaving_cpus_hold_the_quota_for_a_moment_only() {
        let leaving = QuotaInput {
            cpus_to_leave: true,
            ..INPUT
        };
        let end = Timestamp(11_000_000);
        assert_eq!(
            quota(&leaving, Timestamp(10_500_000)),
            (MilliCpu(2000), Some(end))
        );
        assert_eq!(quota(&leaving, end), (MilliCpu(250), None));
        let growing = QuotaInput {
            before: MilliCpu(100),
            ..leaving
        };
        assert_eq!(
            quota(&growing, Timestamp(10_500_000)),
            (MilliCpu(250), None)
        );
    }

    #[test]
    fn n20_leaving_memory_holds_the_quota_until_it_is_gone_and_not_for_ever() {
        let leaving = QuotaInput {
            memory_to_leave: true,
            ..INPUT
        };
        let end = Timestamp(40_000_000);
        assert_eq!(
            quota(&leaving, Timestamp(39_999_999)),
            (MilliCpu(2000), Some(end))
        );
        assert_eq!(quota(&leaving, end), (MilliCpu(250), None));
        let growing = QuotaInput {
            before: MilliCpu(100),
            ..leaving
        };
        assert_eq!(quota(&growing, INPUT.ordered_at), (MilliCpu(250), None));
    }
}
