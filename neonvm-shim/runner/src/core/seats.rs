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
pub struct Seat(u64);

/// Slot of a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seated {
    /// Slot that was allocated to the new connection.
    pub seat: Seat,
    /// Idle connection to close in exchange, if all slots were in use.
    pub instead_of: Option<Seat>,
}

/// Slots in use, and the idle ones among them in order.
#[derive(Debug)]
pub struct Seats {
    most: usize,
    next: u64,
    taken: BTreeSet<Seat>,
    /// Idle slots, the longest idle first.
    waited_for: Vec<Seat>,
}

impl Seats {
    /// Allows at most `capacity` connections.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            next: 0,
            taken: BTreeSet::new(),
            waited_for: Vec::new(),
        }
    }

    /// Admits a connection as idle. `None` if all slots are in use and none is idle.
    pub fn arrives(&mut self) -> Option<Seated> {
        let mut instead_of = None;
        if self.taken.len() >= self.most {
            let longest = *self.waited_for.first()?;
            self.leaves(longest);
            instead_of = Some(longest);
        }
        let seat = Seat(self.next);
        self.next += 1;
        self.taken.insert(seat);
        self.waited_for.push(seat);
        Some(Seated { seat, instead_of })
    }

    /// A request begins: the connection is not idle.
    pub fn asks(&mut self, seat: Seat) {
        self.waited_for.retain(|other| *other != seat);
    }

    /// The request has its response: the connection is idle again.
    pub fn is_answered(&mut self, seat: Seat) {
        self.asks(seat);
        if self.taken.contains(&seat) {
            self.waited_for.push(seat);
        }
    }

    /// The connection is closed. A slot that was evicted is no error.
    pub fn leaves(&mut self, seat: Seat) {
        self.asks(seat);
        self.taken.remove(&seat);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrives(seats: &mut Seats) -> Seat {
        let seated = seats.arrives().expect("a place");
        assert_eq!(seated.instead_of, None);
        seated.seat
    }

    #[test]
    fn who_has_been_waited_for_longest_goes_first() {
        let mut seats = Seats::new(3);
        let [first, second, third] = [(); 3].map(|()| arrives(&mut seats));
        seats.asks(first);
        seats.is_answered(first);
        for gone in [second, third, first] {
            let seated = seats.arrives().expect("a place");
            assert_eq!(seated.instead_of, Some(gone));
            seats.asks(seated.seat);
        }
        assert_eq!(seats.arrives(), None, "all are being answered");
    }

    #[test]
    fn who_is_being_answered_keeps_its_place() {
        let mut seats = Seats::new(2);
        let [asks, waited_for] = [(); 2].map(|()| arrives(&mut seats));
        seats.asks(asks);
        let seated = seats.arrives().expect("a place");
        assert_eq!(seated.instead_of, Some(waited_for));
        // Late calls for an evicted slot have no effect.
        seats.is_answered(waited_for);
        seats.leaves(waited_for);
        let other = seats.arrives().expect("a place");
        assert_eq!(other.instead_of, Some(seated.seat));
    }

    #[test]
    fn a_place_that_was_left_is_free() {
        let mut seats = Seats::new(1);
        for _ in 0..3 {
            let seat = arrives(&mut seats);
            seats.asks(seat);
            assert_eq!(seats.arrives(), None);
            seats.leaves(seat);
        }
    }
}
