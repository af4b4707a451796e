//! Requests of a kube-scheduler while it places pods: filter, prioritize, preempt, bind.
//!
//! The first three read the ledger. Bind checks and takes a hold on the ledger that permits use, so
//! that a binding and a grant never take the same headroom:
//!
//! ```text
//! bind ──► the watch has not shown the pod: waits, a moment
//!   └──► headroom? ── no ──► refused
//!          └─ yes ──► hold ──► POST binding ──► done ──────────────► response; the hold stays until the watch shows it
//!                                 ├──► refused ────────────────────► response; the hold ends
//!                                 └──► conflict, unclear ──► read ─┬► bound: response, with the node
//!                                                                  └► not bound: response; after a conflict the hold ends,
//!                                                                     else it stays ── pause ──► read ──► it ends
//! ```
//!
//! A hold of unknown outcome ends by a read that begins after the call can have an effect and shows
//! that it had none. Until then the pod fits on that node alone. kube-scheduler's next attempt
//! repeats the binding there or waits. Source: docs/compatibility/scheduler.md §8.3.

mod bind;
mod fit;
mod reads;
mod waiting;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use protocol::time::{Span, Timestamp};
use serde_json::{Value, json};

use super::event::{
    Action, BindOutcome, CallId, ExtenderRequest, ExtenderResponse, PodReadOutcome, RequestId,
    Unbound, Unfit,
};
use super::step::StepContext;
use bind::{Bind, Doubt, Stage};
use fit::unfit;
use reads::{filter, preempt, prioritize};
use waiting::WaitingPods;

/// How long a binding waits for the watch to show its pod. kube-scheduler's watch may be ahead.
const UNSEEN_PATIENCE: Span = Span::from_secs(1);
/// Longest delay of a call's effect after the call ended without a response.
const SETTLE: Span = Span::from_secs(2);
/// Pause after a read that failed.
const READ_PAUSE: Span = Span::from_secs(1);
/// Bindings under way at a time. kube-scheduler has far fewer.
pub const MAX_BINDS: usize = 1024;
/// Ids of calls of the extender are above this, ids of calls of placement below it.
const FIRST_CALL: CallId = 1 << 62;

#[derive(Debug, Default, Clone)]
pub(super) struct Extender {
    binds: BTreeMap<String, Bind>,
    calls: CallId,
    /// Refused pods. `None` without a kube-scheduler.
    waiting: Option<WaitingPods>,
}

impl Extender {
    /// `is_used`: whether there is a kube-scheduler.
    pub(super) fn new(is_used: bool) -> Self {
        Self {
            waiting: is_used.then(WaitingPods::default),
            ..Self::default()
        }
    }

    pub(super) fn request(
        &mut self,
        context: &mut StepContext<'_>,
        request_id: RequestId,
        request: ExtenderRequest,
    ) {
        let response = match request {
            ExtenderRequest::Filter { pod, nodes } => {
                let verdicts = filter(context.ledger, &pod, nodes);
                if let Some(waiting) = &mut self.waiting {
                    waiting.filtered(&pod, &verdicts);
                }
                ExtenderResponse::Filtered(verdicts)
            }
            ExtenderRequest::Prioritize { pod, nodes } => {
                ExtenderResponse::Scored(prioritize(context.ledger, &pod, nodes))
            }
            ExtenderRequest::Preempt { pod, victims } => {
                ExtenderResponse::Preempted(preempt(context.ledger, &pod, victims))
            }
            ExtenderRequest::Bind {
                pod,
                uid,
                node,
                strict,
            } => {
                let bind = Bind {
                    pod,
                    node,
                    strict,
                    request_id: Some(request_id),
                    stage: Stage::Unseen {
                        until: context.now + UNSEEN_PATIENCE,
                    },
                    lands_until: None,
                };
                return self.bind(context, request_id, uid, bind);
            }
        };
        context.out.push_back(Action::RespondExtender {
            request_id,
            response,
        });
    }

