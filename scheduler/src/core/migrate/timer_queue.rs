//! Timers, each pending at most once.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use protocol::time::Timestamp;

/// Pending timers, each with one time.
#[derive(Debug, Clone)]
pub(super) struct TimerQueue<T> {
    by_time: BTreeSet<(Timestamp, T)>,
    by_timer: BTreeMap<T, Timestamp>,
}

impl<T> Default for TimerQueue<T> {
    fn default() -> Self {
        Self {
            by_time: BTreeSet::new(),
            by_timer: BTreeMap::new(),
        }
    }
}

impl<T: Ord + Clone> TimerQueue<T> {
    /// Sets a timer to `at`, in place of its time before.
    pub(super) fn set(&mut self, at: Timestamp, timer: T) {
        if let Some(before) = self.by_timer.insert(timer.clone(), at) {
            self.by_time.remove(&(before, timer.clone()));
        }
        self.by_time.insert((at, timer));
    }

    /// Sets a timer to `at`, unless it is due earlier.
    pub(super) fn no_later(&mut self, at: Timestamp, timer: T) {
        if self.by_timer.get(&timer).is_none_or(|before| *before > at) {
            self.set(at, timer);
        }
    }

    /// Removes and returns the earliest due timer.
    pub(super) fn due(&mut self, now: Timestamp) -> Option<T> {
        let (at, _) = self.by_time.first()?;
        if *at > now {
            return None;
        }
        let (_, timer) = self.by_time.pop_first()?;
        self.by_timer.remove(&timer);
        Some(timer)
    }

    /// When the next timer is due.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.by_time.first().map(|(at, _)| *at)
    }
}

impl<T: Hash> Hash for TimerQueue<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.by_time.hash(state);
    }
}
