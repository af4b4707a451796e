//! Which limits of a policy are looser than those of the agent's file. The agent's hold then.

use protocol::policy::Limits;

/// A sentence for each limit that is cut.
pub(super) fn sentences(own: Limits, ceiling: Limits) -> Vec<String> {
    let held = own.within(ceiling);
    let cut = |name: &str, own: Option<i64>, held: Option<i64>| {
        let (own, held) = (own?, held?);
        (own != held)
            .then(|| format!("{name} is {own}, and {held} holds: the agent's file allows no more"))
    };
    let wide = |limit: Option<u32>| limit.map(i64::from);
    let all = [
        cut("maxUnits", wide(own.max_units), wide(held.max_units)),
        cut(
            "shrinkUnitsPerMinute",
            wide(own.shrink_units_per_minute),
            wide(held.shrink_units_per_minute),
        ),
        cut(
            "vmsShrunkAtOncePercent",
            wide(own.vms_shrunk_at_once_percent),
            wide(held.vms_shrunk_at_once_percent),
        ),
        cut(
            "fallbackAfterSeconds",
            own.fallback_after_seconds,
            held.fallback_after_seconds,
        ),
    ];
    all.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: V34
    #[test]
    fn v34_looser_limits_are_named_with_the_value_that_holds() {
        let ceiling = Limits {
            max_units: Some(16),
            shrink_units_per_minute: Some(4),
            vms_shrunk_at_once_percent: Some(20),
            fallback_after_seconds: Some(600),
            ..Limits::default()
        };
        let own = Limits {
            max_units: Some(99),
            shrink_units_per_minute: Some(3),
            vms_shrunk_at_once_percent: Some(20),
            fallback_after_seconds: Some(-1),
            ..Limits::default()
        };
        assert_eq!(
            sentences(own, ceiling),
            [
                "maxUnits is 99, and 16 holds: the agent's file allows no more",
                "fallbackAfterSeconds is -1, and 600 holds: the agent's file allows no more",
            ]
        );
        assert!(sentences(own, Limits::default()).is_empty());
        assert!(sentences(Limits::default(), ceiling).is_empty());
    }
}
