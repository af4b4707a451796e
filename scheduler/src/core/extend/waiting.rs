//! Pods that kube-scheduler was refused for want of headroom, until there is some.
//!
//! kube-scheduler tries such a pod again after events that it watches. A VM that shrinks is no such
//! event. kube-scheduler may also see a deletion before this process does. It then repeats the
//! request, is refused again, and leaves the pod for minutes. The scheduler therefore changes the
//! status of a pod that would fit now, which makes kube-scheduler repeat its request.
//!
//! ```text
//! refused ──► waits ── headroom appears ──► status changed ──► requested again: starts over
//!                ▲                            └── no request for a pause: still fits? ── yes: changed again, longer pause
//!                └──────────────────────────────────────────────────────────────────────── no
//! ```
//!
//! A new leader has no record of refused pods. Once after the lists, every unbound pod of ours
//! counts as refused on all nodes.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use protocol::time::{Span, Timestamp};
use serde_json::{Value, json};

use super::fit::unfit;
use crate::core::event::{Action, Unfit};
use crate::core::ledger::Ledger;
use crate::core::pod_requests::PodView;
use crate::core::step::StepContext;

/// Number of pods that are kept. kube-scheduler retries the others by itself, minutes later.
const MAX_WAITING_PODS: usize = 4096;
/// Number of nodes that are kept per pod.
const MAX_NODES: usize = 256;
/// First pause before a status is changed again: kube-scheduler's longest back-off.
const FIRST_PAUSE: Span = Span::from_secs(10);
/// Longest such pause. kube-scheduler retries every pod that often by itself.
const LAST_PAUSE: Span = Span::from_secs(300);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Waiting {
    pod: PodView,
    /// Nodes that refused it. Empty: all nodes.
    nodes: Vec<String>,
    /// Status changes since the last request.
    touched: u32,
    /// When the next status change is due.
    again: Option<Timestamp>,
}

#[derive(Debug, Default, Clone)]
pub(super) struct WaitingPods {
    by_uid: BTreeMap<String, Waiting>,
    /// The headroom epoch of the last look.
    looked_at: Option<u64>,
    /// Whether the unbound pods of the first lists are included.
    is_adopted: bool,
}

impl WaitingPods {
    /// Records the response to a filter request.
    pub(super) fn filtered(&mut self, pod: &PodView, verdicts: &[(String, Result<(), Unfit>)]) {
        let known = self.by_uid.remove(&pod.uid).is_some();
        let has_place = verdicts.iter().any(|(_, verdict)| verdict.is_ok());
        let may_change = |(_, verdict): &&(String, Result<(), Unfit>)| {
            matches!(
                verdict,
                Err(Unfit::NoRoom(_) | Unfit::UnknownNode | Unfit::HeldBy(_))
            )
        };
        let nodes = verdicts.iter().filter(may_change).take(MAX_NODES);
        let nodes: Vec<String> = nodes.map(|(node, _)| node.clone()).collect();
        if has_place || nodes.is_empty() || (!known && self.by_uid.len() >= MAX_WAITING_PODS) {
            return;
        }
        self.wait(pod.clone(), nodes);
    }

    fn wait(&mut self, pod: PodView, nodes: Vec<String>) {
        let waiting = Waiting {
            nodes,
            touched: 0,
            again: None,
            pod,
        };
        self.by_uid.insert(waiting.pod.uid.clone(), waiting);
    }

    pub(super) fn pod_decided(&mut self, uid: &str) {
        self.by_uid.remove(uid);
    }

    /// Changes the status of every pod that fits now.
    pub(super) fn tick(&mut self, context: &mut StepContext<'_>) {
        if !self.is_adopted {
            self.adopt(context.ledger);
        }
        let epoch = context.ledger.room_epoch();
        let is_new = self.looked_at.replace(epoch) != Some(epoch);
        for (uid, waiting) in &mut self.by_uid {
            let is_due = waiting.again.map_or(is_new, |at| at <= context.now);
            if !is_due {
                continue;
            }
            waiting.again = None;
            if let Some(node) = place(context.ledger, waiting) {
                waiting.again = Some(context.now + pause(waiting.touched));
                waiting.touched += 1;
                let (pod, uid) = (waiting.pod.key.clone(), uid.clone());
                context
                    .out
                    .push_back(Action::RoomAppeared { pod, uid, node });
            }
        }
    }

    fn adopt(&mut self, ledger: &Ledger) {
        self.is_adopted = true;
        let ours = &ledger.rules().scheduler_name;
        let views = ledger.pods().map(|entry| &entry.view);
        let unbound = views
            .filter(|pod| pod.node.is_none() && !pod.terminal && !pod.deleting)
            .filter(|pod| pod.scheduler_name == *ours && !self.by_uid.contains_key(&pod.uid));
        let left = MAX_WAITING_PODS.saturating_sub(self.by_uid.len());
        let unbound: Vec<PodView> = unbound.take(left).cloned().collect();
        for pod in unbound {
            self.wait(pod, Vec::new());
        }
    }

    pub(super) fn poll_deadline(&self) -> Option<Timestamp> {
        self.by_uid
            .values()
            .filter_map(|waiting| waiting.again)
            .min()
    }

    pub(super) fn digest(&self, hasher: &mut impl Hasher) {
        (&self.by_uid, self.is_adopted).hash(hasher);
    }

    /// Status changes since the last request, by pod.
    pub(super) fn dump(&self) -> Value {
        let touched = self.by_uid.values();
        let touched = touched.map(|waiting| (waiting.pod.key.to_string(), waiting.touched));
        json!(touched.collect::<BTreeMap<_, _>>())
    }
}

/// A node that the pod fits on now.
fn place(ledger: &Ledger, waiting: &Waiting) -> Option<String> {
    let is_place = |node: &&str| unfit(ledger, &waiting.pod, node).is_none();
    let found = if waiting.nodes.is_empty() {
        let open = ledger.nodes().filter(|node| node.is_open());
        open.map(|node| node.name.as_str()).find(is_place)
    } else {
        waiting.nodes.iter().map(String::as_str).find(is_place)
    };
    found.map(ToOwned::to_owned)
}

fn pause(touched: u32) -> Span {
    Span(
        FIRST_PAUSE
            .0
            .saturating_mul(1 << touched.min(10))
            .min(LAST_PAUSE.0),
    )
}
