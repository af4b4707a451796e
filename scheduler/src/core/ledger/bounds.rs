//! The most a pod is counted at: by its VM's own largest size, by the over-commit factors that
//! count, and by its node.
//!
//! Annotations, status and requests of callers are words. Each of them counts at most what the VM
//! can become, so that no word takes more of a node than its VM could use.

use protocol::units::Resources;
use serde::Serialize;

use super::{Ledger, Load, VmEntry};
use crate::core::amount::{Both, NO_OVERCOMMIT_MILLI, shares};
use crate::core::view::{NodeView, PodRole, PodView, VmView};

/// Counts of states that only a foreign hand can have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Anomalies {
    /// Times a VM's approved annotation went above the VM's own largest size.
    pub approved_above_max: u64,
}

impl Anomalies {
    /// A new state of a VM was seen after `old`.
    pub(super) fn vm_observed(&mut self, old: Option<&VmView>, new: &VmView) {
        let was_above =
            old.is_some_and(|old| old.approved_above_max && old.approved_text == new.approved_text);
        if new.approved_above_max && !was_above {
            self.approved_above_max += 1;
        }
    }
}

impl Ledger {
    /// What was seen that only a foreign hand can have written.
    #[must_use]
    pub fn anomalies(&self) -> Anomalies {
        self.anomalies
    }

    /// What a pod is counted at before over-commit, wherever it is; nothing once it has ended.
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
            amount = amount.field_max(pod.told);
        }
        let most = most(pod, vm);
        let amount = most.map_or(amount, |most| amount.field_min(most));
        // A pod without its VM may be that of an earlier VM of the same name, with another largest
        // size.
        amount.field_max(orphan_floor.unwrap_or_default())
    }

    /// The over-commit factors of a pod that count on a node, thousandths; none when its size is
    /// not known.
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

    /// Whether a pod's own over-commit factors go beyond what its namespace may have.
    #[must_use]
    pub fn is_overcommit_bounded(&self, pod: &PodView) -> bool {
        let bound = self.rules.overcommit.of(&pod.key.namespace);
        let own = pod.size.as_ref().map(|size| size.overcommit_milli);
        own.is_ok_and(|own| own.zip(bound).any(|(own, bound)| own > bound))
    }

    /// What a pod takes of a node after over-commit, whatever the node has.
    #[must_use]
    pub fn share_of(&self, pod: &PodView, node: &str) -> Both<u128> {
        self.share_at(pod, self.nodes.get(node))
    }

    /// Kubelet sets aside what a pod requests, whatever the over-commit factor.
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

    /// Counts the pods of a node again if what bounds them there is not what it was.
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

/// A VM's share of a node, cut to what the node has. A share of all that it has makes it full; more
/// would only send other VMs away. Other pods are counted as kubelet counts them.
pub(super) fn cut(pod: &PodView, node: Option<&NodeView>, share: Both<u128>) -> Both<u128> {
    match node.filter(|node| pod.vm.is_some() && node.problem.is_none()) {
        Some(node) => share
            .zip(node.total)
            .map(|_, (share, total)| share.min(u128::from(total))),
        None => share,
    }
}

/// The most that words about a VM's pod may count it at, where that is known.
fn most(pod: &PodView, vm: Option<&VmEntry>) -> Option<Resources> {
    match vm {
        Some(vm) => Some(vm.view.most()?.field_max(pod.runner_requests)),
        None if pod.vm.is_some() && pod.size.is_ok() => Some(pod.fallback),
        None => None,
    }
}

#[cfg(test)]
mod tests;
