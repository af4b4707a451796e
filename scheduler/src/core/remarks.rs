//! What people should know about pods that are counted all the same.
//!
//! A pod that may use more than it requests, and a pod of ours that came to its node without us,
//! take room nobody granted. Both are counted on sight; this says so, once for each pod. What stood
//! on a node before the first list cannot be told from what we bound, so nothing is said of it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::ledger::Ledger;
use super::view::PodView;

/// What is to be said about a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Remark {
    /// A container's limit is above its request: it is counted by what it requests and may use
    /// more.
    RequestsBelowLimits,
    /// It came to its node without having been placed: `spec.nodeName` was set by hand, or another
    /// scheduler placed it.
    Unpermitted,
    /// Its over-commit factor is above the bound of its namespace.
    OvercommitBounded,
}

impl Remark {
    /// All of them.
    pub const ALL: [Self; 3] = [
        Self::RequestsBelowLimits,
        Self::Unpermitted,
        Self::OvercommitBounded,
    ];

    /// The word for metric labels and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RequestsBelowLimits => "requests_below_limits",
            Self::Unpermitted => "unpermitted",
            Self::OvercommitBounded => "overcommit_bounded",
        }
    }

    /// The reason of the event on the pod.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::RequestsBelowLimits => "RequestsBelowLimits",
            Self::Unpermitted => "UnpermittedPod",
            Self::OvercommitBounded => "OvercommitBounded",
        }
    }

    /// The message of the event on the pod.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::RequestsBelowLimits => {
                "a container's limit is above its request; only the request is counted on the node"
            }
            Self::Unpermitted => {
                "it was put on its node without the scheduler; it is counted there, whether or not there was room"
            }
            Self::OvercommitBounded => {
                "its over-commit factor is above the bound of its namespace (overcommit in the scheduler's configuration); \
                 the bound counts"
            }
        }
    }
}

/// Who is remarkable.
#[derive(Debug, Clone, Default)]
pub(super) struct Remarks {
    places_pods: bool,
    by_pod: BTreeMap<String, BTreeSet<Remark>>,
    counts: BTreeMap<Remark, usize>,
}

impl Remarks {
    pub(super) fn new(places_pods: bool) -> Self {
        Self {
            places_pods,
            ..Self::default()
        }
    }

    /// A pod is about to be counted anew; what is new to say about it. `is_listed`: it was not seen
    /// to come.
    pub(super) fn pod_applied(
        &mut self,
        ledger: &Ledger,
        pod: &PodView,
        is_listed: bool,
    ) -> Vec<Remark> {
        if pod.terminal {
            self.pod_deleted(&pod.uid);
            return Vec::new();
        }
        let mut found = Vec::new();
        let ignored = ledger
            .rules()
            .ignored_namespaces
            .contains(&pod.key.namespace);
        if pod.may_burst && !ignored {
            found.push(Remark::RequestsBelowLimits);
        }
        if ledger.is_overcommit_bounded(pod) {
            found.push(Remark::OvercommitBounded);
        }
        if !ignored && !is_listed && self.came_unasked(ledger, pod) {
            found.push(Remark::Unpermitted);
        }
        found.retain(|remark| self.note(&pod.uid, *remark));
        found
    }

    /// Whether a pod of ours is on a node now, and neither we nor anybody before our eyes put it
    /// there.
    fn came_unasked(&self, ledger: &Ledger, pod: &PodView) -> bool {
        let is_ours = pod.vm.is_some() || pod.scheduler_name == ledger.rules().scheduler_name;
        let (true, Some(node)) = (is_ours, &pod.node) else {
            return false;
        };
        match ledger.pod(&pod.uid) {
            None => true,
            Some(before) if before.view.node.is_some() => false,
            Some(before) => self.places_pods && before.bind_hold.as_ref() != Some(node),
        }
    }

    /// Whether it was not noted yet.
    fn note(&mut self, uid: &str, remark: Remark) -> bool {
        let is_new = self
            .by_pod
            .entry(uid.to_owned())
            .or_default()
            .insert(remark);
        if is_new {
            *self.counts.entry(remark).or_default() += 1;
        }
        is_new
    }

    /// A pod is gone.
    pub(super) fn pod_deleted(&mut self, uid: &str) {
        for remark in self.by_pod.remove(uid).unwrap_or_default() {
            if let Some(count) = self.counts.get_mut(&remark) {
                *count -= 1;
            }
        }
    }

    pub(super) fn forget(&mut self) {
        self.by_pod.clear();
        self.counts.clear();
    }

    /// What was said about a pod.
    pub(super) fn of(&self, uid: &str) -> Option<&BTreeSet<Remark>> {
        self.by_pod.get(uid)
    }

    /// How many pods there are of which this is true.
    pub(super) fn count(&self, remark: Remark) -> usize {
        self.counts.get(&remark).copied().unwrap_or_default()
    }
}
