//! Permit requests from arrival to response.
//!
//! ```text
//!            ┌── the object has the permit already ──► response at once
//! request ──►│ decided on the ledger
//!            └── hold + one compare-and-set ──► done ────► response: the permit is durable
//!                      ▲                   ├──► conflict ► read, decide again, a bounded number of times
//!                      │                   ├──► refused ─► the hold ends, 500
//!                      └─── sent again ◄───┴──► unclear ─► the hold stays, 500; sent again until a later version of
//!                                                          the VM arrives, which settles the write
//! ```
//!
//! One call per VM is in flight at a time. Further requests for the same VM wait in order, up to
//! [`MAX_WAITING`]. Every request gets a response within [`Timing::request_budget`].
//!
//! Invariants: a permit is durable before the response, and no headroom is granted twice
//! (`tests/interleavings.rs`); every request gets exactly one response
//! (`refusals::every_request_is_answered_once`).

mod digest;
mod plan;
mod queue;
mod respond;
mod writes;

use std::collections::{BTreeMap, BTreeSet};

use protocol::permit::{NamespacedName, PermitRefusal};
use protocol::time::{Span, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};

use super::decide::DecisionInputs;
use super::event::{Action, CallId, CallOutcome, PermitRequest, PermitResponse, RequestId};
use super::fair::Fair;
use super::step::StepContext;
use plan::{PermitPlan, admit, plan};
use queue::{PendingRequest, Timer, VmQueue};

/// Requests that may wait for one VM. An agent has one under way, and has given up on all others.
pub const MAX_WAITING: usize = 8;
/// Decisions on one request that are repeated because the VM changed before the write.
pub const MAX_CONFLICTS: u32 = 5;
/// Writes of unknown outcome per VM. At the limit, requests that need a write are refused.
pub const MAX_UNCLEAR: usize = 4;
/// How long an earlier agent may patch the VM after the first contact of its successor. An agent
/// gives up on a patch sooner.
const LEGACY_LASTS: Span = Span::from_secs(12);

/// Bounds on requests and calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// Longest time from a request's arrival to its response.
    pub request_budget: Span,
    /// Longest time from a call to its outcome. After that the outcome is unknown.
    pub call_budget: Span,
}

/// Counters of rare events since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct PermitAnomalies {
    /// Requests whose last permit is above the approved size.
    pub overclaims: u64,
    /// Outcomes that arrived after [`Timing::call_budget`].
    pub late_outcomes: u64,
    /// Writes of unknown outcome.
    pub unclear_writes: u64,
    /// Writes that the API server refused because the VM had a newer version.
    pub conflicts: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Permits {
    timing: Timing,
    requests: BTreeMap<RequestId, PendingRequest>,
    queues: BTreeMap<NamespacedName, VmQueue>,
    calls: BTreeMap<CallId, NamespacedName>,
    timers: BTreeSet<(Timestamp, Timer)>,
    last_call: CallId,
    anomalies: PermitAnomalies,
    fair: Fair,
}

impl Permits {
    pub(super) fn new(timing: Timing) -> Self {
        Self {
            timing,
            requests: BTreeMap::new(),
            queues: BTreeMap::new(),
            calls: BTreeMap::new(),
            timers: BTreeSet::new(),
            last_call: 0,
            anomalies: PermitAnomalies::default(),
            fair: Fair::default(),
        }
    }

    /// Drops all state. Outcomes of calls in flight will be ignored. Returns the open requests.
    pub(super) fn forget(&mut self) -> Vec<RequestId> {
        self.queues.clear();
        self.calls.clear();
        self.timers.clear();
        self.fair = Fair::default();
        std::mem::take(&mut self.requests).into_keys().collect()
    }

    pub(super) fn is_drained(&self) -> bool {
        let done = |queue: &VmQueue| queue.flight.is_none() && queue.unclear.is_empty();
        self.queues.values().all(done)
    }

    pub(super) fn anomalies(&self) -> PermitAnomalies {
        self.anomalies
    }

    pub(super) fn dump(&self) -> Value {
        let queues = self
            .queues
            .iter()
            .map(|(vm, queue)| (vm.to_string(), json!(queue)));
        json!({"waiting": self.requests.len(), "calls": self.calls.len(), "oddities": self.anomalies,
            "desks": queues.collect::<BTreeMap<_, _>>()})
    }

    pub(super) fn poll_deadline(&self) -> Option<Timestamp> {
        self.timers.first().map(|(at, _)| *at)
    }

    pub(super) fn request(
        &mut self,
        context: &mut StepContext<'_>,
        id: RequestId,
        request: PermitRequest,
    ) {
        let vm = match admit(context.ledger, &request) {
            Ok((_, vm)) => vm,
            Err((refusal, node)) => {
                let response = PermitResponse {
                    request_id: id,
                    node,
                    result: Err(refusal),
                    decision: None,
                    is_notable: false,
                };
                context.out.push_back(Action::RespondPermit(response));
                return;
            }
        };
        let pending = PendingRequest {
            request,
            vm: vm.clone(),
            conflicts: 0,
            in_flight: false,
            verified: false,
        };
        self.requests.insert(id, pending);
        let queue = self.queues.entry(vm.clone()).or_default();
        if queue.waiting.len() >= MAX_WAITING {
            return self.refuse(context, id, PermitRefusal::TimedOut);
        }
        queue.waiting.push_back(id);
        self.pump(context, &vm);
        if self.requests.contains_key(&id) {
            self.timers
                .insert((context.now + self.timing.request_budget, Timer::Request(id)));
        }
    }

