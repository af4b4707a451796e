//! What is to be done when: each thing once.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use protocol::time::Timestamp;

/// Things to do, each with one time.
#[derive(Debug, Clone)]
pub(super) struct Agenda<T> {
    by_time: BTreeSet<(Timestamp, T)>,
    by_thing: BTreeMap<T, Timestamp>,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self {
            by_time: BTreeSet::new(),
            by_thing: BTreeMap::new(),
        }
    }
}

impl<T: Ord + Clone> Agenda<T> {
    /// Does it at that time, whenever it was to be done before.
    pub(super) fn set(&mut self, at: Timestamp, thing: T) {
        if let Some(before) = self.by_thing.insert(thing.clone(), at) {
            self.by_time.remove(&(before, thing.clone()));
        }
        self.by_time.insert((at, thing));
    }

    /// Does it at that time at the latest.
    pub(super) fn no_later(&mut self, at: Timestamp, thing: T) {
        if self.by_thing.get(&thing).is_none_or(|before| *before > at) {
            self.set(at, thing);
        }
    }

    /// Takes what is due, the earliest first.
    pub(super) fn due(&mut self, now: Timestamp) -> Option<T> {
        let (at, _) = self.by_time.first()?;
        if *at > now {
            return None;
        }
        let (_, thing) = self.by_time.pop_first()?;
        self.by_thing.remove(&thing);
        Some(thing)
    }

    /// When the next is due.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.by_time.first().map(|(at, _)| *at)
    }
}

impl<T: Hash> Hash for Agenda<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.by_time.hash(state);
    }
}
