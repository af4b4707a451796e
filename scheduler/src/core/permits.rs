//! Permit requests from arrival to answer.
//!
//! ```text
//!            ┌── approved already is what is to be ──► answered at once
//! request ──►│ decided under the ledger
//!            └── hold + one conditional write ──► done ────► answered: it is written now
//!                      ▲                     ├──► conflict ► read, decide again, a bounded number of times
//!                      │                     ├──► refused ─► the hold ends, 500
//!                      └─── sent again ◄─────┴──► unclear ─► the hold stays, 500; sent again until a later version of
//!                                                            the VM is seen, which proves the write's fate
//! ```
//!
//! One call per VM is in flight at a time; further requests for the same VM wait in order, up to
//! [`MAX_WAITING`]. Every request is answered within [`Timing::request_budget`].
//!
//! Invariants: durable before said, and no room given twice (`tests/interleavings.rs`); every
//! request is answered exactly once (`refusals::every_request_is_answered_once`).

mod digest;
mod tell;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};

use protocol::permit::{AgentRequest, NamespacedName, PermitRefusal};
use protocol::time::{Span, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};

use super::decide::{Decision, Limit, decide};
use super::event::{Action, Answer, CallId, CallOutcome, TicketId, VmWrite, annotation_text};
use super::fair::Fair;
use super::ledger::{GrantHold, Ledger, PodEntry, VmEntry, vm_key};
use super::pressure::Wishes;
use super::view::{Noted, PodView};

/// Requests that may wait for one VM. An agent has one under way; more are repeats it has given up
/// on.
pub const MAX_WAITING: usize = 8;
/// Times one request is decided anew because its VM changed under it.
pub const MAX_CONFLICTS: u32 = 5;
/// Writes of unclear fate that one VM may have; with more, requests for it are refused until one is
/// settled.
pub const MAX_UNCLEAR: usize = 4;
/// How long after a first contact an agent's predecessor may yet patch the VM to what it was
/// permitted: the time after which an agent gives up on a patch, and some.
const LEGACY_LASTS: Span = Span::from_secs(12);
/// First pause before a write of unclear fate is sent again; doubled each time.
const SETTLE_FIRST: Span = Span::from_millis(500);
/// Longest such pause.
const SETTLE_LAST: Span = Span::from_secs(30);

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// From a request's arrival to its answer.
    pub request_budget: Span,
    /// From sending a call to its outcome; past it the call is taken as lost.
    pub call_budget: Span,
}

/// Counts of what should be rare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Oddities {
    /// Requests whose last permit went beyond what is approved.
    pub overclaims: u64,
    /// Outcomes of calls nobody waited for any more.
    pub late_outcomes: u64,
    /// Writes whose fate was unclear.
    pub unclear_writes: u64,
    /// Writes that met a newer version.
    pub conflicts: u64,
}

/// What can wake this part.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Timer {
    /// A request must be answered.
    Ticket(TicketId),
    /// A call must have ended.
    Call(CallId),
    /// A write of unclear fate is to be sent again.
    Settle(NamespacedName),
    /// What an earlier agent was permitted is not counted any more.
    Legacy(NamespacedName),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Ticket {
    request: AgentRequest,
    vm: NamespacedName,
    conflicts: u32,
    in_flight: bool,
    /// The VM was read because the request says more was permitted than is known.
    verified: bool,
}

impl Hash for Ticket {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        // The load figures of a request decide nothing and have no hash.
        let AgentRequest {
            proto_version,
            pod,
            compute_unit,
            resources,
            last_permit,
            metrics: _,
        } = &self.request;
        (proto_version, pod, compute_unit, resources, last_permit).hash(hasher);
        (&self.vm, self.conflicts, self.in_flight, self.verified).hash(hasher);
    }
}

