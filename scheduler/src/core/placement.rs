//! Placement without a kube-scheduler: which node an unbound pod of ours goes to.
//!
//! ```text
//! pending ──► fits on a node ──► bind hold on the best node ──► POST binding ──► observed bound: done
//!    ▲                                   │                          ├─ refused: the hold ends ──► back-off
//!    │                                   └◄─── same node again ◄────┴─ unclear or conflict: the hold stays
//!    └── no headroom: reported on the pod; tried again when headroom appears, or after a pause
//! ```
//!
//! The hold is on the ledger that permits use, so a binding and a grant never take the same
//! headroom. A binding of unknown outcome is repeated on the *same* node until it is observed or
//! the pod is gone, because it may still have an effect.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use protocol::permit::NamespacedName;
use protocol::time::{Span, Timestamp, WallTime};
use serde::Serialize;
use serde_json::{Value, json};

use super::event::{Action, BindOutcome, CallId, NO_ROOM_MESSAGE};
use super::ledger::{Fit, Ledger, vm_key};
use super::pod_requests::PodView;
use super::step::StepContext;

/// First pause after a failed attempt. Each further pause is twice as long.
const FIRST_PAUSE: Span = Span::from_secs(1);
/// Longest pause between attempts.
const LAST_PAUSE: Span = Span::from_secs(10);
/// How long a successful binding may stay unobserved before it is repeated.
const UNSEEN_PAUSE: Span = Span::from_secs(10);
/// Pause before want of headroom is reported on the same pod again.
const REPORT_QUIET: Span = Span::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
struct Pending {
    uid: String,
    flight: Option<CallId>,
    next_try: Timestamp,
    attempts: u32,
    /// The headroom epoch of the last attempt. A later one is worth another.
    tried_epoch: Option<u64>,
    /// Whether an earlier attempt may still have an effect.
    unclear: bool,
    /// When want of headroom was last reported.
    #[serde(rename = "told")]
    reported: Option<Timestamp>,
}

/// The order of attempts: the oldest pod first, then by name.
type Rank = (WallTime, NamespacedName);

#[derive(Debug, Default, Clone)]
pub(super) struct Placement {
    enabled: bool,
    pending: BTreeMap<Rank, Pending>,
    last_call: CallId,
    /// The headroom epoch of the last look.
    looked_at: Option<u64>,
}

impl Placement {
    pub(super) fn new(enabled: bool) -> Self {
        Self {
            enabled,
            ..Self::default()
        }
    }

    pub(super) fn pod_applied(&mut self, ledger: &Ledger, pod: &PodView) {
        let rank = (pod.created, pod.key.clone());
        let ours = pod.scheduler_name == ledger.rules().scheduler_name;
        if !self.enabled || !ours || pod.node.is_some() || pod.terminal || pod.deleting {
            self.pending.remove(&rank);
            return;
        }
        let entry = self.pending.get(&rank);
        if entry.is_none_or(|entry| entry.uid != pod.uid) {
            let fresh = Pending {
                uid: pod.uid.clone(),
                flight: None,
                next_try: Timestamp(0),
                attempts: 0,
                tried_epoch: None,
                unclear: false,
                reported: None,
            };
            self.pending.insert(rank, fresh);
        }
        self.looked_at = None;
    }

    /// Drops all state. Outcomes of calls in flight will be ignored.
    pub(super) fn forget(&mut self) {
        self.pending.clear();
        self.looked_at = None;
    }

    pub(super) fn digest(&self, hasher: &mut impl Hasher) {
        self.pending.hash(hasher);
    }

    pub(super) fn pod_deleted(&mut self, pod: &PodView) {
        self.pending.remove(&(pod.created, pod.key.clone()));
    }

    pub(super) fn is_drained(&self) -> bool {
        let done = |entry: &Pending| entry.flight.is_none() && !entry.unclear;
        self.pending.values().all(done)
    }

    pub(super) fn dump(&self) -> Value {
        let pending = self
            .pending
            .iter()
            .map(|((_, pod), entry)| (pod.to_string(), json!(entry)));
        json!({"enabled": self.enabled, "pending": pending.collect::<BTreeMap<_, _>>()})
    }

    pub(super) fn poll_deadline(&self) -> Option<Timestamp> {
        let waiting = self.pending.values().filter(|entry| entry.flight.is_none());
        waiting.map(|entry| entry.next_try).min()
    }

