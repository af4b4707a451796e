//! Counts events within a sliding interval. Source: docs/compatibility/agent.md §6.2.

use std::collections::VecDeque;

use protocol::time::{Span, Timestamp};

/// Upper bound of kept entries, far above every sensible threshold. It bounds memory in a burst.
const MAX_ENTRIES: usize = 1024;

/// Counter of the events of the last `interval`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentCounter {
    interval: Span,
    entries: VecDeque<Timestamp>,
}

impl RecentCounter {
    /// A counter without events.
    #[must_use]
    pub fn new(interval: Span) -> Self {
        Self {
            interval,
            entries: VecDeque::new(),
        }
    }

    /// Counts one event at `now`. Beyond 1024 kept events the oldest is dropped.
    pub fn add(&mut self, now: Timestamp) {
        self.forget(now);
        if self.entries.len() == MAX_ENTRIES {
            self.entries.pop_front();
        }
        self.entries.push_back(now);
    }

    /// Number of kept events that are newer than `now − interval`.
    pub fn count(&mut self, now: Timestamp) -> usize {
        self.forget(now);
        self.entries.len()
    }

    fn forget(&mut self, now: Timestamp) {
        while self
            .entries
            .front()
            .is_some_and(|entry| *entry + self.interval <= now)
        {
            self.entries.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_count_while_newer_than_the_interval() {
        let at = |secs: u64| Timestamp(100_000_000 + secs * 1_000_000);
        let mut recent = RecentCounter::new(Span::from_secs(4));
        assert_eq!(recent.count(at(0)), 0);
        recent.add(at(0));
        recent.add(at(0));
        assert_eq!(recent.count(at(0)), 2);
        recent.add(at(2));
        assert_eq!(recent.count(at(2)), 3);
        assert_eq!(recent.count(at(5)), 1);
        assert_eq!(recent.count(at(7)), 0);
    }

    #[test]
    fn burst_keeps_a_bounded_number_of_entries() {
        let mut recent = RecentCounter::new(Span::from_secs(4));
        for n in 0..10_000 {
            recent.add(Timestamp(n));
        }
        assert_eq!(recent.count(Timestamp(10_000)), MAX_ENTRIES);
    }
}