    fn bind(
        &mut self,
        context: &mut StepContext<'_>,
        request_id: RequestId,
        uid: String,
        mut bind: Bind,
    ) {
        let refusal = match self.binds.get(&uid) {
            None if self.binds.len() >= MAX_BINDS => Some(Unbound::Busy),
            None => None,
            Some(old) if old.request_id.is_some() => Some(Unbound::Busy),
            Some(old) if old.node != bind.node => {
                Some(Unbound::Unfit(Unfit::HeldBy(old.node.clone())))
            }
            Some(old) => {
                bind.lands_until = old.lands_until;
                None
            }
        };
        if let Some(refusal) = refusal {
            let response = ExtenderResponse::Bound(Err(refusal));
            return context.out.push_back(Action::RespondExtender {
                request_id,
                response,
            });
        }
        self.binds.insert(uid.clone(), bind);
        self.attempt(context, &uid);
    }

    /// Sends a binding whose pod the watch has shown.
    fn attempt(&mut self, context: &mut StepContext<'_>, uid: &str) {
        let Some(bind) = self.binds.get_mut(uid) else {
            return;
        };
        let Some(known) = context.ledger.pod(uid) else {
            return;
        };
        let result = match &known.view.node {
            Some(node) if *node == bind.node => Some(Ok(())),
            Some(node) => Some(Err(Unbound::Elsewhere(node.clone()))),
            None => {
                let fit = unfit(context.ledger, &known.view, &bind.node);
                let refusal = fit.filter(|unfit| bind.strict || !unfit.is_about_room());
                refusal.map(|unfit| Err(Unbound::Unfit(unfit)))
            }
        };
        if let Some(result) = result {
            return self.settle(context, uid, result);
        }
        self.calls += 1;
        let id = FIRST_CALL + self.calls;
        bind.stage = Stage::Posting(id);
        let (pod, node) = (bind.pod.clone(), bind.node.clone());
        context.ledger.set_bind_hold(uid, Some(node.clone()));
        let uid = uid.to_owned();
        context.out.push_back(Action::Bind { id, pod, uid, node });
    }

    /// Handles the outcome of a binding. Returns whether the call is of this part.
    pub(super) fn bind_done(
        &mut self,
        context: &mut StepContext<'_>,
        id: CallId,
        outcome: &BindOutcome,
    ) -> bool {
        let posted = |bind: &Bind| bind.stage == Stage::Posting(id);
        let found = self.binds.iter_mut().find(|(_, bind)| posted(bind));
        let Some((uid, bind)) = found else {
            return id > FIRST_CALL;
        };
        let uid = uid.clone();
        match outcome {
            BindOutcome::Bound => self.settle(context, &uid, Ok(())),
            BindOutcome::Refused(why) => {
                self.settle(context, &uid, Err(Unbound::Refused(why.clone())));
            }
            BindOutcome::Conflict => {
                self.read(context, &uid, |id| Stage::Reading(id, Doubt::Conflict))
            }
            BindOutcome::Unclear(why) => {
                bind.lands_until = Some(context.now + SETTLE);
                let doubt = Doubt::Unclear(why.clone());
                self.read(context, &uid, |id| Stage::Reading(id, doubt));
            }
        }
        true
    }

    fn read(
        &mut self,
        context: &mut StepContext<'_>,
        uid: &str,
        stage: impl FnOnce(CallId) -> Stage,
    ) {
        if let Some(bind) = self.binds.get_mut(uid) {
            self.calls += 1;
            let id = FIRST_CALL + self.calls;
            bind.stage = stage(id);
            let pod = bind.pod.clone();
            context.out.push_back(Action::ReadPod { id, pod });
        }
    }

    pub(super) fn pod_read(
        &mut self,
        context: &mut StepContext<'_>,
        id: CallId,
        seen: PodReadOutcome,
    ) {
        let is_read = |stage: &Stage| match stage {
            Stage::Reading(read, _) | Stage::Proving(read) => *read == id,
            _ => false,
        };
        let found = self.binds.iter().find(|(_, bind)| is_read(&bind.stage));
        let Some((uid, bind)) = found else { return };
        let (uid, node) = (uid.clone(), bind.node.clone());
        let doubt = match &bind.stage {
            Stage::Reading(_, doubt) => Some(doubt.clone()),
            _ => None,
        };
        let result = match (seen, doubt) {
            (PodReadOutcome::Pod(pod), _) if pod.uid != uid => Err(Unbound::UnknownPod),
            (PodReadOutcome::Gone, _) => Err(Unbound::UnknownPod),
            (PodReadOutcome::Pod(pod), doubt) => match (pod.node, doubt) {
                (Some(at), _) if at == node => Ok(()),
                (Some(at), _) => Err(Unbound::Elsewhere(at)),
                // This read began when the call could have no effect any more.
                (None, None) => return self.release(context, &uid),
                (None, Some(Doubt::Conflict)) => Err(Unbound::Refused(
                    "the pod changed or is being deleted".into(),
                )),
                (None, Some(Doubt::Unclear(why))) => Err(Unbound::Unclear(why)),
            },
            (PodReadOutcome::Unclear(why), doubt) => {
                if let Some(bind) = self.binds.get_mut(&uid) {
                    let until = bind.lands_until.unwrap_or(context.now);
                    bind.lands_until = Some(until.max(context.now + READ_PAUSE));
                }
                let why = match doubt {
                    Some(Doubt::Unclear(first)) => first,
                    _ => why,
                };
                Err(Unbound::Unclear(why))
            }
        };
        self.settle(context, &uid, result);
    }

