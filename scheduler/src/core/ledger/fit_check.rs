//! Checks whether a pod fits on a node, and scores it there.

use std::collections::BTreeSet;

use super::Ledger;
use super::bounds::cut;
use super::entry::{Load, combine};
use super::fit::Fit;
use crate::core::amount::Both;
use crate::core::pod_requests::PodView;
use crate::core::score::score;

impl Ledger {
    /// The pod's own charge on the node.
    pub(super) fn own(&self, pod: &PodView, node: &str) -> Load {
        let entry = self.pods.get(&pod.uid);
        let charge = entry.and_then(|entry| entry.charge.as_ref());
        let here = charge.filter(|charge| charge.node == node);
        here.map(|charge| charge.load).unwrap_or_default()
    }

    /// The sum of all other pods on a node after over-commit, without ignored namespaces.
    #[must_use]
    pub fn others(&self, pod: &PodView, node: &str) -> Both<u128> {
        let sums = self.load(node).reserved.zip(self.own(pod, node).reserved);
        sums.map(|_, (sum, own)| sum - own)
    }

    /// Whether `pod` fits on `node` beside all pods that count there.
    #[must_use]
    pub fn fits(&self, pod: &PodView, node: &str) -> Fit {
        let others = combine(self.load(node), self.own(pod, node), |sum, part| sum - part);
        let others = others.reserved.zip(others.ignored).map(|_, (a, b)| a + b);
        self.fits_beside(pod, node, others)
    }

    /// Whether `pod` would fit on `node` without the pods of the uids in `gone`. Uids of pods
    /// elsewhere have no effect.
    #[must_use]
    pub fn fits_without(&self, pod: &PodView, node: &str, gone: &BTreeSet<String>) -> Fit {
        let own = combine(self.load(node), self.own(pod, node), |sum, part| sum - part);
        let gone = gone.iter().filter(|uid| **uid != pod.uid);
        let charges = gone.filter_map(|uid| self.pods.get(uid)?.charge.as_ref());
        let others = charges
            .filter(|charge| charge.node == node)
            .fold(own, |sum, charge| {
                combine(sum, charge.load, |sum, part| sum - part)
            });
        let others = others.reserved.zip(others.ignored).map(|_, (a, b)| a + b);
        self.fits_beside(pod, node, others)
    }

    /// Whether `pod` fits on `node` beside exactly the pods that another scheduler counts there.
    /// Pods of the ledger count by their entry, others by their object, and those that do not parse
    /// not at all. Source: docs/compatibility/scheduler.md §1.1.
    #[must_use]
    pub fn filter<'a>(
        &self,
        pod: &PodView,
        node: &str,
        believed: impl IntoIterator<Item = &'a PodView>,
    ) -> Fit {
        let others = believed.into_iter().filter(|other| other.uid != pod.uid);
        let sum = others.fold(Both::<u128>::default(), |sum, other| {
            let known = self.pods.get(&other.uid).map(|entry| &entry.view);
            let unknown = || other.size.is_ok().then_some(other);
            known.or_else(unknown).map_or(sum, |view| {
                let share = cut(view, self.nodes.get(node), self.share_of(view, node));
                sum.zip(share).map(|_, (a, b)| a + b)
            })
        });
        self.fits_beside(pod, node, sum)
    }

    fn fits_beside(&self, pod: &PodView, node: &str, others: Both<u128>) -> Fit {
        if pod.scheduler_name != self.rules.scheduler_name {
            return Fit::ForeignScheduler;
        }
        if let Err(problem) = &pod.size {
            return Fit::Unreadable(problem.clone());
        }
        let Some(node) = self.nodes.get(node) else {
            return Fit::UnknownNode;
        };
        let share = self.share_of(pod, &node.name);
        let missing = others
            .zip(share)
            .zip(node.total)
            .map(|_, ((others, share), total)| (others + share).saturating_sub(u128::from(total)));
        if missing.any(|missing| missing > 0) {
            Fit::NoRoom(missing)
        } else {
            Fit::Fits
        }
    }

    /// Score of a pod on a node, 0 to 100. 0 for an unknown node.
    #[must_use]
    pub fn score(&self, pod: &PodView, node: &str) -> u8 {
        let Some(view) = self.nodes.get(node) else {
            return 0;
        };
        let share = self.share_of(pod, node);
        let reserved = self.others(pod, node).zip(share).map(|_, (a, b)| a + b);
        score(self.rules.curve, reserved, view.total, self.max_seen())
    }
}
