//! Who is connected to the runner's port at its pod's address, and who has to go when all places
//! are taken.
//!
//! Anybody may connect there, and only by what they ask is it seen who they are. So whoever comes
//! is given a place, if need be that of whom has been waited for longest: one that has not asked
//! anything yet, or not again. Who is being answered stays, and who has shown the token.

use std::collections::BTreeSet;

/// One place, by a number that is given once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seat(u64);

/// A place for who came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seated {
    /// The place that was given.
    pub seat: Seat,
    /// Whoever has to go for it.
    pub instead_of: Option<Seat>,
}

/// All places for connections, and the order in which idle connections have to go.
#[derive(Debug)]
pub struct Seats {
    most: usize,
    next: u64,
    taken: BTreeSet<Seat>,
    /// Those that are waited for, the longest first.
    waited_for: Vec<Seat>,
}

impl Seats {
    /// So many, all free.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            next: 0,
            taken: BTreeSet::new(),
            waited_for: Vec::new(),
        }
    }

    /// Gives who came a place, and waits for it; `None` where nobody can be sent away.
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

    /// It has asked something: it is waited for no more.
    pub fn asks(&mut self, seat: Seat) {
        self.waited_for.retain(|other| *other != seat);
    }

    /// It has its answer, and is waited for again.
    pub fn is_answered(&mut self, seat: Seat) {
        self.asks(seat);
        if self.taken.contains(&seat) {
            self.waited_for.push(seat);
        }
    }

    /// It is gone.
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
        // What comes late of one that was sent away means nothing.
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