    /// Serves waiting requests of a VM until one of them puts a call in flight.
    fn pump(&mut self, context: &mut StepContext<'_>, vm: &NamespacedName) {
        while let Some(queue) = self.queues.get_mut(vm) {
            if queue.flight.is_some() {
                return;
            }
            match queue.waiting.pop_front() {
                Some(id) => self.serve(context, id),
                None => {
                    if queue.is_idle() && queue.denied.is_none() {
                        self.queues.remove(vm);
                    }
                    return;
                }
            }
        }
    }

    fn serve(&mut self, context: &mut StepContext<'_>, id: RequestId) {
        let Some(pending) = self.requests.get(&id) else {
            return;
        };
        let ledger = &*context.ledger;
        // Pod, VM and node may have changed while the request waited.
        let planned = match admit(ledger, &pending.request) {
            Err((refusal, _)) => Err(Some(refusal)),
            Ok((_, vm)) if vm != pending.vm => Err(Some(PermitRefusal::PodNotFound)),
            Ok((pod, vm)) => ledger.vm(&vm).map_or(Err(None), |entry| {
                // The request is about an earlier VM of the same name.
                if entry.view.uid != pod.view.vm_uid {
                    return Err(Some(PermitRefusal::PodNotFound));
                }
                let inputs = DecisionInputs {
                    now: context.now,
                    ledger,
                    fair: &self.fair,
                };
                plan(inputs, &pod.view, entry, &pending.request).map_err(Some)
            }),
        };
        match planned {
            Ok(plan) if plan.decision.rests_on_claim() && !pending.verified => {
                self.verify(context, id);
            }
            Ok(plan) => self.carry_out(context, id, plan),
            Err(Some(refusal)) => self.refuse(context, id, refusal),
            Err(None) => {
                // The watch of VMs may be behind that of pods. A read decides whether there is such
                // a VM.
                let vm = pending.vm.clone();
                if self.decide_again(context, id).is_some() {
                    self.read(context, &vm, Some(id));
                }
            }
        }
    }

    /// Reads the VM, because the request claims a permit above the approved size. The watch may be
    /// behind.
    fn verify(&mut self, context: &mut StepContext<'_>, id: RequestId) {
        let Some(pending) = self.requests.get_mut(&id) else {
            return;
        };
        pending.verified = true;
        pending.in_flight = true;
        let vm = pending.vm.clone();
        self.read(context, &vm, Some(id));
    }

    /// Sends the write of a plan. Responds now if the permit is durable, otherwise after the write.
    fn carry_out(&mut self, context: &mut StepContext<'_>, id: RequestId, plan: PermitPlan) {
        let PermitPlan {
            decision,
            write,
            is_durable,
        } = plan;
        let first = |pending: &PendingRequest| pending.conflicts == 0;
        if decision.overclaimed && self.requests.get(&id).is_some_and(first) {
            self.anomalies.overclaims += 1;
        }
        let vm = &decision.vm;
        context.ledger.set_claim(vm, decision.claim);
        let is_first = |pending: &PendingRequest| pending.request.last_permit.is_none();
        if self.requests.get(&id).is_some_and(is_first) {
            self.keep_legacy(context, vm);
        }
        let queue = self.queues.get(vm);
        if !is_durable && queue.is_some_and(|queue| queue.unclear.len() >= MAX_UNCLEAR) {
            return self.refuse(context, id, PermitRefusal::PatchFailed);
        }
        match (is_durable, write) {
            (true, write) => {
                self.permit(context, id, decision);
                if let Some(write) = write {
                    self.send(context, write, None);
                }
            }
            (false, Some(write)) => {
                if let Some(pending) = self.requests.get_mut(&id) {
                    pending.in_flight = true;
                }
                self.send(context, write, Some((id, decision)));
            }
            (false, None) => self.refuse(context, id, PermitRefusal::PatchFailed),
        }
    }

    /// Counts the approved size of an earlier agent for [`LEGACY_LASTS`] after a first contact. A
    /// patch of that agent, up to the size approved then, may still arrive. The size counts even if
    /// the new agent gives it back.
    fn keep_legacy(&mut self, context: &mut StepContext<'_>, vm: &NamespacedName) {
        let Some(entry) = context.ledger.vm(vm) else {
            return;
        };
        let legacy = entry.legacy.field_max(entry.view.floor());
        let end = context.now + LEGACY_LASTS;
        context.ledger.set_legacy(vm, legacy, end);
        self.timers.insert((end, Timer::Legacy(vm.clone())));
    }

    pub(super) fn vm_gone(&mut self, vm: &NamespacedName) {
        self.fair.gone(vm);
        if let Some(queue) = self.queues.get_mut(vm) {
            queue.unclear.clear();
            queue.denied = None;
            if queue.is_idle() {
                self.queues.remove(vm);
            }
        }
    }

    pub(super) fn tick(&mut self, context: &mut StepContext<'_>) {
        while let Some((at, _)) = self.timers.first() {
            if *at > context.now {
                return;
            }
            let Some((_, timer)) = self.timers.pop_first() else {
                return;
            };
            match timer {
                Timer::Request(id) => {
                    let in_flight = self
                        .requests
                        .get(&id)
                        .is_some_and(|pending| pending.in_flight);
                    let refusal = if in_flight {
                        PermitRefusal::PatchFailed
                    } else {
                        PermitRefusal::TimedOut
                    };
                    self.refuse(context, id, refusal);
                }
                Timer::Call(id) if self.calls.contains_key(&id) => {
                    let lost = CallOutcome::Unclear("no outcome in time".into());
                    self.call_done(context, id, lost);
                }
                Timer::Call(_) => {}
                Timer::Settle(vm) => self.settle(context, &vm),
                Timer::Legacy(vm) => context.ledger.end_legacy(&vm, context.now),
            }
        }
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
