//! The state of every node: observed objects, holds for calls in flight, and their sums.
//!
//! How much of a node must count as taken? Each pod counts at the largest of all sizes that it may
//! have:
//!
//! ```text
//! counted(pod) = max( the pod's own annotations, or its largest possible size if they do not parse
//!                   , its VM's object: approved, in use by the spec, plugged by the runner
//!                   , claim: the last permit that the agent claims beyond that
//!                   , grant holds: targets of writes whose outcome is not observed
//!                   , legacy: the permit of an earlier agent, for a while after the first contact of the next one
//!                   , runner requests: the controller writes them before a guest grows
//!                   , peak: the most that the guest may have had since its runner last reported the size in use )
//!              , but at most the VM's maximum, or the pod's requests if they are larger
//! on node      = spec.nodeName, otherwise the node of a bind hold
//! reserved     = counted / the over-commit factor that counts ([`super::overcommit`]), at most the node's total
//! ```
//!
//! A hold ends only by observation. A grant hold keeps the version of the VM that its write tests.
//! The write has an effect on exactly that version, so any later version settles it. A bind hold
//! ends when the pod is observed bound or gone, or when the API server refuses the first and only
//! attempt. A peak ends when the runner's report catches up. A report may be older than the last
//! growth, so a size that was returned is free only once the guest was observed without it.
//!
//! Invariants:
//! * sums equal the charges of the pods (`Ledger::audit`, which every property test calls);
//! * an older state of a VM never replaces a newer one (`tests::an_older_vm_state_is_ignored`);
//! * all that a guest may still have counts
//!   (`tests::reports::a_late_report_frees_nothing_a_guest_may_still_have`);
//! * no object or caller makes a VM count at more than its maximum (`bounds::tests`);
//! * a hold outlives errors and time-outs
//!   (`tests::holds::a_grant_hold_ends_only_when_a_later_version_is_seen`).

mod anomalies;
mod audit;
mod bounds;
mod charges;
mod digest;
mod entry;
mod fit;
mod fit_check;
mod legacy;
mod places;
mod table;

use std::collections::{BTreeMap, BTreeSet};

use protocol::permit::NamespacedName;
use protocol::time::Timestamp;
use protocol::units::Resources;

pub use anomalies::Anomalies;
pub use entry::{GrantHold, Load, PodEntry, VmEntry, vm_key};
pub use fit::Fit;

use super::amount::Both;
use super::pod_requests::PodView;
use super::rules::Rules;
use super::view::{NodeView, VmView};
use entry::{VmPods, first_peak};
use table::{Index, Table, digest};

/// Nodes, pods and VMs with their sums. A clone is a speculative copy.
#[derive(Debug, Clone)]
pub struct Ledger {
    rules: Rules,
    nodes: BTreeMap<String, NodeView>,
    loads: BTreeMap<String, Load>,
    pods: Table<PodEntry>,
    /// Positions in `pods` by the digest of the pod's name.
    names: Index,
    vms: Table<VmEntry>,
    vm_pods: Table<VmPods>,
    on_node: BTreeMap<String, BTreeSet<String>>,
    touched: BTreeSet<String>,
    unlooked: BTreeSet<String>,
    room_epoch: u64,
    anomalies: Anomalies,
}

