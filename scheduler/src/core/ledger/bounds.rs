//! The most that a pod counts at: its VM's maximum, the over-commit factors that count, and its
//! node's total.
//!
//! Annotations, status and permit requests may be forged. Each counts at most at the VM's maximum,
//! so that none of them takes more of a node than the VM could use.

use protocol::units::Resources;

use super::Ledger;
use super::anomalies::Anomalies;
use super::entry::{Load, VmEntry};
use crate::core::amount::{Both, NO_OVERCOMMIT_MILLI, shares};
use crate::core::pod_requests::{PodRole, PodView};
use crate::core::view::NodeView;

impl Ledger {
    /// Counters of states that the scheduler did not write, since the start.
    #[must_use]
    pub fn anomalies(&self) -> Anomalies {
        self.anomalies
    }

    /// The size that a pod counts at before over-commit, on any node. Zero once it has ended.
    #[must_use]
    pub fn counted(&self, pod: &PodView) -> Resources {
        let orphan_floor = self.pods.get(&pod.uid).map(|entry| entry.orphan_floor);
        if pod.terminal {
            return Resources::default();
        }
        let vm = self.vm_of(pod);
        let mut amount = match &pod.size {
            Ok(size) => size.reserved,
            Err(_) => pod.fallback,
        };
        if let Some(vm) = vm {
            amount = amount.field_max(vm.counted());
            if pod.size.is_err() {
                amount = amount.field_max(vm.view.largest);
            }
            let (plugged_in, plugged) = &vm.view.plugged;
            if self.rules.count_plugged && *plugged_in == pod.key.name {
                amount = amount.field_max(*plugged).field_max(vm.peak);
            }
        }
        if self.rules.count_plugged {
            amount = amount.field_max(pod.announced);
        }
        let most = most(pod, vm);
        let amount = most.map_or(amount, |most| amount.field_min(most));
        // A pod without its VM may be of an earlier VM of the same name, with another maximum.
        amount.field_max(orphan_floor.unwrap_or_default())
    }

    /// The over-commit factors of a pod that count on a node, in thousandths. No over-commit if the
    /// pod's size does not parse.
    #[must_use]
    pub fn factors(&self, pod: &PodView, node: &str) -> Both<u32> {
        self.factors_on(pod, self.nodes.get(node))
    }

    fn factors_on(&self, pod: &PodView, node: Option<&NodeView>) -> Both<u32> {
        let Ok(size) = &pod.size else {
            return Both::same(NO_OVERCOMMIT_MILLI);
        };
        let own = size.overcommit_milli;
        if !own.any(|milli| milli > NO_OVERCOMMIT_MILLI) {
            return own;
        }
        let policy = self.rules.overcommit.of(&pod.key.namespace);
        let bound = policy.zip(node.map_or(policy, |node| node.max_overcommit_milli));
        own.zip(bound)
            .map(|_, (own, (policy, node))| own.min(policy).min(node))
    }

    /// Whether a pod's own over-commit factors are above the bound of its namespace.
    #[must_use]
    pub fn is_overcommit_bounded(&self, pod: &PodView) -> bool {
        let bound = self.rules.overcommit.of(&pod.key.namespace);
        let own = pod.size.as_ref().map(|size| size.overcommit_milli);
        own.is_ok_and(|own| own.zip(bound).any(|(own, bound)| own > bound))
    }

    /// The amount that a pod takes of a node after over-commit. The node's total does not cut it.
    #[must_use]
    pub fn share_of(&self, pod: &PodView, node: &str) -> Both<u128> {
        self.share_at(pod, self.nodes.get(node))
    }

    /// The share is at least the pod's requests, because kubelet ignores over-commit factors.
    fn share_at(&self, pod: &PodView, node: Option<&NodeView>) -> Both<u128> {
        let share = shares(self.counted(pod).into(), self.factors_on(pod, node));
        if pod.terminal {
            return share;
        }
        share
            .zip(pod.runner_requests.into())
            .map(|_, (share, requested): (u128, u64)| share.max(requested.into()))
    }

    pub(super) fn charge_of(&self, pod: &PodView, node: &str) -> Load {
        let amount = Both::from(self.counted(pod));
        let node = self.nodes.get(node);
        let share = cut(pod, node, self.share_at(pod, node));
        if self.rules.ignored_namespaces.contains(&pod.key.namespace) {
            return Load {
                ignored: share,
                ..Load::default()
            };
        }
        let leaving = pod.vm.is_some() && pod.role == PodRole::Source;
        Load {
            reserved: share,
            committed: amount.map(|_, amount| u128::from(amount)),
            migrating: if leaving { share } else { Both::default() },
            ignored: Both::default(),
        }
    }

    /// Counts the pods of a node again if its total or its over-commit bound changed.
    pub(super) fn bounds_changed(&mut self, node: &str, old: Option<&NodeView>) {
        let bounds = |node: &NodeView| {
            let total = node.problem.is_none().then_some(node.total);
            (total, node.max_overcommit_milli)
        };
        if old.map(bounds) == self.nodes.get(node).map(bounds) {
            return;
        }
        let uids = self.on_node.get(node).cloned().unwrap_or_default();
        uids.iter().for_each(|uid| self.recharge(uid));
    }
}

/// A VM's share of a node, cut to the node's total. A share of the total makes the node full. A
/// larger one would only send other VMs away. Plain pods count as kubelet counts them.
pub(super) fn cut(pod: &PodView, node: Option<&NodeView>, share: Both<u128>) -> Both<u128> {
    match node.filter(|node| pod.vm.is_some() && node.problem.is_none()) {
        Some(node) => share
            .zip(node.total)
            .map(|_, (share, total)| share.min(u128::from(total))),
        None => share,
    }
}

/// The most that a VM's pod counts at. `None` if that is unknown, or for a plain pod.
fn most(pod: &PodView, vm: Option<&VmEntry>) -> Option<Resources> {
    match vm {
        Some(vm) => Some(vm.view.most()?.field_max(pod.runner_requests)),
        None if pod.vm.is_some() && pod.size.is_ok() => Some(pod.fallback),
        None => None,
    }
}

#[cfg(test)]
mod tests;
