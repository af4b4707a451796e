//! Writes and reads of VM objects: sending them and handling their outcomes.

use protocol::permit::{NamespacedName, PermitRefusal};
use protocol::time::{Span, Timestamp};

use super::queue::{HeldWrite, Timer, VmCall};
use super::{MAX_CONFLICTS, Permits};
use crate::core::decision::PermitDecision;
use crate::core::event::{Action, CallId, CallOutcome, RequestId};
use crate::core::step::StepContext;

/// First pause before a write of unknown outcome is sent again. Each further pause is twice as
/// long.
const SETTLE_FIRST: Span = Span::from_millis(500);
/// Longest pause before a write of unknown outcome is sent again.
const SETTLE_LAST: Span = Span::from_secs(30);

impl Permits {
    fn next_call(&mut self, vm: &NamespacedName) -> CallId {
        self.last_call += 1;
        self.calls.insert(self.last_call, vm.clone());
        self.last_call
    }

    pub(super) fn send(
        &mut self,
        context: &mut StepContext<'_>,
        mut held: HeldWrite,
        waiter: Option<(RequestId, Box<PermitDecision>)>,
    ) {
        held.write.id = self.next_call(&held.write.vm);
        let write = held.write.clone();
        context.ledger.add_hold(&write.vm, held.hold);
        self.fly(context.now, write.vm.clone(), VmCall::Write(held, waiter));
        context.out.push_back(Action::WriteVm(write));
    }

    pub(super) fn read(
        &mut self,
        context: &mut StepContext<'_>,
        vm: &NamespacedName,
        waiter: Option<RequestId>,
    ) {
        let id = self.next_call(vm);
        self.fly(context.now, vm.clone(), VmCall::Read(id, waiter));
        context.out.push_back(Action::ReadVm { id, vm: vm.clone() });
    }

    fn fly(&mut self, now: Timestamp, vm: NamespacedName, flight: VmCall) {
        self.timers
            .insert((now + self.timing.call_budget, Timer::Call(flight.id())));
        self.queues.entry(vm).or_default().flight = Some(flight);
    }

    pub(in crate::core) fn call_done(
        &mut self,
        context: &mut StepContext<'_>,
        id: CallId,
        outcome: CallOutcome,
    ) {
        let vm = self.calls.remove(&id);
        let queue = vm.as_ref().and_then(|vm| self.queues.get_mut(vm));
        let flight = queue.and_then(|queue| queue.flight.take_if(|flight| flight.id() == id));
        let observed = match &outcome {
            CallOutcome::Done(view) => Some((**view).clone()),
            _ => None,
        };
        if let Some(view) = observed {
            // The response is true even if no request waits for it, unless the object is gone
            // since. A VM that is gone has no pods.
            let known = context
                .ledger
                .vm(&view.key)
                .map(|entry| entry.view.uid == view.uid);
            if known.unwrap_or_else(|| context.ledger.live_pods_of(&view.key) > 0) {
                context.ledger.vm_observed(view);
            }
        }
        let (Some(vm), Some(flight)) = (vm, flight) else {
            self.anomalies.late_outcomes += 1;
            return;
        };
        match flight {
            VmCall::Write(held, waiter) => self.write_done(context, held, waiter, outcome),
            VmCall::Read(_, waiter) => self.read_done(context, waiter, &outcome),
        }
        self.forget_settled(context, &vm);
        self.pump(context, &vm);
    }