/// A write and what is counted for it.
#[derive(Debug, Clone, PartialEq, Hash, Serialize)]
struct Sent {
    write: VmWrite,
    hold: GrantHold,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
enum Flight {
    Write(Sent, Option<(TicketId, Box<Decision>)>),
    Read(CallId, Option<TicketId>),
}

impl Flight {
    const fn id(&self) -> CallId {
        match self {
            Self::Write(sent, _) => sent.write.id,
            Self::Read(id, _) => *id,
        }
    }
}

/// What is under way for one VM.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct Desk {
    flight: Option<Flight>,
    waiting: VecDeque<TicketId>,
    unclear: Vec<Sent>,
    settle_attempts: u32,
    denied: Option<(Timestamp, Vec<Limit>)>,
}

impl Desk {
    fn is_idle(&self) -> bool {
        self.flight.is_none() && self.waiting.is_empty() && self.unclear.is_empty()
    }
}

/// See the module's description.
#[derive(Debug, Clone)]
pub(super) struct Permits {
    timing: Timing,
    tickets: BTreeMap<TicketId, Ticket>,
    desks: BTreeMap<NamespacedName, Desk>,
    calls: BTreeMap<CallId, NamespacedName>,
    timers: BTreeSet<(Timestamp, Timer)>,
    last_call: CallId,
    oddities: Oddities,
    fair: Fair,
}

/// What this part works with besides itself.
pub(super) struct Bench<'a> {
    pub(super) now: Timestamp,
    pub(super) ledger: &'a mut Ledger,
    pub(super) wishes: &'a mut Wishes,
    pub(super) out: &'a mut VecDeque<Action>,
}

impl Permits {
    pub(super) fn new(timing: Timing) -> Self {
        Self {
            timing,
            tickets: BTreeMap::new(),
            desks: BTreeMap::new(),
            calls: BTreeMap::new(),
            timers: BTreeSet::new(),
            last_call: 0,
            oddities: Oddities::default(),
            fair: Fair::default(),
        }
    }

    /// Forgets everything; outcomes of what is under way are not waited for. Returns the requests
    /// not answered.
    pub(super) fn forget(&mut self) -> Vec<TicketId> {
        self.desks.clear();
        self.calls.clear();
        self.timers.clear();
        self.fair = Fair::default();
        std::mem::take(&mut self.tickets).into_keys().collect()
    }

    pub(super) fn is_drained(&self) -> bool {
        let done = |desk: &Desk| desk.flight.is_none() && desk.unclear.is_empty();
        self.desks.values().all(done)
    }

    pub(super) fn oddities(&self) -> Oddities {
        self.oddities
    }

    pub(super) fn dump(&self) -> Value {
        let desks = self
            .desks
            .iter()
            .map(|(vm, desk)| (vm.to_string(), json!(desk)));
        json!({"waiting": self.tickets.len(), "calls": self.calls.len(), "oddities": self.oddities,
            "desks": desks.collect::<BTreeMap<_, _>>()})
    }

    pub(super) fn poll_deadline(&self) -> Option<Timestamp> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// A request arrived.
    pub(super) fn request(&mut self, bench: &mut Bench<'_>, id: TicketId, request: AgentRequest) {
        let vm = match admit(bench.ledger, &request) {
            Ok((_, vm)) => vm,
            Err((refusal, node)) => {
                let answer = Answer {
                    ticket: id,
                    node,
                    result: Err(refusal),
                    decision: None,
                    news: false,
                };
                bench.out.push_back(Action::Answer(answer));
                return;
            }
        };
        let ticket = Ticket {
            request,
            vm: vm.clone(),
            conflicts: 0,
            in_flight: false,
            verified: false,
        };
        self.tickets.insert(id, ticket);
        let desk = self.desks.entry(vm.clone()).or_default();
        if desk.waiting.len() >= MAX_WAITING {
            return self.refuse(bench, id, PermitRefusal::TimedOut);
        }
        desk.waiting.push_back(id);
        self.pump(bench, &vm);
        if self.tickets.contains_key(&id) {
            self.timers
                .insert((bench.now + self.timing.request_budget, Timer::Ticket(id)));
        }
    }