    /// Sends the response. Keeps or ends the hold.
    fn settle(&mut self, context: &mut StepContext<'_>, uid: &str, result: Result<(), Unbound>) {
        let Some(bind) = self.binds.get_mut(uid) else {
            return;
        };
        if let Some(request_id) = bind.request_id.take() {
            let response = ExtenderResponse::Bound(result.clone());
            context.out.push_back(Action::RespondExtender {
                request_id,
                response,
            });
        }
        let until = bind.lands_until;
        match (result, until) {
            // The watch ends the hold.
            (Ok(()), _) => {
                self.binds.remove(uid);
            }
            // The pod counts on its node until the watch shows it there.
            (Err(Unbound::Elsewhere(node)), _) => {
                context.ledger.set_bind_hold(uid, Some(node));
                self.binds.remove(uid);
            }
            (Err(Unbound::UnknownPod), _) | (Err(_), None) => self.release(context, uid),
            (Err(_), Some(until)) => bind.stage = Stage::Landing { until },
        }
    }

    /// Ends a binding that has no effect.
    fn release(&mut self, context: &mut StepContext<'_>, uid: &str) {
        context.ledger.set_bind_hold(uid, None);
        self.binds.remove(uid);
    }

    pub(super) fn tick(&mut self, context: &mut StepContext<'_>) {
        let uids: Vec<String> = self.binds.keys().cloned().collect();
        for uid in uids {
            let stage = self.binds.get(&uid).map(|bind| bind.stage.clone());
            match stage {
                Some(Stage::Unseen { .. }) if context.ledger.pod(&uid).is_some() => {
                    self.attempt(context, &uid);
                }
                Some(Stage::Unseen { until }) if until <= context.now => {
                    self.settle(context, &uid, Err(Unbound::UnknownPod));
                }
                Some(Stage::Landing { until }) if until <= context.now => {
                    self.read(context, &uid, Stage::Proving);
                }
                _ => {}
            }
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.tick(context);
        }
    }

    pub(super) fn poll_deadline(&self) -> Option<Timestamp> {
        let due = self.binds.values().filter_map(|bind| match bind.stage {
            Stage::Unseen { until } | Stage::Landing { until } => Some(until),
            _ => None,
        });
        let waiting = self.waiting.as_ref().and_then(WaitingPods::poll_deadline);
        due.chain(waiting).min()
    }

    /// The pod is bound, has ended or is gone. That settles its bindings.
    pub(super) fn pod_decided(&mut self, uid: &str) {
        if let Some(waiting) = &mut self.waiting {
            waiting.pod_decided(uid);
        }
        if self
            .binds
            .get(uid)
            .is_some_and(|bind| bind.request_id.is_none())
        {
            self.binds.remove(uid);
        }
    }

    /// Drops all state. Returns the open requests.
    pub(super) fn forget(&mut self) -> Vec<RequestId> {
        self.waiting = self.waiting.take().map(|_| WaitingPods::default());
        let binds = std::mem::take(&mut self.binds);
        binds
            .into_values()
            .filter_map(|bind| bind.request_id)
            .collect()
    }

    pub(super) fn is_drained(&self) -> bool {
        self.binds.is_empty()
    }

    pub(super) fn digest(&self, hasher: &mut impl Hasher) {
        self.binds.hash(hasher);
        if let Some(waiting) = &self.waiting {
            waiting.digest(hasher);
        }
    }

    pub(super) fn dump(&self) -> Value {
        let waiting = self.waiting.as_ref().map(WaitingPods::dump);
        json!({"binds": self.binds, "waiting": waiting})
    }
}

#[cfg(test)]
mod tests;
