//! One-sided exact conditional test of two rates, with integers alone.
//!
//! Under equal rates the events of one side are binomial, given the events of both and their times.
//! The weights of that distribution are computed from its mode outwards, relative to the mode.

/// Weight of the mode.
const MODE: u128 = 1 << 60;
/// Most events that are computed. More are scaled down, which only weakens the test.
const MOST_EVENTS: u64 = 1000;
/// Most time that is computed.
const MOST_EXPOSURE: u64 = 1 << 31;

/// Events within a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Number of the events.
    pub events: u64,
    /// Time in which they were counted, seconds.
    pub exposure: u64,
}

/// Whether the rate of `changed` is above that of `control`, with an error of `ppm` in a million
/// over this number of tests.
#[must_use]
pub fn is_higher(changed: Count, control: Count, ppm: u32, tests: u32) -> bool {
    let Some((tail, all)) = tail(changed, control) else {
        return false;
    };
    tail * 1_000_000 * u128::from(tests) < all * u128::from(ppm)
}

/// Weight of the outcomes at least as high as the one of `changed`, and of all outcomes. `None`
/// without figures on either side.
fn tail(changed: Count, control: Count) -> Option<(u128, u128)> {
    let shift = (changed.exposure.max(control.exposure) / MOST_EXPOSURE)
        .checked_ilog2()
        .map_or(0, |bits| bits + 1);
    let own = u128::from(changed.exposure >> shift);
    let other = u128::from(control.exposure >> shift);
    let all_events = changed.events.saturating_add(control.events);
    if own == 0 || other == 0 || all_events == 0 {
        return None;
    }
    let (events, n) = if all_events > MOST_EVENTS {
        let share = u128::from(changed.events) * u128::from(MOST_EVENTS) / u128::from(all_events);
        (share, u128::from(MOST_EVENTS))
    } else {
        (u128::from(changed.events), u128::from(all_events))
    };
    let mode = ((n + 1) * own / (own + other)).min(n);
    let mut sums = Sums {
        least: events,
        tail: 0,
        all: 0,
    };
    sums.add(mode, MODE);
    let mut weight = MODE;
    for k in mode..n {
        weight = weight * (n - k) * own / ((k + 1) * other);
        sums.add(k + 1, weight);
    }
    weight = MODE;
    for k in (1..=mode).rev() {
        weight = weight * k * other / ((n - k + 1) * own);
        sums.add(k - 1, weight);
    }
    Some((sums.tail, sums.all))
}

struct Sums {
    least: u128,
    tail: u128,
    all: u128,
}

impl Sums {
    const fn add(&mut self, events: u128, weight: u128) {
        self.all += weight;
        if events >= self.least {
            self.tail += weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn count(events: u64, exposure: u64) -> Count {
        Count { events, exposure }
    }

    /// The chance in a million, rounded down.
    fn ppm(changed: Count, control: Count) -> u128 {
        tail(changed, control).map_or(1_000_000, |(tail, all)| tail * 1_000_000 / all)
    }

    #[test]
    fn chances_are_those_of_the_binomial() {
        let rows = [
            // 1/2, 1/4 and 1/1024 by hand; 11/1024 are ten of ten or nine of ten.
            (count(1, 60), count(0, 60), 500_000),
            (count(2, 60), count(0, 60), 250_000),
            (count(10, 60), count(0, 60), 976),
            (count(9, 60), count(1, 60), 10_742),
            // With a quarter of the control's time the chance of an event is 1/5.
            (count(1, 60), count(0, 240), 200_000),
            (count(3, 60), count(0, 240), 8_000),
            (count(0, 60), count(10, 60), 1_000_000),
            (count(0, 60), count(0, 60), 1_000_000),
            (count(5, 0), count(0, 60), 1_000_000),
        ];
        for (changed, control, expected) in rows {
            assert_eq!(ppm(changed, control), expected, "{changed:?} {control:?}");
        }
    }

    #[test]
    fn huge_figures_do_not_overflow() {
        let huge = count(u64::MAX / 2, u64::MAX);
        assert!(!is_higher(huge, huge, 100_000, 10_000));
        assert!(is_higher(huge, count(0, u64::MAX), 1, 10_000));
    }

    proptest! {
        #[test]
        fn more_events_are_never_less_striking(
            events in 0_u64..300, control in 0_u64..300, own in 1_u64..100_000, other in 1_u64..100_000,
        ) {
            let other = count(control, other);
            prop_assert!(ppm(count(events + 1, own), other) <= ppm(count(events, own), other));
        }
    }
}