    /// Takes up waiting requests of a VM until one of them puts a call in flight.
    fn pump(&mut self, bench: &mut Bench<'_>, vm: &NamespacedName) {
        while let Some(desk) = self.desks.get_mut(vm) {
            if desk.flight.is_some() {
                return;
            }
            match desk.waiting.pop_front() {
                Some(id) => self.serve(bench, id),
                None => {
                    if desk.is_idle() && desk.denied.is_none() {
                        self.desks.remove(vm);
                    }
                    return;
                }
            }
        }
    }

    fn serve(&mut self, bench: &mut Bench<'_>, id: TicketId) {
        let Some(ticket) = self.tickets.get(&id) else {
            return;
        };
        let ledger = &*bench.ledger;
        // Everything is looked up again: a wait may have changed any of it.
        let planned = match admit(ledger, &ticket.request) {
            Err((refusal, _)) => Err(Some(refusal)),
            Ok((_, vm)) if vm != ticket.vm => Err(Some(PermitRefusal::PodNotFound)),
            Ok((pod, vm)) => ledger.vm(&vm).map_or(Err(None), |entry| {
                // What its agent was permitted is not of the VM that has the name now.
                if entry.view.uid != pod.view.vm_uid {
                    return Err(Some(PermitRefusal::PodNotFound));
                }
                let ground = (ledger, &self.fair, bench.now);
                plan(ground, &pod.view, entry, &ticket.request).map_err(Some)
            }),
        };
        match planned {
            Ok(plan) if plan.decision.rests_on_claim() && !ticket.verified => {
                self.verify(bench, id);
            }
            Ok(plan) => self.carry_out(bench, id, plan),
            Err(Some(refusal)) => self.refuse(bench, id, refusal),
            Err(None) => {
                // The watch of VMs is behind that of pods; one look decides whether there is such a
                // VM.
                let vm = ticket.vm.clone();
                if self.decide_again(bench, id).is_some() {
                    self.read(bench, &vm, Some(id));
                }
            }
        }
    }

    /// A request says that more was permitted than is known. The watch may be behind; the object
    /// itself says what is true.
    fn verify(&mut self, bench: &mut Bench<'_>, id: TicketId) {
        let Some(ticket) = self.tickets.get_mut(&id) else {
            return;
        };
        ticket.verified = true;
        ticket.in_flight = true;
        let vm = ticket.vm.clone();
        self.read(bench, &vm, Some(id));
    }

    /// Writes what a decision needs written, and answers now or when it is.
    fn carry_out(&mut self, bench: &mut Bench<'_>, id: TicketId, plan: Plan) {
        let Plan {
            decision,
            sent,
            stands,
        } = plan;
        let first = |ticket: &Ticket| ticket.conflicts == 0;
        if decision.overclaimed && self.tickets.get(&id).is_some_and(first) {
            self.oddities.overclaims += 1;
        }
        let vm = &decision.vm;
        bench.ledger.set_claim(vm, decision.claim);
        let is_first = |ticket: &Ticket| ticket.request.last_permit.is_none();
        if self.tickets.get(&id).is_some_and(is_first) {
            self.keep_legacy(bench, vm);
        }
        let desk = self.desks.get(vm);
        if !stands && desk.is_some_and(|desk| desk.unclear.len() >= MAX_UNCLEAR) {
            return self.refuse(bench, id, PermitRefusal::PatchFailed);
        }
        match (stands, sent) {
            (true, sent) => {
                self.permit(bench, id, decision);
                if let Some(sent) = sent {
                    self.send(bench, sent, None);
                }
            }
            (false, Some(sent)) => {
                if let Some(ticket) = self.tickets.get_mut(&id) {
                    ticket.in_flight = true;
                }
                self.send(bench, sent, Some((id, decision)));
            }
            (false, None) => self.refuse(bench, id, PermitRefusal::PatchFailed),
        }
    }

