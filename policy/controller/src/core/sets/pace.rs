//! Members that answers may add to a set, or take from it, at the set's rates.

use policy_contract::ASK_SETS_EVERY;
use protocol::policy::Rates;
use protocol::time::{Span, Timestamp};

/// Millionths of a member.
const WHOLE: u64 = 1_000_000;

/// Unused rate of one direction, millionths of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Credit {
    millionths: u64,
    at: Timestamp,
}

impl Credit {
    /// Most that is saved up: what the rate gives between two questions, and one member at least.
    fn most(rate: f64) -> u64 {
        earned(rate, ASK_SETS_EVERY).max(WHOLE)
    }

    fn at(self, now: Timestamp, rate: f64) -> Self {
        let millionths = self
            .millionths
            .saturating_add(earned(rate, now.since(self.at)));
        // A part of a member was never to be taken, so it is kept beside the most.
        let part = self.millionths % WHOLE;
        Self {
            millionths: millionths.min(Self::most(rate) + part),
            at: now,
        }
    }

    fn take(&mut self, wanted: u32) -> u32 {
        let whole = u32::try_from(self.millionths / WHOLE).unwrap_or(u32::MAX);
        let taken = wanted.min(whole);
        self.millionths -= u64::from(taken) * WHOLE;
        taken
    }
}

/// Millionths of a member that a rate gives in a time.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "rates are at most 100 a second, and the cast saturates"
)]
fn earned(rate: f64, time: Span) -> u64 {
    (rate.max(0.0) * time.0 as f64).round() as u64
}

/// Rates of one set over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pace {
    grow: Credit,
    decline: Credit,
}

impl Pace {
    /// The pace of a set that no answer has changed.
    pub(super) fn new(now: Timestamp, rates: Rates) -> Self {
        let full = |rate| Credit {
            millionths: Credit::most(rate),
            at: now,
        };
        Self {
            grow: full(rates.grow),
            decline: full(rates.decline),
        }
    }

    /// The count on the way from `has` to `wants`. It moves by at most `budget`, which it reduces.
    pub(super) fn step(
        &mut self,
        now: Timestamp,
        rates: Rates,
        (has, wants): (u32, u32),
        budget: &mut u32,
    ) -> u32 {
        self.grow = self.grow.at(now, rates.grow);
        self.decline = self.decline.at(now, rates.decline);
        let more = self.grow.take(wants.saturating_sub(has).min(*budget));
        let less = self.decline.take(has.saturating_sub(wants).min(*budget));
        *budget -= more + less;
        has + more - less
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FREE: u32 = u32::MAX;

    proptest! {
        /// Requirement: V13
        #[test]
        fn v13_count_follows_the_rates_exactly_under_any_jitter(
            delays in prop::collection::vec(1_000_000_u64..10_000_000, 1..40),
            is_growth: bool,
        ) {
            let rates = Rates { grow: 5.0, decline: 1.0 };
            let (mut count, wants) = if is_growth { (0, 100_000) } else { (100_000, 0) };
            let first = count;
            let mut pace = Pace::new(Timestamp(0), rates);
            let mut now = Timestamp(0);
            let per_second = if is_growth { 5 } else { 1 };
            for delay in [0].into_iter().chain(delays) {
                now = now + Span(delay);
                count = pace.step(now, rates, (count, wants), &mut FREE.clone());
                // Ten seconds are saved up at the beginning.
                let due = (now.0 + 10_000_000) * per_second / 1_000_000;
                prop_assert_eq!(u64::from(count.abs_diff(first)), due, "at {} us", now.0);
            }
        }
    }

    /// Requirement: V13
    #[test]
    fn v13_slow_rate_gives_a_member_now_and_then() {
        let rates = Rates {
            grow: 0.05,
            decline: 1.0,
        };
        let mut pace = Pace::new(Timestamp(0), rates);
        let mut count = 0;
        let mut seen = Vec::new();
        for tick in 0..6_u64 {
            let now = Timestamp(tick * ASK_SETS_EVERY.0);
            count = pace.step(now, rates, (count, 100), &mut FREE.clone());
            seen.push(count);
        }
        assert_eq!(seen, [1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn budget_bounds_all_sets_of_an_answer() {
        let rates = Rates::default();
        let mut budget = 7;
        let mut pace = Pace::new(Timestamp(0), rates);
        let count = pace.step(Timestamp(0), rates, (2, 7), &mut budget);
        assert_eq!((count, budget), (7, 2));
        let mut other = Pace::new(Timestamp(0), rates);
        let count = other.step(Timestamp(0), rates, (9, 0), &mut budget);
        assert_eq!((count, budget), (7, 0));
    }
}
