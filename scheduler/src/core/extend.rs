//! What a kube-scheduler beside this process asks while it places pods: filter, prioritize,
//! preempt, bind.
//!
//! The first three are questions to the ledger. Bind is a check and a hold on the same ledger as
//! permits, so that a binding and a grant can never take the same room:
//!
//! ```text
//! bind ──► not seen yet: waits for the watch, a moment
//!   └──► room? ── no ──► refused
//!          └─ yes ──► hold ──► POST binding ──► done ──────────────► told; the hold stays until the watch shows it
//!                                 ├──► refused for certain ────────► told; the hold ends
//!                                 └──► conflict, unclear ──► read ─┬► it is bound: told, where
//!                                                                  └► not bound: told; after a conflict the hold ends,
//!                                                                     else it stays ── settle ──► read ──► it ends
//! ```
//!
//! A hold of unclear fate ends when a read that begins after the call can have landed shows that it
//! did not. Until then the pod fits on that node alone, so that kube-scheduler's next attempt
//! repeats the binding there or waits. Source: docs/compatibility/scheduler.md §8.3.

mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use protocol::permit::NamespacedName;
use protocol::time::{Span, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};

use super::amount::Both;
use super::event::{Action, BindOutcome, CallId, PodSeen, TicketId};
use super::ledger::{Fit, Ledger};
use super::permits::Bench;
use super::placement::NO_ROOM_MESSAGE;
use super::view::{PodProblem, PodView};
use waiting::WaitingPods;