    /// The first contact of an agent says what its VM uses. A patch of the agent before it, to as
    /// much as was approved by then, may be on its way: that much stays counted until such a patch
    /// has landed or never will, also if this agent gives it back meanwhile.
    fn keep_legacy(&mut self, bench: &mut Bench<'_>, vm: &NamespacedName) {
        let Some(entry) = bench.ledger.vm(vm) else {
            return;
        };
        let legacy = entry.legacy.field_max(entry.view.floor());
        let end = bench.now + LEGACY_LASTS;
        bench.ledger.set_legacy(vm, legacy, end);
        self.timers.insert((end, Timer::Legacy(vm.clone())));
    }

    fn next_call(&mut self, vm: &NamespacedName) -> CallId {
        self.last_call += 1;
        self.calls.insert(self.last_call, vm.clone());
        self.last_call
    }

    fn send(
        &mut self,
        bench: &mut Bench<'_>,
        mut sent: Sent,
        ticket: Option<(TicketId, Box<Decision>)>,
    ) {
        sent.write.id = self.next_call(&sent.write.vm);
        let write = sent.write.clone();
        bench.ledger.add_hold(&write.vm, sent.hold);
        self.fly(bench.now, write.vm.clone(), Flight::Write(sent, ticket));
        bench.out.push_back(Action::WriteVm(write));
    }

    fn read(&mut self, bench: &mut Bench<'_>, vm: &NamespacedName, ticket: Option<TicketId>) {
        let id = self.next_call(vm);
        self.fly(bench.now, vm.clone(), Flight::Read(id, ticket));
        bench.out.push_back(Action::ReadVm { id, vm: vm.clone() });
    }

    fn fly(&mut self, now: Timestamp, vm: NamespacedName, flight: Flight) {
        self.timers
            .insert((now + self.timing.call_budget, Timer::Call(flight.id())));
        self.desks.entry(vm).or_default().flight = Some(flight);
    }

    /// A write or a read ended.
    pub(super) fn call_done(&mut self, bench: &mut Bench<'_>, id: CallId, outcome: CallOutcome) {
        let vm = self.calls.remove(&id);
        let desk = vm.as_ref().and_then(|vm| self.desks.get_mut(vm));
        let flight = desk.and_then(|desk| desk.flight.take_if(|flight| flight.id() == id));
        let observed = match &outcome {
            CallOutcome::Done(view) => Some((**view).clone()),
            _ => None,
        };
        if let Some(view) = observed {
            // True whoever waits for it, unless the object has gone since; then it has no pods
            // either.
            let known = bench
                .ledger
                .vm(&view.key)
                .map(|entry| entry.view.uid == view.uid);
            if known.unwrap_or_else(|| bench.ledger.live_pods_of(&view.key) > 0) {
                bench.ledger.vm_observed(view);
            }
        }
        let (Some(vm), Some(flight)) = (vm, flight) else {
            self.oddities.late_outcomes += 1;
            return;
        };
        match flight {
            Flight::Write(sent, ticket) => self.write_done(bench, sent, ticket, outcome),
            Flight::Read(_, ticket) => self.read_done(bench, ticket, &outcome),
        }
        self.forget_settled(bench, &vm);
        self.pump(bench, &vm);
    }

    fn write_done(
        &mut self,
        bench: &mut Bench<'_>,
        sent: Sent,
        ticket: Option<(TicketId, Box<Decision>)>,
        outcome: CallOutcome,
    ) {
        match outcome {
            CallOutcome::Done(view) => {
                let written = view.approved_text.as_ref() == Some(&sent.write.approved);
                let stays = view.version > sent.write.base || !self.may_be_undone(bench, &sent);
                match ticket {
                    Some((id, decision)) if written && stays => self.permit(bench, id, decision),
                    Some((id, _)) => self.refuse(bench, id, PermitRefusal::PatchFailed),
                    None => {}
                }
            }
            CallOutcome::Conflict => {
                self.oddities.conflicts += 1;
                self.end_hold(bench, &sent);
                let again = ticket.and_then(|(id, _)| self.decide_again(bench, id));
                // The state it met instead is needed to go on, and settles what is unclear.
                let unsettled = self
                    .desks
                    .get(&sent.write.vm)
                    .is_some_and(|desk| !desk.unclear.is_empty());
                if again.is_some() || unsettled {
                    self.read(bench, &sent.write.vm, again);
                }
            }
            CallOutcome::NotFound | CallOutcome::Refused(_) => {
                self.end_hold(bench, &sent);
                if let Some((id, _)) = ticket {
                    self.refuse(bench, id, PermitRefusal::PatchFailed);
                }
            }
            CallOutcome::Unclear(_) => {
                self.oddities.unclear_writes += 1;
                if let Some((id, _)) = ticket {
                    self.refuse(bench, id, PermitRefusal::PatchFailed);
                }
                let desk = self.desks.entry(sent.write.vm.clone()).or_default();
                if !desk.unclear.iter().any(|other| other.hold == sent.hold) {
                    desk.unclear.push(sent);
                }
            }
        }
    }

