//! Pods for which a kube-scheduler was told that there is no room, until there is.
//!
//! kube-scheduler takes up such a pod again when something happens that it knows of. That a VM has
//! shrunk is no such thing. Of what it knows, a pod that went, say, it may know before us: then it
//! asks, is refused once more, and nothing brings the pod back for minutes. So a pod that would fit
//! by now is touched, which makes kube-scheduler ask again.
//!
//! ```text
//! refused ──► waits ── room appears ──► touched ──► asked about: begins anew
//!                ▲                         └── not asked about for a pause: still room? ── yes: touched again, longer pause
//!                └──────────────────────────────────────────────────────────────────────── no
//! ```
//!
//! Whom an earlier leader refused is not known: once after everything was listed, every unbound pod
//! of ours counts as refused on all nodes.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use protocol::time::{Span, Timestamp};
use serde_json::{Value, json};

use super::{Unfit, unfit};
use crate::core::event::Action;
use crate::core::ledger::Ledger;
use crate::core::permits::Bench;
use crate::core::view::PodView;

/// Pods that are remembered; of the others kube-scheduler thinks by itself, minutes later.
const MAX_WAITING_PODS: usize = 4096;
/// Nodes that are remembered of each.
const MAX_NODES: usize = 256;
/// kube-scheduler asks within its longest back-off, which is as long.
const FIRST_PAUSE: Span = Span::from_secs(10);
/// It takes up everything by itself as often.
const LAST_PAUSE: Span = Span::from_secs(300);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Waiting {
    pod: PodView,
    /// Where it was refused; nothing: everywhere.
    nodes: Vec<String>,
    /// Touched so often since it was asked about.
    touched: u32,
    /// When it is touched again.
    again: Option<Timestamp>,
}

/// See the module's description.
#[derive(Debug, Default, Clone)]
pub(super) struct WaitingPods {
    by_uid: BTreeMap<String, Waiting>,
    /// The room that was last looked at.
    looked_at: Option<u64>,
    /// Whether those that an earlier leader refused were taken over.
    is_adopted: bool,
}

impl WaitingPods {
    /// A pod was asked about.
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

    /// A pod is bound, has ended or is gone.
    pub(super) fn pod_decided(&mut self, uid: &str) {
        self.by_uid.remove(uid);
    }

    /// Touches whoever would fit by now.
    pub(super) fn tick(&mut self, bench: &mut Bench<'_>) {
        if !self.is_adopted {
            self.adopt(bench.ledger);
        }
        let epoch = bench.ledger.room_epoch();
        let is_new = self.looked_at.replace(epoch) != Some(epoch);
        for (uid, waiting) in &mut self.by_uid {
            let is_due = waiting.again.map_or(is_new, |at| at <= bench.now);
            if !is_due {
                continue;
            }
            waiting.again = None;
            if let Some(node) = place(bench.ledger, waiting) {
                waiting.again = Some(bench.now + pause(waiting.touched));
                waiting.touched += 1;
                let (pod, uid) = (waiting.pod.key.clone(), uid.clone());
                bench.out.push_back(Action::RoomAppeared { pod, uid, node });
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

    /// For people: how often each was touched since it was asked about last.
    pub(super) fn dump(&self) -> Value {
        let touched = self.by_uid.values();
        let touched = touched.map(|waiting| (waiting.pod.key.to_string(), waiting.touched));
        json!(touched.collect::<BTreeMap<_, _>>())
    }
}

/// A node that has room for it now.
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
