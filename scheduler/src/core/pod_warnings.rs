//! Warnings about pods that take resources that were not granted.
//!
//! A pod may use more than it requests, or a pod of ours may come to its node without the
//! scheduler. Both count when they are observed. Each warning is reported once per pod. Pods that
//! were on a node before the first list get no warning of the second kind, because the scheduler
//! may have bound them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::ledger::Ledger;
use super::pod_requests::PodView;

/// A warning about a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PodWarning {
    /// A container's limit is above its request. The pod counts at its requests and may use more.
    RequestsBelowLimits,
    /// The scheduler did not place the pod: `spec.nodeName` was set by hand, or another scheduler
    /// placed it.
    Unpermitted,
    /// The pod's over-commit factor is above the bound of its namespace.
    OvercommitBounded,
}

impl PodWarning {
    /// Every warning, in the order of declaration.
    pub const ALL: [Self; 3] = [
        Self::RequestsBelowLimits,
        Self::Unpermitted,
        Self::OvercommitBounded,
    ];

    /// Value of metric labels and log fields.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RequestsBelowLimits => "requests_below_limits",
            Self::Unpermitted => "unpermitted",
            Self::OvercommitBounded => "overcommit_bounded",
        }
    }

    /// `reason` of the Kubernetes event on the pod.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::RequestsBelowLimits => "RequestsBelowLimits",
            Self::Unpermitted => "UnpermittedPod",
            Self::OvercommitBounded => "OvercommitBounded",
        }
    }

    /// `message` of the Kubernetes event on the pod.
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

/// The warnings of each pod.
#[derive(Debug, Clone, Default)]
pub(super) struct PodWarnings {
    places_pods: bool,
    by_pod: BTreeMap<String, BTreeSet<PodWarning>>,
    counts: BTreeMap<PodWarning, usize>,
}

impl PodWarnings {
    pub(super) fn new(places_pods: bool) -> Self {
        Self {
            places_pods,
            ..Self::default()
        }
    }

    /// Returns the warnings that a changed pod did not have before. The ledger must still have the
    /// old state. `is_listed`: the pod comes from a list, so when it was bound is unknown.
    pub(super) fn pod_applied(
        &mut self,
        ledger: &Ledger,
        pod: &PodView,
        is_listed: bool,
    ) -> Vec<PodWarning> {
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
            found.push(PodWarning::RequestsBelowLimits);
        }
        if ledger.is_overcommit_bounded(pod) {
            found.push(PodWarning::OvercommitBounded);
        }
        if !ignored && !is_listed && self.is_unpermitted(ledger, pod) {
            found.push(PodWarning::Unpermitted);
        }
        found.retain(|warning| self.add(&pod.uid, *warning));
        found
    }

    /// Whether a pod of ours is on a node that the scheduler did not choose, since the last state.
    fn is_unpermitted(&self, ledger: &Ledger, pod: &PodView) -> bool {
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

    /// Adds a warning. Returns whether the pod did not have it.
    fn add(&mut self, uid: &str, warning: PodWarning) -> bool {
        let is_new = self
            .by_pod
            .entry(uid.to_owned())
            .or_default()
            .insert(warning);
        if is_new {
            *self.counts.entry(warning).or_default() += 1;
        }
        is_new
    }

    pub(super) fn pod_deleted(&mut self, uid: &str) {
        for warning in self.by_pod.remove(uid).unwrap_or_default() {
            if let Some(count) = self.counts.get_mut(&warning) {
                *count -= 1;
            }
        }
    }

    pub(super) fn forget(&mut self) {
        self.by_pod.clear();
        self.counts.clear();
    }

    /// The warnings of a pod.
    pub(super) fn of(&self, uid: &str) -> Option<&BTreeSet<PodWarning>> {
        self.by_pod.get(uid)
    }

    /// Number of pods with a warning.
    pub(super) fn count(&self, warning: PodWarning) -> usize {
        self.counts.get(&warning).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_warning_has_the_reason_of_its_event() {
        let reasons = PodWarning::ALL.map(PodWarning::reason);
        let expected = ["RequestsBelowLimits", "UnpermittedPod", "OvercommitBounded"];
        assert_eq!(reasons, expected);
        assert!(PodWarning::ALL.iter().all(|it| !it.message().is_empty()));
    }
}
