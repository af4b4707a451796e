//! How many machines there should be: the largest number seen in seven days.

use protocol::time::{Span, Timestamp};

const DAY: Span = Span::from_secs(24 * 3600);
const DAYS: usize = 7;

/// Largest number of machines of each of the last seven days.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    day: u64,
    most: [usize; DAYS],
}

impl Expected {
    /// Starts with a number from an earlier run; 1 for none.
    #[must_use]
    pub fn new(now: Timestamp, known: usize) -> Self {
        let mut most = [0; DAYS];
        most[0] = known.max(1);
        Self {
            day: day_of(now),
            most,
        }
    }

    /// Records that `alive` machines are heard, and returns the largest number in seven days.
    pub fn see(&mut self, now: Timestamp, alive: usize) -> usize {
        let passed = day_of(now).saturating_sub(self.day);
        let passed = usize::try_from(passed).unwrap_or(DAYS).min(DAYS);
        self.most.rotate_right(passed);
        self.most[..passed].fill(0);
        self.day = self.day.max(day_of(now));
        self.most[0] = self.most[0].max(alive);
        self.most.iter().copied().max().unwrap_or(alive)
    }
}

fn day_of(now: Timestamp) -> u64 {
    now.0 / DAY.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: V22
    #[test]
    fn v22_largest_number_counts_for_seven_days() {
        let at = |hours: u64| Timestamp(0) + Span::from_secs(hours * 3600);
        let mut expected = Expected::new(at(0), 0);
        assert_eq!(expected.see(at(1), 5), 5);
        assert_eq!(expected.see(at(30), 3), 5);
        assert_eq!(expected.see(at(6 * 24 + 23), 3), 5);
        assert_eq!(expected.see(at(7 * 24 + 1), 3), 3);
        assert_eq!(expected.see(at(100 * 24), 1), 1);
        assert_eq!(
            expected.see(at(1), 1),
            1,
            "a clock that goes back changes nothing"
        );
    }
}
