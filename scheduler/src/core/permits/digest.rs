//! What tells apart two states of what is under way, whole and in parts. Which number a call got,
//! and when what was told to people, decide nothing.

use std::hash::{Hash, Hasher};

use protocol::permit::NamespacedName;
use protocol::time::Timestamp;

use super::{Flight, Permits, TicketId, Timer};

impl Permits {
    pub(in crate::core) fn digest(&self, hasher: &mut impl Hasher) {
        (&self.tickets, &self.fair).hash(hasher);
        for (vm, desk) in &self.desks {
            let flight = desk.flight.as_ref().map(|flight| match flight {
                Flight::Write(sent, ticket) => (Some(sent), ticket.as_ref().map(|(id, _)| *id)),
                Flight::Read(_, ticket) => (None, *ticket),
            });
            (vm, flight, &desk.waiting, &desk.unclear).hash(hasher);
            desk.settle_attempts.hash(hasher);
        }
        // In an order that the numbers of calls have no part in.
        let timers = self.timers.iter().filter_map(|(at, timer)| match timer {
            Timer::Ticket(id) => {
                let waits = self.tickets.contains_key(id);
                waits.then_some((at, 0, Some(id), None))
            }
            Timer::Call(id) => Some((at, 1, None, Some(self.calls.get(id)?))),
            Timer::Settle(vm) => Some((at, 2, None, Some(vm))),
            Timer::Legacy(vm) => Some((at, 3, None, Some(vm))),
        });
        let mut timers: Vec<_> = timers.collect();
        timers.sort_unstable();
        timers.hash(hasher);
    }

    pub(in crate::core) fn digest_of(&self, vm: &NamespacedName, hasher: &mut impl Hasher) {
        // A request is told by its place among those of its VM.
        let tickets = self.tickets.iter().filter(|(_, ticket)| ticket.vm == *vm);
        let (ids, tickets): (Vec<&TicketId>, Vec<_>) = tickets.unzip();
        let place = |id: &TicketId| ids.iter().position(|of| *of == id);
        tickets.hash(hasher);
        self.desks.contains_key(vm).hash(hasher);
        if let Some(desk) = self.desks.get(vm) {
            let flight = desk.flight.as_ref().map(|flight| match flight {
                Flight::Write(sent, ticket) => {
                    (Some(sent), ticket.as_ref().map(|(id, _)| place(id)))
                }
                Flight::Read(_, ticket) => (None, ticket.as_ref().map(place)),
            });
            let waiting: Vec<_> = desk.waiting.iter().map(place).collect();
            (flight, waiting, &desk.unclear, desk.settle_attempts).hash(hasher);
        }
        let mut timers: Vec<(Timestamp, u8, Option<usize>)> = Vec::new();
        for (at, timer) in &self.timers {
            match timer {
                Timer::Ticket(id) if place(id).is_some() => timers.push((*at, 0, place(id))),
                Timer::Call(id) if self.calls.get(id) == Some(vm) => timers.push((*at, 1, None)),
                Timer::Settle(of) if of == vm => timers.push((*at, 2, None)),
                Timer::Legacy(of) if of == vm => timers.push((*at, 3, None)),
                _ => {}
            }
        }
        timers.sort_unstable();
        timers.hash(hasher);
    }

    pub(in crate::core) fn digest_shared(&self, hasher: &mut impl Hasher) {
        self.fair.hash(hasher);
    }
}
