//! Speed of changes: at most one per period, exact under any delay of the caller below a second.

use protocol::time::{Span, Timestamp};

/// Delay that later changes make up for.
const CATCH_UP: Span = Span::from_secs(1);

/// Earliest time of the next change. While changes are due without a break, the nth comes n periods
/// after the first, even if the caller is late for some of them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    next: Timestamp,
    is_wanted: bool,
}

impl Pace {
    /// No change is due. The next one does not make up for the time until then.
    pub(super) fn rest(&mut self) {
        self.is_wanted = false;
    }

    /// A change is due. Returns when it may come, if not now.
    pub(super) fn wait(&mut self, now: Timestamp) -> Option<Timestamp> {
        if !self.is_wanted {
            self.is_wanted = true;
            self.next = self.next.max(now);
        }
        (self.next > now).then_some(self.next)
    }

    /// Counts a change.
    pub(super) fn take(&mut self, now: Timestamp, period: Span) {
        let oldest = Timestamp(now.0.saturating_sub(CATCH_UP.0));
        self.next = self.next.max(oldest) + period;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Changes by `until`, with polls after each of `delays` µs in turn.
    fn changes(period: Span, delays: &[u64], until: u64) -> Vec<(u64, u64)> {
        let (mut pace, mut now, mut count) = (Pace::default(), 0, 0);
        let mut seen = Vec::new();
        let mut turn = delays.iter().cycle();
        while now <= until {
            while pace.wait(Timestamp(now)).is_none() {
                pace.take(Timestamp(now), period);
                count += 1;
            }
            seen.push((now, count));
            now += turn.next().copied().unwrap_or(1).max(1);
        }
        seen
    }

    proptest! {
        /// Requirement: V13
        #[test]
        fn v13_rate_is_exact_under_any_delay_of_polls(
            period_us in 10_000_u64..1_000_000,
            delays in prop::collection::vec(1_u64..900_000, 1..20),
        ) {
            for (now, count) in changes(Span(period_us), &delays, 20_000_000) {
                prop_assert_eq!(count, 1 + now / period_us, "at {} us", now);
            }
        }
    }

    /// Requirement: V13
    #[test]
    fn v13_time_without_a_change_is_not_made_up_for() {
        let mut pace = Pace::default();
        let period = Span::from_millis(200);
        assert_eq!(pace.wait(Timestamp(0)), None);
        pace.take(Timestamp(0), period);
        assert_eq!(pace.wait(Timestamp(1)), Some(Timestamp(200_000)));
        pace.rest();
        let late = Timestamp(60_000_000);
        assert_eq!(pace.wait(late), None);
        pace.take(late, period);
        assert_eq!(pace.wait(late), Some(late + period));
    }

    #[test]
    fn long_delay_is_made_up_for_by_one_second() {
        let mut pace = Pace::default();
        let period = Span::from_millis(200);
        assert_eq!(pace.wait(Timestamp(0)), None);
        pace.take(Timestamp(0), period);
        let late = Timestamp(60_000_000);
        let mut count = 0;
        while pace.wait(late).is_none() {
            pace.take(late, period);
            count += 1;
        }
        assert_eq!(count, 6);
    }
}
