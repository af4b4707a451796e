//! Digests of the requests and calls under way, whole and per VM. They leave out call ids and the
//! times of reports, because no decision depends on them.

use std::hash::{Hash, Hasher};

use protocol::permit::NamespacedName;
use protocol::time::Timestamp;

use super::Permits;
use super::queue::{Timer, VmCall};
use crate::core::event::RequestId;

impl Permits {
    pub(in crate::core) fn digest(&self, hasher: &mut impl Hasher) {
        (&self.requests, &self.fair).hash(hasher);
        for (vm, queue) in &self.queues {
            let flight = queue.flight.as_ref().map(|flight| match flight {
                VmCall::Write(sent, waiter) => (Some(sent), waiter.as_ref().map(|(id, _)| *id)),
                VmCall::Read(_, waiter) => (None, *waiter),
            });
            (vm, flight, &queue.waiting, &queue.unclear).hash(hasher);
            queue.settle_attempts.hash(hasher);
        }
        // Sorted, so that the order does not depend on call ids.
        let timers = self.timers.iter().filter_map(|(at, timer)| match timer {
            Timer::Request(id) => {
                let waits = self.requests.contains_key(id);
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
        // A request is identified by its position among those of its VM.
        let requests = self
            .requests
            .iter()
            .filter(|(_, pending)| pending.vm == *vm);
        let (ids, requests): (Vec<&RequestId>, Vec<_>) = requests.unzip();
        let place = |id: &RequestId| ids.iter().position(|of| *of == id);
        requests.hash(hasher);
        self.queues.contains_key(vm).hash(hasher);
        if let Some(queue) = self.queues.get(vm) {
            let flight = queue.flight.as_ref().map(|flight| match flight {
                VmCall::Write(sent, waiter) => {
                    (Some(sent), waiter.as_ref().map(|(id, _)| place(id)))
                }
                VmCall::Read(_, waiter) => (None, waiter.as_ref().map(place)),
            });
            let waiting: Vec<_> = queue.waiting.iter().map(place).collect();
            (flight, waiting, &queue.unclear, queue.settle_attempts).hash(hasher);
        }
        let mut timers: Vec<(Timestamp, u8, Option<usize>)> = Vec::new();
        for (at, timer) in &self.timers {
            match timer {
                Timer::Request(id) if place(id).is_some() => timers.push((*at, 0, place(id))),
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