    fn write_done(
        &mut self,
        context: &mut StepContext<'_>,
        held: HeldWrite,
        waiter: Option<(RequestId, Box<PermitDecision>)>,
        outcome: CallOutcome,
    ) {
        match outcome {
            CallOutcome::Done(view) => {
                let written = view.approved_text.as_ref() == Some(&held.write.approved);
                let stays = view.version > held.write.base || !self.may_be_undone(context, &held);
                match waiter {
                    Some((id, decision)) if written && stays => self.permit(context, id, decision),
                    Some((id, _)) => self.refuse(context, id, PermitRefusal::PatchFailed),
                    None => {}
                }
            }
            CallOutcome::Conflict => {
                self.anomalies.conflicts += 1;
                self.end_hold(context, &held);
                let again = waiter.and_then(|(id, _)| self.decide_again(context, id));
                // The next decision needs the newer state. It also settles earlier writes.
                let unsettled = self
                    .queues
                    .get(&held.write.vm)
                    .is_some_and(|queue| !queue.unclear.is_empty());
                if again.is_some() || unsettled {
                    self.read(context, &held.write.vm, again);
                }
            }
            CallOutcome::NotFound | CallOutcome::Refused(_) => {
                self.end_hold(context, &held);
                if let Some((id, _)) = waiter {
                    self.refuse(context, id, PermitRefusal::PatchFailed);
                }
            }
            CallOutcome::Unclear(_) => {
                self.anomalies.unclear_writes += 1;
                if let Some((id, _)) = waiter {
                    self.refuse(context, id, PermitRefusal::PatchFailed);
                }
                let queue = self.queues.entry(held.write.vm.clone()).or_default();
                if !queue.unclear.iter().any(|other| other.hold == held.hold) {
                    queue.unclear.push(held);
                }
            }
        }
    }

    /// Whether another write may still change the approved size. A write that changes nothing keeps
    /// the object's version. It therefore does not settle other writes to that version.
    fn may_be_undone(&mut self, context: &mut StepContext<'_>, held: &HeldWrite) -> bool {
        let vm = &held.write.vm;
        context.ledger.drop_hold(vm, held.hold);
        let Some(queue) = self.queues.get_mut(vm) else {
            return false;
        };
        queue.unclear.retain(|other| other.hold != held.hold);
        !queue.unclear.is_empty()
    }

    /// Ends the hold of a write that has no effect, unless an equal write may still have one.
    fn end_hold(&self, context: &mut StepContext<'_>, held: &HeldWrite) {
        let queue = self.queues.get(&held.write.vm);
        if !queue.is_some_and(|queue| queue.unclear.iter().any(|other| other.hold == held.hold)) {
            context.ledger.drop_hold(&held.write.vm, held.hold);
        }
    }

    pub(super) fn decide_again(
        &mut self,
        context: &mut StepContext<'_>,
        id: RequestId,
    ) -> Option<RequestId> {
        let pending = self.requests.get_mut(&id)?;
        pending.conflicts += 1;
        pending.in_flight = true;
        if pending.conflicts > MAX_CONFLICTS {
            self.refuse(context, id, PermitRefusal::PatchFailed);
            return None;
        }
        Some(id)
    }

    fn read_done(
        &mut self,
        context: &mut StepContext<'_>,
        waiter: Option<RequestId>,
        outcome: &CallOutcome,
    ) {
        let Some(id) = waiter else { return };
        match outcome {
            CallOutcome::Done(_) => self.serve(context, id),
            _ => self.refuse(context, id, PermitRefusal::PatchFailed),
        }
    }

    /// Drops the writes that the newest version settles. Sets a timer to send the others again.
    fn forget_settled(&mut self, context: &StepContext<'_>, vm: &NamespacedName) {
        let version = context.ledger.vm(vm).map(|entry| entry.view.version);
        let Some(queue) = self.queues.get_mut(vm) else {
            return;
        };
        queue
            .unclear
            .retain(|held| version.is_some_and(|version| held.write.base >= version));
        if queue.unclear.is_empty() {
            queue.settle_attempts = 0;
        } else if queue.flight.is_none() {
            let pause = SETTLE_FIRST
                .0
                .saturating_mul(1 << queue.settle_attempts.min(10));
            let at = context.now + Span(pause.min(SETTLE_LAST.0));
            self.timers.insert((at, Timer::Settle(vm.clone())));
        }
    }

    pub(super) fn settle(&mut self, context: &mut StepContext<'_>, vm: &NamespacedName) {
        let version = context.ledger.vm(vm).map(|entry| entry.view.version);
        let Some(queue) = self.queues.get_mut(vm) else {
            return;
        };
        queue
            .unclear
            .retain(|held| version.is_some_and(|version| held.write.base >= version));
        if queue.flight.is_some() {
            return;
        }
        queue.settle_attempts += 1;
        if let Some(held) = queue.unclear.last().cloned() {
            self.send(context, held, None);
        } else {
            queue.settle_attempts = 0;
            self.pump(context, vm);
        }
    }
}