/// How long a binding waits for its pod to be seen: kube-scheduler's watch may be ahead of ours.
const UNSEEN_PATIENCE: Span = Span::from_secs(1);
/// After a call ended without an answer: from then on it has landed or never will.
const SETTLE: Span = Span::from_secs(2);
/// Between two reads that fail.
const READ_PAUSE: Span = Span::from_secs(1);
/// Bindings under way; kube-scheduler has far fewer.
pub const MAX_BINDS: usize = 1024;
/// Calls of this part have numbers from here, those of placement smaller ones.
const FIRST_CALL: CallId = 1 << 62;

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
pub enum Ask {
    /// Which of these nodes have room for the pod?
    Filter {
        /// The pod as kube-scheduler knows it.
        pod: Box<PodView>,
        /// Nodes that passed everything else.
        nodes: Vec<String>,
    },
    /// How well would it sit on each of them?
    Prioritize {
        /// The pod as kube-scheduler knows it.
        pod: Box<PodView>,
        /// Nodes that have room.
        nodes: Vec<String>,
    },
    /// On which of these nodes would it have room if those pods were gone?
    Preempt {
        /// The pod that has no room.
        pod: Box<PodView>,
        /// Uids of the pods that would go, by node.
        victims: BTreeMap<String, Vec<String>>,
    },
    /// Bind it.
    Bind {
        /// The pod.
        pod: NamespacedName,
        /// Its uid.
        uid: String,
        /// Where to.
        node: String,
        /// Whether it is refused where there is no room any more.
        strict: bool,
    },
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Told {
    /// Not everything is listed yet, or another replica leads.
    NotReady,
    /// For each node, in the order of the question.
    Filtered(Vec<(String, Result<(), Unfit>)>),
    /// For each node, 0 to 100.
    Scored(Vec<(String, u8)>),
    /// Nodes that would have room, and all who would have to go.
    Preempted(BTreeMap<String, Vec<String>>),
    /// Whether it is bound.
    Bound(Result<(), Unbound>),
}

/// Why a node cannot take a pod. Shown to people on the pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
pub enum Unfit {
    /// What is missing, after over-commit. The words are those of the deployed plugin.
    #[error("{NO_ROOM_MESSAGE}")]
    NoRoom(Both<u128>),
    /// An earlier binding may yet land there.
    #[error("it may yet be bound to node {0}")]
    HeldBy(String),
    /// Our watch has not shown the node.
    #[error("the node is not known yet")]
    UnknownNode,
    /// Another scheduler's pod.
    #[error("spec.schedulerName is not ours")]
    ForeignScheduler,
    /// Its size is not known.
    #[error("Pod is not readable: {0}")]
    Unreadable(PodProblem),
}

impl Unfit {
    /// Whether the node could take it if other pods left.
    #[must_use]
    pub const fn is_about_room(&self) -> bool {
        matches!(self, Self::NoRoom(_))
    }
}

/// Why a pod was not bound. Shown to people in kube-scheduler's log and event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
pub enum Unbound {
    /// The node cannot take it.
    #[error(transparent)]
    Unfit(Unfit),
    /// Our watch has not shown the pod.
    #[error("the pod is not known")]
    UnknownPod,
    /// It is bound, and not where it was to go.
    #[error("the pod is bound to node {0}")]
    Elsewhere(String),
    /// Another binding of it is under way, or too many are.
    #[error("another binding is under way")]
    Busy,
    /// The API refused.
    #[error("{0}")]
    Refused(String),
    /// Nobody knows yet whether it is.
    #[error("the binding has no known end yet: {0}")]
    Unclear(String),
}

impl Unbound {
    /// The framework's name of it, for metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Unfit(unfit) if unfit.is_about_room() => "Unschedulable",
            _ => "Error",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
enum Stage {
    /// Waits for the watch to show the pod.
    Unseen { until: Timestamp },
    /// The binding is under way.
    Posting(CallId),
    /// The pod is read because of how that ended.
    Reading(CallId, Doubt),
    /// It may land until then.
    Landing { until: Timestamp },
    /// The pod is read to prove that it did not.
    Proving(CallId),
}

/// Why it is not known whether a pod was bound.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
enum Doubt {
    /// It was bound or changed already; this attempt did nothing.
    Conflict,
    Unclear(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
struct Bind {
    pod: NamespacedName,
    node: String,
    strict: bool,
    /// Who is to be told.
    ticket: Option<TicketId>,
    stage: Stage,
    /// Until when what was sent may land, if its fate is unclear.
    lands_until: Option<Timestamp>,
}

/// See the module's description.
#[derive(Debug, Default, Clone)]
pub(super) struct Extender {
    binds: BTreeMap<String, Bind>,
    calls: CallId,
    /// Pods that were refused; nothing where pods are placed without a kube-scheduler.
    waiting: Option<WaitingPods>,
}

impl Extender {
    /// `is_used`: whether there is a kube-scheduler that asks.
    pub(super) fn new(is_used: bool) -> Self {
        Self {
            waiting: is_used.then(WaitingPods::default),
            ..Self::default()
        }
    }

    pub(super) fn asked(&mut self, bench: &mut Bench<'_>, ticket: TicketId, ask: Ask) {
        let told = match ask {
            Ask::Filter { pod, nodes } => {
                let verdicts = filter(bench.ledger, &pod, nodes);
                if let Some(waiting) = &mut self.waiting {
                    waiting.filtered(&pod, &verdicts);
                }
                Told::Filtered(verdicts)
            }
            Ask::Prioritize { pod, nodes } => Told::Scored(prioritize(bench.ledger, &pod, nodes)),
            Ask::Preempt { pod, victims } => Told::Preempted(preempt(bench.ledger, &pod, victims)),
            Ask::Bind {
                pod,
                uid,
                node,
                strict,
            } => {
                let bind = Bind {
                    pod,
                    node,
                    strict,
                    ticket: Some(ticket),
                    stage: Stage::Unseen {
                        until: bench.now + UNSEEN_PATIENCE,
                    },
                    lands_until: None,
                };
                return self.bind(bench, ticket, uid, bind);
            }
        };
        bench.out.push_back(Action::Tell { ticket, told });
    }

    fn bind(&mut self, bench: &mut Bench<'_>, ticket: TicketId, uid: String, mut bind: Bind) {
        let refusal = match self.binds.get(&uid) {
            None if self.binds.len() >= MAX_BINDS => Some(Unbound::Busy),
            None => None,
            Some(old) if old.ticket.is_some() => Some(Unbound::Busy),
            Some(old) if old.node != bind.node => {
                Some(Unbound::Unfit(Unfit::HeldBy(old.node.clone())))
            }
            Some(old) => {
                bind.lands_until = old.lands_until;
                None
            }
        };
        if let Some(refusal) = refusal {
            let told = Told::Bound(Err(refusal));
            return bench.out.push_back(Action::Tell { ticket, told });
        }
        self.binds.insert(uid.clone(), bind);
        self.attempt(bench, &uid);
    }

    /// Sends a binding whose pod was seen.
    fn attempt(&mut self, bench: &mut Bench<'_>, uid: &str) {
        let Some(bind) = self.binds.get_mut(uid) else {
            return;
        };
        let Some(known) = bench.ledger.pod(uid) else {
            return;
        };
        let result = match &known.view.node {
            Some(node) if *node == bind.node => Some(Ok(())),
            Some(node) => Some(Err(Unbound::Elsewhere(node.clone()))),
            None => {
                let fit = unfit(bench.ledger, &known.view, &bind.node);
                let refusal = fit.filter(|unfit| bind.strict || !unfit.is_about_room());
                refusal.map(|unfit| Err(Unbound::Unfit(unfit)))
            }
        };
        if let Some(result) = result {
            return self.settle(bench, uid, result);
        }
        self.calls += 1;
        let id = FIRST_CALL + self.calls;
        bind.stage = Stage::Posting(id);
        let (pod, node) = (bind.pod.clone(), bind.node.clone());
        bench.ledger.set_bind_hold(uid, Some(node.clone()));
        let uid = uid.to_owned();
        bench.out.push_back(Action::Bind { id, pod, uid, node });
    }

    /// A binding ended. Says whether it was one of ours.
    pub(super) fn bind_done(
        &mut self,
        bench: &mut Bench<'_>,
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
            BindOutcome::Bound => self.settle(bench, &uid, Ok(())),
            BindOutcome::Refused(why) => {
                self.settle(bench, &uid, Err(Unbound::Refused(why.clone())));
            }
            BindOutcome::Conflict => {
                self.read(bench, &uid, |id| Stage::Reading(id, Doubt::Conflict))
            }
            BindOutcome::Unclear(why) => {
                bind.lands_until = Some(bench.now + SETTLE);
                let doubt = Doubt::Unclear(why.clone());
                self.read(bench, &uid, |id| Stage::Reading(id, doubt));
            }
        }
        true
    }

    fn read(&mut self, bench: &mut Bench<'_>, uid: &str, stage: impl FnOnce(CallId) -> Stage) {
        if let Some(bind) = self.binds.get_mut(uid) {
            self.calls += 1;
            let id = FIRST_CALL + self.calls;
            bind.stage = stage(id);
            let pod = bind.pod.clone();
            bench.out.push_back(Action::ReadPod { id, pod });
        }
    }

    /// A pod was read.
    pub(super) fn pod_read(&mut self, bench: &mut Bench<'_>, id: CallId, seen: PodSeen) {
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
            (PodSeen::Pod(pod), _) if pod.uid != uid => Err(Unbound::UnknownPod),
            (PodSeen::Gone, _) => Err(Unbound::UnknownPod),
            (PodSeen::Pod(pod), doubt) => match (pod.node, doubt) {
                (Some(at), _) if at == node => Ok(()),
                (Some(at), _) => Err(Unbound::Elsewhere(at)),
                // It began when what was sent could not land any more.
                (None, None) => return self.let_go(bench, &uid),
                (None, Some(Doubt::Conflict)) => Err(Unbound::Refused(
                    "the pod changed or is being deleted".into(),
                )),
                (None, Some(Doubt::Unclear(why))) => Err(Unbound::Unclear(why)),
            },
            (PodSeen::Unclear(why), doubt) => {
                if let Some(bind) = self.binds.get_mut(&uid) {
                    let until = bind.lands_until.unwrap_or(bench.now);
                    bind.lands_until = Some(until.max(bench.now + READ_PAUSE));
                }
                let why = match doubt {
                    Some(Doubt::Unclear(first)) => first,
                    _ => why,
                };
                Err(Unbound::Unclear(why))
            }
        };
        self.settle(bench, &uid, result);
    }

