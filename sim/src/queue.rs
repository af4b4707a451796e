//! The one queue of events: by time, and at the same time by the order in which they were put in.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use protocol::time::Timestamp;

struct Entry<E> {
    at: Timestamp,
    serial: u64,
    event: E,
}

impl<E> Entry<E> {
    fn rank(&self) -> (Timestamp, u64) {
        (self.at, self.serial)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// See the module.
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    serial: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
            serial: 0,
        }
    }
}

impl<E> Queue<E> {
    /// Puts an event in.
    pub(crate) fn put(&mut self, at: Timestamp, event: E) {
        self.serial += 1;
        let serial = self.serial;
        self.heap.push(Reverse(Entry { at, serial, event }));
    }

    /// Takes the next one.
    pub(crate) fn take(&mut self) -> Option<(Timestamp, E)> {
        let Reverse(entry) = self.heap.pop()?;
        Some((entry.at, entry.event))
    }

    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_first_and_equals_in_order() {
        let mut queue = Queue::default();
        for (at, name) in [(2, 'c'), (1, 'a'), (2, 'd'), (1, 'b')] {
            queue.put(Timestamp(at), name);
        }
        assert_eq!(queue.len(), 4);
        let order: String = std::iter::from_fn(|| queue.take())
            .map(|(_, name)| name)
            .collect();
        assert_eq!(order, "abcd");
        assert_eq!(queue.len(), 0);
    }
}