    /// A write that changed nothing has left the version as it was, so that it proves nothing of
    /// the others to that version: whether one of those may yet land.
    fn may_be_undone(&mut self, bench: &mut Bench<'_>, sent: &Sent) -> bool {
        let vm = &sent.write.vm;
        bench.ledger.drop_hold(vm, sent.hold);
        let Some(desk) = self.desks.get_mut(vm) else {
            return false;
        };
        desk.unclear.retain(|other| other.hold != sent.hold);
        !desk.unclear.is_empty()
    }

    /// Ends the hold of a write that did not and will not happen, unless an equal one may still.
    fn end_hold(&self, bench: &mut Bench<'_>, sent: &Sent) {
        let desk = self.desks.get(&sent.write.vm);
        if !desk.is_some_and(|desk| desk.unclear.iter().any(|other| other.hold == sent.hold)) {
            bench.ledger.drop_hold(&sent.write.vm, sent.hold);
        }
    }

    fn decide_again(&mut self, bench: &mut Bench<'_>, id: TicketId) -> Option<TicketId> {
        let ticket = self.tickets.get_mut(&id)?;
        ticket.conflicts += 1;
        ticket.in_flight = true;
        if ticket.conflicts > MAX_CONFLICTS {
            self.refuse(bench, id, PermitRefusal::PatchFailed);
            return None;
        }
        Some(id)
    }

    fn read_done(
        &mut self,
        bench: &mut Bench<'_>,
        ticket: Option<TicketId>,
        outcome: &CallOutcome,
    ) {
        let Some(id) = ticket else { return };
        match outcome {
            CallOutcome::Done(_) => self.serve(bench, id),
            _ => self.refuse(bench, id, PermitRefusal::PatchFailed),
        }
    }

    /// Drops writes whose fate the newest state proves; plans to send the others again.
    fn forget_settled(&mut self, bench: &Bench<'_>, vm: &NamespacedName) {
        let version = bench.ledger.vm(vm).map(|entry| entry.view.version);
        let Some(desk) = self.desks.get_mut(vm) else {
            return;
        };
        desk.unclear
            .retain(|sent| version.is_some_and(|version| sent.write.base >= version));
        if desk.unclear.is_empty() {
            desk.settle_attempts = 0;
        } else if desk.flight.is_none() {
            let pause = SETTLE_FIRST
                .0
                .saturating_mul(1 << desk.settle_attempts.min(10));
            let at = bench.now + Span(pause.min(SETTLE_LAST.0));
            self.timers.insert((at, Timer::Settle(vm.clone())));
        }
    }

    fn settle(&mut self, bench: &mut Bench<'_>, vm: &NamespacedName) {
        let version = bench.ledger.vm(vm).map(|entry| entry.view.version);
        let Some(desk) = self.desks.get_mut(vm) else {
            return;
        };
        desk.unclear
            .retain(|sent| version.is_some_and(|version| sent.write.base >= version));
        if desk.flight.is_some() {
            return;
        }
        desk.settle_attempts += 1;
        if let Some(sent) = desk.unclear.last().cloned() {
            self.send(bench, sent, None);
        } else {
            desk.settle_attempts = 0;
            self.pump(bench, vm);
        }
    }

