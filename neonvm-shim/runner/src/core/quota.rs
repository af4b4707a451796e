//! How much CPU time QEMU may use.
//!
//! The quota follows the order's milli-CPU, with three bounded exceptions:
//! * A guest boots at the speed of its largest size, because a quarter of a CPU makes a boot of
//!   five seconds one of twenty.
//! * While CPUs leave, the quota stays up for a moment, because a throttled guest releases a CPU
//!   late.
//! * While memory leaves, the quota stays up, because emptying a GiB takes seconds of CPU time in
//!   the guest's kernel, which would use up a smaller CPU.

use protocol::time::{Span, Timestamp};
use protocol::units::MilliCpu;

/// Time after which a guest whose daemon has not answered is held to its size.
pub const BOOT_ALLOWANCE: Span = Span::from_secs(60);
/// Longest time that the quota stays up while CPUs leave.
pub const SHRINK_ALLOWANCE: Span = Span::from_secs(1);
/// Longest time that the quota stays up while memory leaves.
pub const MEMORY_ALLOWANCE: Span = Span::from_secs(30);

/// State from which [`quota`] computes the CPU quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaInput {
    /// CPU limit of the current order.
    pub ordered: MilliCpu,
    /// When the current order was accepted.
    pub ordered_at: Timestamp,
    /// CPU limit in force before the current order.
    pub before: MilliCpu,
    /// Whether more CPUs are plugged or online than the order needs.
    pub cpus_to_leave: bool,
    /// Whether more memory is plugged than the order needs.
    pub memory_to_leave: bool,
    /// CPU limit of the largest size.
    pub largest: MilliCpu,
    /// When the guest began to boot. `None` once it has answered.
    pub booting_since: Option<Timestamp>,
}

/// Quota in milli-CPU, and when it must be computed again.
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

    /// Requirement: N20
    #[test]
    fn quota_is_the_ordered_limit() {
        assert_eq!(quota(&INPUT, Timestamp(10_000_000)), (MilliCpu(250), None));
    }

    /// Requirement: N20
    #[test]
    fn boot_gets_the_largest_quota_for_a_bounded_time() {
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

    /// Requirement: N20
    #[test]
    fn leaving_cpus_keep_the_quota_for_a_moment_only() {
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

    /// Requirement: N20
    #[test]
    fn leaving_memory_keeps_the_quota_for_a_bounded_time() {
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
