//! Bounds the connections to the runner's port at its pod's address, and chooses the one to close
//! when the bound is reached.
//!
//! Any host may connect, and a peer authenticates only with its first request. So a new connection
//! is admitted, if necessary in place of the one that has been idle longest: it has sent no
//! request, or none since its last response. A connection with a request in progress stays, and so
//! does an authenticated one.

use std::collections::BTreeSet;

/// A place in the limiter. Its number is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(u64);

/// Slot of a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// Slot that was allocated to the new connection.
    pub slot: Slot,
    /// Idle connection to close in exchange, if all slots were in use.
    pub evicted: Option<Slot>,
}

/// Slots in use, and the idle ones among them in order.
#[derive(Debug)]
pub struct ConnectionLimiter {
    capacity: usize,
    next: u64,
    in_use: BTreeSet<Slot>,
    /// Idle slots, the longest idle first.
    idle: Vec<Slot>,
}

impl ConnectionLimiter {
    /// Allows at most `capacity` connections.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            next: 0,
            in_use: BTreeSet::new(),
            idle: Vec::new(),
        }
    }

    /// Admits a connection as idle. `None` if all slots are in use and none is idle.
    pub fn admit(&mut self) -> Option<Admission> {
        let mut evicted = None;
        if self.in_use.len() >= self.capacity {
            let longest = *self.idle.first()?;
            self.release(longest);
            evicted = Some(longest);
        }
        let slot = Slot(self.next);
        self.next += 1;
        self.in_use.insert(slot);
        self.idle.push(slot);
        Some(Admission { slot, evicted })
    }

    /// A request begins: the connection is not idle.
    pub fn begin_request(&mut self, slot: Slot) {
        self.idle.retain(|other| *other != slot);
    }

    /// The request has its response: the connection is idle again.
    pub fn end_request(&mut self, slot: Slot) {
        self.begin_request(slot);
        if self.in_use.contains(&slot) {
            self.idle.push(slot);
        }
    }

    /// The connection is closed. A slot that was evicted is no error.
    pub fn release(&mut self, slot: Slot) {
        self.begin_request(slot);
        self.in_use.remove(&slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(limiter: &mut ConnectionLimiter) -> Slot {
        let admission = limiter.admit().expect("a slot");
        assert_eq!(admission.evicted, None);
        admission.slot
    }

    #[test]
    fn longest_idle_connection_is_evicted_first() {
        let mut limiter = ConnectionLimiter::new(3);
        let [first, second, third] = [(); 3].map(|()| admit(&mut limiter));
        limiter.begin_request(first);
        limiter.end_request(first);
        for gone in [second, third, first] {
            let admission = limiter.admit().expect("a slot");
            assert_eq!(admission.evicted, Some(gone));
            limiter.begin_request(admission.slot);
        }
        assert_eq!(limiter.admit(), None, "all are being answered");
    }

    #[test]
    fn connection_in_a_request_keeps_its_slot() {
        let mut limiter = ConnectionLimiter::new(2);
        let [asks, idle] = [(); 2].map(|()| admit(&mut limiter));
        limiter.begin_request(asks);
        let admission = limiter.admit().expect("a slot");
        assert_eq!(admission.evicted, Some(idle));
        // Late calls for an evicted slot have no effect.
        limiter.end_request(idle);
        limiter.release(idle);
        let other = limiter.admit().expect("a slot");
        assert_eq!(other.evicted, Some(admission.slot));
    }

    #[test]
    fn released_slot_is_free() {
        let mut limiter = ConnectionLimiter::new(1);
        for _ in 0..3 {
            let slot = admit(&mut limiter);
            limiter.begin_request(slot);
            assert_eq!(limiter.admit(), None);
            limiter.release(slot);
        }
    }
}