    /// Tells whoever asked, and keeps or ends the hold by what is known now.
    fn settle(&mut self, bench: &mut Bench<'_>, uid: &str, result: Result<(), Unbound>) {
        let Some(bind) = self.binds.get_mut(uid) else {
            return;
        };
        if let Some(ticket) = bind.ticket.take() {
            let told = Told::Bound(result.clone());
            bench.out.push_back(Action::Tell { ticket, told });
        }
        let until = bind.lands_until;
        match (result, until) {
            // The watch ends the hold.
            (Ok(()), _) => {
                self.binds.remove(uid);
            }
            // Counted where it is until the watch shows it.
            (Err(Unbound::Elsewhere(node)), _) => {
                bench.ledger.set_bind_hold(uid, Some(node));
                self.binds.remove(uid);
            }
            (Err(Unbound::UnknownPod), _) | (Err(_), None) => self.let_go(bench, uid),
            (Err(_), Some(until)) => bind.stage = Stage::Landing { until },
        }
    }

    /// It did not happen and will not.
    fn let_go(&mut self, bench: &mut Bench<'_>, uid: &str) {
        bench.ledger.set_bind_hold(uid, None);
        self.binds.remove(uid);
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, bench: &mut Bench<'_>) {
        let uids: Vec<String> = self.binds.keys().cloned().collect();
        for uid in uids {
            let stage = self.binds.get(&uid).map(|bind| bind.stage.clone());
            match stage {
                Some(Stage::Unseen { .. }) if bench.ledger.pod(&uid).is_some() => {
                    self.attempt(bench, &uid);
                }
                Some(Stage::Unseen { until }) if until <= bench.now => {
                    self.settle(bench, &uid, Err(Unbound::UnknownPod));
                }
                Some(Stage::Landing { until }) if until <= bench.now => {
                    self.read(bench, &uid, Stage::Proving);
                }
                _ => {}
            }
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.tick(bench);
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

    /// A pod was seen bound or ended, or is gone: nothing of it is unclear any more.
    pub(super) fn pod_decided(&mut self, uid: &str) {
        if let Some(waiting) = &mut self.waiting {
            waiting.pod_decided(uid);
        }
        if self
            .binds
            .get(uid)
            .is_some_and(|bind| bind.ticket.is_none())
        {
            self.binds.remove(uid);
        }
    }

    /// Forgets everything; gives the tickets that are still to be told.
    pub(super) fn forget(&mut self) -> Vec<TicketId> {
        self.waiting = self.waiting.take().map(|_| WaitingPods::default());
        let binds = std::mem::take(&mut self.binds);
        binds.into_values().filter_map(|bind| bind.ticket).collect()
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

/// Why a pod cannot go to a node, if so.
fn unfit(ledger: &Ledger, pod: &PodView, node: &str) -> Option<Unfit> {
    let hold = ledger
        .pod(&pod.uid)
        .and_then(|known| known.bind_hold.as_ref());
    match hold {
        Some(held) if held != node => return Some(Unfit::HeldBy(held.clone())),
        _ => {}
    }
    of_fit(ledger.fits(pod, node))
}

fn of_fit(fit: Fit) -> Option<Unfit> {
    match fit {
        Fit::Fits => None,
        Fit::NoRoom(missing) => Some(Unfit::NoRoom(missing)),
        Fit::ForeignScheduler => Some(Unfit::ForeignScheduler),
        Fit::UnknownNode => Some(Unfit::UnknownNode),
        Fit::Unreadable(problem) => Some(Unfit::Unreadable(problem)),
    }
}

fn filter(ledger: &Ledger, pod: &PodView, nodes: Vec<String>) -> Vec<(String, Result<(), Unfit>)> {
    let verdict = |node: &str| unfit(ledger, pod, node).map_or(Ok(()), Err);
    let verdicts = nodes.into_iter().map(|node| {
        let verdict = verdict(&node);
        (node, verdict)
    });
    verdicts.collect()
}

fn prioritize(ledger: &Ledger, pod: &PodView, nodes: Vec<String>) -> Vec<(String, u8)> {
    let scores = nodes.into_iter().map(|node| {
        let score = ledger.score(pod, &node);
        (node, score)
    });
    scores.collect()
}

/// Keeps the nodes that would have room, with as many more victims of lower priority as that takes:
/// of ignored namespaces first, then by priority, the youngest first.
fn preempt(
    ledger: &Ledger,
    pod: &PodView,
    victims: BTreeMap<String, Vec<String>>,
) -> BTreeMap<String, Vec<String>> {
    let kept = victims.into_iter().filter_map(|(node, mut victims)| {
        let mut gone: BTreeSet<String> = victims.iter().cloned().collect();
        let mut more = candidates(ledger, pod, &node, &gone).into_iter();
        loop {
            match of_fit(ledger.fits_without(pod, &node, &gone)) {
                None => return Some((node, victims)),
                Some(unfit) if !unfit.is_about_room() => return None,
                Some(_) => {
                    let next = more.next()?;
                    gone.insert(next.clone());
                    victims.push(next);
                }
            }
        }
    });
    kept.collect()
}

fn candidates(ledger: &Ledger, pod: &PodView, node: &str, gone: &BTreeSet<String>) -> Vec<String> {
    let here = ledger.pods().map(|entry| &entry.view);
    let mut here: Vec<&PodView> = here
        .filter(|other| other.node.as_deref() == Some(node) && !other.terminal)
        .filter(|other| other.priority < pod.priority && !gone.contains(&other.uid))
        .collect();
    let ignored = &ledger.rules().ignored_namespaces;
    here.sort_by_key(|other| {
        let is_ours = !ignored.contains(&other.key.namespace);
        (is_ours, other.priority, std::cmp::Reverse(other.created))
    });
    here.into_iter().map(|other| other.uid.clone()).collect()
}

#[cfg(test)]
mod tests;
