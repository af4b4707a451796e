//! The pods of each node and VM, and the nodes that changed.

use std::collections::BTreeSet;

use protocol::permit::NamespacedName;

use super::Ledger;
use super::entry::{Charge, PodEntry};
use crate::core::amount::Both;
use crate::core::pod_requests::PodView;

impl Ledger {
    /// The pods that count on a node, by uid. Includes those of ignored namespaces.
    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = &PodEntry> {
        let uids = self.on_node.get(node).into_iter().flatten();
        uids.filter_map(|uid| self.pods.get(uid))
    }

    /// The pods of a VM. Includes ended ones.
    pub fn pods_of(&self, vm: &NamespacedName) -> impl Iterator<Item = &PodEntry> {
        let pods = self.vm_pods.get(vm);
        let uids = pods.into_iter().flat_map(|pods| &pods.uids);
        uids.filter_map(|uid| self.pods.get(uid))
    }

    /// The amount that counts for a pod on a node, after over-commit. Zero on other nodes, and for
    /// pods of ignored namespaces.
    #[must_use]
    pub fn share_on(&self, pod: &PodView, node: &str) -> Both<u128> {
        self.own(pod, node).reserved
    }

    /// Whether [`Ledger::take_touched`] would return a node.
    #[must_use]
    pub fn has_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Names of the nodes whose figures changed since the last call. For metrics.
    pub fn take_touched(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.touched)
    }

    /// Names of the nodes whose figures changed since the last call. For migrations.
    pub(in crate::core) fn take_unlooked(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.unlooked)
    }

    /// Marks a node for [`Ledger::take_touched`] because figures outside the ledger changed.
    pub(in crate::core) fn show_again(&mut self, node: &str) {
        if !self.touched.contains(node) {
            self.touched.insert(node.to_owned());
        }
    }

    pub(super) fn touch(&mut self, node: &str) {
        for set in [&mut self.touched, &mut self.unlooked] {
            if !set.contains(node) {
                set.insert(node.to_owned());
            }
        }
    }

    /// Moves a pod to the node of its new charge.
    pub(super) fn move_pod(&mut self, uid: &str, old: Option<&Charge>, fresh: Option<&Charge>) {
        let (old, fresh) = (
            old.map(|charge| &charge.node),
            fresh.map(|charge| &charge.node),
        );
        if old == fresh {
            return;
        }
        if let Some(node) = old {
            self.unplace(node, uid);
        }
        if let Some(node) = fresh {
            let uids = self.on_node.entry(node.clone()).or_default();
            uids.insert(uid.to_owned());
        }
    }

    pub(super) fn unplace(&mut self, node: &str, uid: &str) {
        if let Some(uids) = self.on_node.get_mut(node) {
            uids.remove(uid);
            if uids.is_empty() {
                self.on_node.remove(node);
            }
        }
    }
}