    /// A VM is gone: nothing about it is unclear any more.
    pub(super) fn vm_gone(&mut self, vm: &NamespacedName) {
        self.fair.gone(vm);
        if let Some(desk) = self.desks.get_mut(vm) {
            desk.unclear.clear();
            desk.denied = None;
            if desk.is_idle() {
                self.desks.remove(vm);
            }
        }
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, bench: &mut Bench<'_>) {
        while let Some((at, _)) = self.timers.first() {
            if *at > bench.now {
                return;
            }
            let Some((_, timer)) = self.timers.pop_first() else {
                return;
            };
            match timer {
                Timer::Ticket(id) => {
                    let in_flight = self.tickets.get(&id).is_some_and(|ticket| ticket.in_flight);
                    let refusal = if in_flight {
                        PermitRefusal::PatchFailed
                    } else {
                        PermitRefusal::TimedOut
                    };
                    self.refuse(bench, id, refusal);
                }
                Timer::Call(id) if self.calls.contains_key(&id) => {
                    let lost = CallOutcome::Unclear("no outcome in time".into());
                    self.call_done(bench, id, lost);
                }
                Timer::Call(_) => {}
                Timer::Settle(vm) => self.settle(bench, &vm),
                Timer::Legacy(vm) => bench.ledger.end_legacy(&vm, bench.now),
            }
        }
    }
}

/// A decision and what it needs.
struct Plan {
    decision: Box<Decision>,
    /// What is to be written, if anything.
    sent: Option<Sent>,
    /// Whether what the answer rests on is written already.
    stands: bool,
}

fn plan(
    ground: (&Ledger, &Fair, Timestamp),
    pod: &PodView,
    vm: &VmEntry,
    request: &AgentRequest,
) -> Result<Plan, PermitRefusal> {
    let node = pod.node.as_deref().unwrap_or_default();
    let decision = Box::new(decide(ground, pod, node, vm, request)?);
    let view = &vm.view;
    if !decision.autoscaled {
        // Its annotations are not ours to write and not counted, so nothing beyond its use was
        // permitted.
        return Ok(Plan {
            decision,
            sent: None,
            stands: true,
        });
    }
    let wish = request.resources;
    let write = VmWrite {
        id: 0,
        vm: view.key.clone(),
        base: view.version,
        approved_before: view.approved_text.clone(),
        has_annotations: view.has_annotations,
        unit: annotation_text(request.compute_unit),
        requested: annotation_text(view.most().map_or(wish, |most| wish.field_min(most))),
        approved: annotation_text(decision.approved),
    };
    // With a write of unclear fate, what is seen approved may not be so any more; and where more is
    // used than is asked for, what is seen is most likely from before the agent's own patch, which
    // the write then finds out.
    let stands = vm.holds.is_empty()
        && decision.approved == decision.permit
        && view.approved == Noted::Value(decision.approved);
    let noted = stands
        && view.unit_text.as_ref() == Some(&write.unit)
        && view.requested_text.as_ref() == Some(&write.requested)
        && view.approved_text.as_ref() == Some(&write.approved);
    let hold = GrantHold {
        base: view.version,
        target: decision.approved,
    };
    Ok(Plan {
        decision,
        sent: (!noted).then_some(Sent { write, hold }),
        stands,
    })
}

/// The pod and the VM a request is about, or the refusal, with the node if it is known.
fn admit<'a>(
    ledger: &'a Ledger,
    request: &AgentRequest,
) -> Result<(&'a PodEntry, NamespacedName), (PermitRefusal, Option<String>)> {
    request.validate().map_err(|refusal| (refusal, None))?;
    let pod = ledger
        .pod_named(&request.pod)
        .ok_or((PermitRefusal::PodNotFound, None))?;
    let Some(node) = &pod.view.node else {
        return Err((PermitRefusal::NodeUnknown, None));
    };
    match vm_key(&pod.view) {
        Some(vm) => Ok((pod, vm)),
        None => Err((PermitRefusal::NotAVm, Some(node.clone()))),
    }
}

#[cfg(test)]
mod forged;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod tests;