    pub(super) fn tick(&mut self, context: &mut StepContext<'_>) {
        let epoch = context.ledger.room_epoch();
        let due = self.poll_deadline().is_some_and(|at| at <= context.now);
        if self.pending.is_empty() || (!due && self.looked_at == Some(epoch)) {
            return;
        }
        let ranks: Vec<Rank> = self.pending.keys().cloned().collect();
        for rank in ranks {
            let Some(entry) = self.pending.get_mut(&rank) else {
                continue;
            };
            let epoch = context.ledger.room_epoch();
            let room = entry.tried_epoch.is_none_or(|tried| tried < epoch) && !entry.unclear;
            if entry.flight.is_none() && (room || entry.next_try <= context.now) {
                entry.tried_epoch = Some(epoch);
                attempt(context, &rank.1, entry, &mut self.last_call);
            }
        }
        self.looked_at = Some(context.ledger.room_epoch());
    }

    pub(super) fn bind_done(
        &mut self,
        context: &mut StepContext<'_>,
        id: CallId,
        outcome: &BindOutcome,
    ) {
        let mut entries = self.pending.values_mut();
        let Some(entry) = entries.find(|entry| entry.flight == Some(id)) else {
            return;
        };
        entry.flight = None;
        match outcome {
            BindOutcome::Bound => {
                entry.unclear = true;
                entry.next_try = context.now + UNSEEN_PAUSE;
                return;
            }
            BindOutcome::Refused(_) if !entry.unclear => {
                context.ledger.set_bind_hold(&entry.uid, None);
            }
            BindOutcome::Refused(_) => {}
            BindOutcome::Conflict | BindOutcome::Unclear(_) => entry.unclear = true,
        }
        entry.next_try = context.now + pause(entry.attempts);
    }
}

fn pause(attempts: u32) -> Span {
    Span(
        FIRST_PAUSE
            .0
            .saturating_mul(1 << attempts.saturating_sub(1).min(10))
            .min(LAST_PAUSE.0),
    )
}

fn attempt(
    context: &mut StepContext<'_>,
    pod: &NamespacedName,
    entry: &mut Pending,
    last_call: &mut CallId,
) {
    let Some(known) = context.ledger.pod(&entry.uid) else {
        return;
    };
    entry.attempts += 1;
    entry.next_try = context.now + pause(entry.attempts);
    let choice = match &known.bind_hold {
        // An earlier binding may have an effect there, so no other node is tried.
        Some(node) => Ok(node.clone()),
        None => best_node(context.ledger, &known.view),
    };
    match choice {
        Ok(node) => {
            *last_call += 1;
            entry.flight = Some(*last_call);
            context.ledger.set_bind_hold(&entry.uid, Some(node.clone()));
            let uid = entry.uid.clone();
            context.out.push_back(Action::Bind {
                id: *last_call,
                pod: pod.clone(),
                uid,
                node,
            });
        }
        Err(message) => {
            let is_quiet = entry
                .reported
                .is_some_and(|at| at + REPORT_QUIET > context.now);
            if !is_quiet {
                entry.reported = Some(context.now);
                let uid = entry.uid.clone();
                context.out.push_back(Action::Unschedulable {
                    pod: pod.clone(),
                    uid,
                    message,
                });
            }
        }
    }
}

/// The node with the best score that the pod fits on, the first by name among equals.
///
/// # Errors
/// The reason, as text for the pod.
fn best_node(ledger: &Ledger, pod: &PodView) -> Result<String, String> {
    let open = ledger
        .nodes()
        .filter(|node| node.is_open() && !is_beside_itself(ledger, pod, &node.name));
    let mut best: Option<(u8, &str)> = None;
    for node in open {
        match ledger.fits(pod, &node.name) {
            Fit::Fits => {
                let score = ledger.score(pod, &node.name);
                if best.is_none_or(|(highest, _)| score > highest) {
                    best = Some((score, &node.name));
                }
            }
            Fit::Unreadable(problem) => return Err(format!("Pod is not readable: {problem}")),
            Fit::NoRoom(_) | Fit::UnknownNode | Fit::ForeignScheduler => {}
        }
    }
    best.map(|(_, name)| name.to_owned())
        .ok_or_else(|| NO_ROOM_MESSAGE.to_owned())
}

/// Whether the node has another pod of the VM, and the pod must be apart from it.
fn is_beside_itself(ledger: &Ledger, pod: &PodView, node: &str) -> bool {
    let Some(vm) = vm_key(pod).filter(|_| pod.apart) else {
        return false;
    };
    ledger.pods_of(&vm).any(|other| {
        let is_there = other.view.node.as_deref() == Some(node);
        other.view.uid != pod.uid && is_there && !other.view.terminal
    })
}

#[cfg(test)]
mod tests;