impl Ledger {
    /// An empty ledger.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            nodes: BTreeMap::new(),
            loads: BTreeMap::new(),
            pods: Table::new(),
            names: Index::default(),
            vms: Table::new(),
            vm_pods: Table::new(),
            on_node: BTreeMap::new(),
            touched: BTreeSet::new(),
            unlooked: BTreeSet::new(),
            room_epoch: 0,
            anomalies: Anomalies::default(),
        }
    }

    /// The rules of this ledger.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    // ---- nodes ----

    /// Stores a new or changed node.
    pub fn node_applied(&mut self, node: NodeView) {
        self.touch(&node.name);
        self.room_epoch += 1;
        let name = node.name.clone();
        let old = self.nodes.insert(name.clone(), node);
        self.bounds_changed(&name, old.as_ref());
    }

    /// Removes a node. Pods bound to it still count under its name.
    pub fn node_deleted(&mut self, name: &str) {
        self.touch(name);
        let old = self.nodes.remove(name);
        self.bounds_changed(name, old.as_ref());
    }

    /// The node of this name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&NodeView> {
        self.nodes.get(name)
    }

    /// All nodes by name.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeView> {
        self.nodes.values()
    }

    /// The sums of a node. Zero if no pod is on it. The node may be unknown.
    #[must_use]
    pub fn load(&self, node: &str) -> Load {
        self.loads.get(node).copied().unwrap_or_default()
    }

    /// The amounts that the sums of a node should not exceed, rounded down.
    #[must_use]
    pub fn watermark(&self, node: &NodeView) -> Both<u64> {
        node.total.map(|_, total| {
            let part = u128::from(total) * u128::from(self.rules.watermark_ppm) / 1_000_000;
            u64::try_from(part).unwrap_or(u64::MAX)
        })
    }

    /// The largest total of each resource over all nodes.
    #[must_use]
    pub fn max_seen(&self) -> Both<u64> {
        self.nodes
            .values()
            .fold(Both::default(), |max, node| max.max(node.total))
    }

    // ---- pods ----

    /// Stores a new or changed pod.
    pub fn pod_applied(&mut self, view: PodView) {
        if let Some(old) = self
            .pod_named(&view.key)
            .filter(|old| old.view.uid != view.uid)
        {
            // A new pod has the name, so the old one is gone, even if no watch event said so.
            let old = old.view.uid.clone();
            self.pod_deleted(&old);
        }
        let (uid, vm) = (view.uid.clone(), vm_key(&view));
        match self.pods.slot(&uid) {
            None => {
                let name = digest(&view.key);
                let slot = self.pods.insert(PodEntry {
                    view,
                    bind_hold: None,
                    orphan_floor: Resources::default(),
                    charge: None,
                });
                self.names.insert(name, slot);
            }
            Some(slot) => self.pod_changed(slot, view),
        }
        if let Some(vm) = vm {
            match self.vm_pods.get_mut(&vm) {
                Some(pods) => {
                    pods.uids.insert(uid.clone());
                }
                None => {
                    let uids = [uid.clone()].into();
                    self.vm_pods.insert(VmPods { vm, uids });
                }
            }
        }
        self.recharge(&uid);
    }

    fn pod_changed(&mut self, slot: u32, view: PodView) {
        let Some(entry) = self.pods.get_mut(&view.uid) else {
            return;
        };
        if view.node.is_some() || view.terminal {
            entry.bind_hold = None;
        }
        let old = std::mem::replace(&mut entry.view, view);
        let (vm, name) = (vm_key(&entry.view), digest(&entry.view.key));
        let said_more = old.announced.has_field_above(entry.view.announced);
        if old.key != entry.view.key {
            self.names.remove(digest(&old.key), slot);
            self.names.insert(name, slot);
        }
        let old_vm = vm_key(&old);
        if old_vm != vm {
            self.unlink(old_vm, &old.uid);
        } else if let Some(entry) = vm.and_then(|vm| self.vms.get_mut(&vm))
            && said_more
            && entry.view.uid == old.vm_uid
        {
            entry.pod_said(&old);
        }
    }

    /// Removes a pod.
    pub fn pod_deleted(&mut self, uid: &str) {
        let Some((slot, entry)) = self.pods.remove(uid) else {
            return;
        };
        self.names.remove(digest(&entry.view.key), slot);
        if let Some(charge) = entry.charge {
            self.discharge(&charge);
            self.unplace(&charge.node, uid);
            self.room_epoch += 1;
        }
        self.unlink(vm_key(&entry.view), uid);
    }

    /// The pod of this name.
    #[must_use]
    pub fn pod_named(&self, key: &NamespacedName) -> Option<&PodEntry> {
        let is_it = |slot| self.pods.at(slot).is_some_and(|pod| pod.view.key == *key);
        self.pods.at(self.names.find(digest(key), is_it)?)
    }

    /// The pod of this uid.
    #[must_use]
    pub fn pod(&self, uid: &str) -> Option<&PodEntry> {
        self.pods.get(uid)
    }

    /// All pods by uid.
    pub fn pods(&self) -> impl ExactSizeIterator<Item = &PodEntry> {
        self.pods.values()
    }

    /// Counts a pod on a node before it is observed bound. `None` ends that.
    pub fn set_bind_hold(&mut self, uid: &str, node: Option<String>) {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.bind_hold = node;
            self.recharge(uid);
        }
    }

    // ---- VMs ----

    /// Stores a state of a VM, from the watch or from the response to a write or a read. Returns
    /// false, and changes nothing, if the ledger has this version or a newer one.
    pub fn vm_observed(&mut self, view: VmView) -> bool {
        let key = view.key.clone();
        match self.vms.get_mut(&key) {
            Some(entry) if view.version != 0 && view.version <= entry.view.version => return false,
            Some(entry) => {
                self.anomalies.vm_observed(Some(&entry.view), &view);
                if entry.view.uid != view.uid {
                    entry.claim = None;
                    entry.permitted = Resources::default();
                    entry.legacy = Resources::default();
                }
                entry.peak = entry.peak_before(&view);
                entry
                    .holds
                    .retain(|hold| hold.base >= view.version && entry.view.uid == view.uid);
                entry.view = view;
                if entry
                    .claim
                    .is_some_and(|claim| !claim.has_field_above(entry.view.floor()))
                {
                    entry.claim = None;
                }
            }
            None => {
                self.anomalies.vm_observed(None, &view);
                let entry = VmEntry {
                    peak: first_peak(&view),
                    view,
                    claim: None,
                    permitted: Resources::default(),
                    holds: Vec::new(),
                    legacy: Resources::default(),
                    legacy_until: Timestamp(0),
                };
                self.vms.insert(entry);
            }
        }
        self.recharge_vm(&key);
        true
    }

    /// Removes a VM. Its pods still count at their last size.
    pub fn vm_deleted(&mut self, key: &NamespacedName, uid: &str) {
        if self.vms.get(key).is_none_or(|entry| entry.view.uid != uid) {
            return;
        }
        for pod in self.uids_of(key) {
            let counted = self.pods.get(&pod).map(|entry| self.counted(&entry.view));
            if let Some(entry) = self.pods.get_mut(&pod) {
                entry.orphan_floor = entry.orphan_floor.field_max(counted.unwrap_or_default());
            }
        }
        self.vms.remove(key);
        self.recharge_vm(key);
    }

    /// The VM of this name.
    #[must_use]
    pub fn vm(&self, key: &NamespacedName) -> Option<&VmEntry> {
        self.vms.get(key)
    }

    /// The VM that owns a pod. `None` if that VM is gone, even if another one has its name.
    #[must_use]
    pub fn vm_of(&self, pod: &PodView) -> Option<&VmEntry> {
        let vm = self.vms.get(&vm_key(pod)?);
        vm.filter(|vm| vm.view.uid == pod.vm_uid)
    }

    /// All VMs by name.
    pub fn vms(&self) -> impl ExactSizeIterator<Item = &VmEntry> {
        self.vms.values()
    }

    /// Number of pods of a VM that have not ended.
    #[must_use]
    pub fn live_pods_of(&self, vm: &NamespacedName) -> usize {
        self.pods_of(vm).filter(|pod| !pod.view.terminal).count()
    }

    /// Sets or clears the permit that an agent claims beyond the approved size.
    pub fn set_claim(&mut self, vm: &NamespacedName, claim: Option<Resources>) {
        if let Some(entry) = self.vms.get_mut(vm).filter(|entry| entry.claim != claim) {
            entry.claim = claim;
            self.recharge_vm(vm);
        }
    }

    /// Keeps the last permit of a VM.
    pub fn set_permitted(&mut self, vm: &NamespacedName, permit: Resources) {
        if let Some(entry) = self.vms.get_mut(vm) {
            entry.permitted = permit;
        }
    }

    /// Counts the target of a write, before it is sent.
    pub fn add_hold(&mut self, vm: &NamespacedName, hold: GrantHold) {
        if let Some(entry) = self.vms.get_mut(vm) {
            if !entry.holds.contains(&hold) {
                entry.holds.push(hold);
            }
            self.recharge_vm(vm);
        }
    }

    /// Ends the hold of a write that has no effect.
    pub fn drop_hold(&mut self, vm: &NamespacedName, hold: GrantHold) {
        if let Some(entry) = self.vms.get_mut(vm) {
            entry.holds.retain(|other| *other != hold);
            self.recharge_vm(vm);
        }
    }

    /// Grows whenever a node may have gained headroom.
    #[must_use]
    pub fn room_epoch(&self) -> u64 {
        self.room_epoch
    }
}

#[cfg(test)]
mod tests;
