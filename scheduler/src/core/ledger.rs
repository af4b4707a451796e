//! What every node carries: observed objects, holds for what is under way, and the sums of both.
//!
//! The question it answers: *how much of this node is spoken for, at the least?* Each pod is
//! counted at the largest of all that may be true of it:
//!
//! ```text
//! counted(pod) = max( pod's own annotations, or the most it can be when they do not parse
//!                   , its VM's object: approved, wanted by spec, plugged by the runner
//!                   , claim: what its agent says it was permitted beyond that
//!                   , grant holds: targets of writes whose fate is not observed yet
//!                   , legacy: what an earlier agent was permitted, for a while after another one's first contact
//!                   , told: what its runner requests of the node, which a guest that grows has not had before
//!                   , peak: what the guest may have had since its runner last reported the size wanted )
//!              , but no more than the VM's own largest size, or what its pod requests where that is more
//! on node      = spec.nodeName, else the node of a bind hold
//! reserved     = counted / the over-commit factor that counts ([`super::overcommit`]), but no more than the node has
//! ```
//!
//! A hold ends only by observation. A grant hold remembers the version of the VM its write was
//! conditional on: the write applies to exactly that version or never, so any later version proves
//! its fate, whichever it was. A bind hold ends when the pod is seen bound or gone, or when the API
//! refused the first and only attempt. A peak ends when the runner's report catches up: a report
//! may be older than the last growth, and a size given back is not free before the guest was seen
//! without it.
//!
//! Invariants:
//! * sums equal the charges of the pods (`Ledger::audit`, called by every property test);
//! * an older state of a VM never replaces a newer one (`tests::an_older_vm_state_is_ignored`);
//! * what a guest may still have stays counted
//!   (`tests::a_late_report_frees_nothing_a_guest_may_still_have`);
//! * no word of an object or a caller counts a VM at more than its largest size (`bounds::tests`);
//! * a hold outlives errors and time-outs
//!   (`tests::a_grant_hold_ends_only_when_a_later_version_is_seen`).

mod bounds;
mod digest;
mod fit;
mod legacy;
mod places;
mod table;

use std::collections::{BTreeMap, BTreeSet};

use protocol::permit::NamespacedName;
use protocol::time::Timestamp;
use protocol::units::{Bytes, Resources};
use serde::Serialize;

pub use bounds::Anomalies;
pub use fit::Fit;

use super::amount::Both;
use super::fair::Fairness;
use super::overcommit::OvercommitPolicy;
use super::score::Curve;
use super::view::{NodeView, PodView, VmView};
use table::{Index, Keyed, Table, digest};

/// What pods take of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Load {
    /// After over-commit.
    pub reserved: Both<u128>,
    /// Before over-commit.
    pub committed: Both<u128>,
    /// The part of `reserved` whose pods are being migrated away.
    pub migrating: Both<u128>,
    /// After over-commit, pods of ignored namespaces: no part of `reserved`, but in the way of
    /// placements.
    pub ignored: Both<u128>,
}

/// What one pod adds to one node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Charge {
    node: String,
    load: Load,
}

/// A promised change of a VM's approved resources whose fate is not observed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct GrantHold {
    /// The VM's version the write is conditional on.
    pub base: u64,
    /// What the write would approve.
    pub target: Resources,
}

/// A VirtualMachine and what is under way for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct VmEntry {
    /// The newest state seen.
    pub view: VmView,
    /// What its agent says it was permitted, where that is more than is approved.
    pub claim: Option<Resources>,
    /// Writes whose fate is not observed yet.
    pub holds: Vec<GrantHold>,
    /// The most its guest may have while the runner's report is behind; nothing once it has caught
    /// up.
    pub peak: Resources,
    /// What an earlier agent was permitted and may yet patch.
    pub legacy: Resources,
    /// Until when it may.
    pub legacy_until: Timestamp,
}

impl VmEntry {
    /// The peak once `next` is seen after this.
    fn peak_before(&self, next: &VmView) -> Resources {
        let (pod, plugged) = &next.plugged;
        let (old_pod, old_plugged) = &self.view.plugged;
        if self.view.uid != next.uid || old_pod != pod {
            return first_peak(next);
        }
        if is_settled(next) {
            return Resources::default();
        }
        // A report of less than the one before was taken after the growth that one was late for.
        let since = self
            .peak
            .field_max(self.view.floor())
            .field_max(*old_plugged);
        Resources {
            cpu: if plugged.cpu < old_plugged.cpu {
                plugged.cpu
            } else {
                since.cpu
            },
            mem: if plugged.mem < old_plugged.mem {
                plugged.mem
            } else {
                since.mem
            },
        }
    }

    fn counted(&self) -> Resources {
        let claimed = self
            .claim
            .unwrap_or_default()
            .field_max(self.view.floor())
            .field_max(self.legacy);
        self.holds
            .iter()
            .fold(claimed, |sum, hold| sum.field_max(hold.target))
    }
}

/// A pod and what is under way for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct PodEntry {
    /// The newest state seen.
    pub view: PodView,
    /// The node it is being bound to.
    pub bind_hold: Option<String>,
    /// What its VM's object said last, after that object is gone.
    orphan_floor: Resources,
    #[serde(skip)]
    charge: Option<Charge>,
}

/// The pods of a VM.
#[derive(Debug, Clone)]
struct VmPods {
    vm: NamespacedName,
    uids: BTreeSet<String>,
}

impl Keyed for VmEntry {
    type Key = NamespacedName;

    fn key(&self) -> &NamespacedName {
        &self.view.key
    }
}

impl Keyed for PodEntry {
    type Key = String;

    fn key(&self) -> &String {
        &self.view.uid
    }
}

impl Keyed for VmPods {
    type Key = NamespacedName;

    fn key(&self) -> &NamespacedName {
        &self.vm
    }
}

/// Rules of counting that the configuration sets.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rules {
    /// The only `spec.schedulerName` that is ours.
    pub scheduler_name: String,
    /// Namespaces whose pods count for placement only.
    pub ignored_namespaces: BTreeSet<String>,
    /// The part of a node that should stay in use at most, in millionths of its total.
    pub watermark_ppm: u32,
    /// The scoring curve.
    pub curve: Curve,
    /// Whether what a runner reports as plugged is counted, so that memory a guest has not given
    /// back yet is not given to another.
    pub count_plugged: bool,
    /// Who grows next when several want more, and how fast.
    pub fairness: Fairness,
    /// How far over-commit factors count.
    pub overcommit: OvercommitPolicy,
}

/// See the module's description. A clone is a speculative copy.
#[derive(Debug, Clone)]
pub struct Ledger {
    rules: Rules,
    nodes: BTreeMap<String, NodeView>,
    loads: BTreeMap<String, Load>,
    pods: Table<PodEntry>,
    /// Where in `pods` the pod of a name is.
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
    /// An empty one.
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

    /// The rules it counts by.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    // ---- nodes ----

    /// A node appeared or changed.
    pub fn node_applied(&mut self, node: NodeView) {
        self.touch(&node.name);
        self.room_epoch += 1;
        let name = node.name.clone();
        let old = self.nodes.insert(name.clone(), node);
        self.bounds_changed(&name, old.as_ref());
    }

    /// A node is gone. Pods still bound to it stay counted under its name.
    pub fn node_deleted(&mut self, name: &str) {
        self.touch(name);
        let old = self.nodes.remove(name);
        self.bounds_changed(name, old.as_ref());
    }

    /// The node of that name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&NodeView> {
        self.nodes.get(name)
    }

    /// All nodes by name.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeView> {
        self.nodes.values()
    }

    /// What pods take of a node, known or not.
    #[must_use]
    pub fn load(&self, node: &str) -> Load {
        self.loads.get(node).copied().unwrap_or_default()
    }

    /// The totals below which a node should stay, rounded down.
    #[must_use]
    pub fn watermark(&self, node: &NodeView) -> Both<u64> {
        node.total.map(|_, total| {
            let part = u128::from(total) * u128::from(self.rules.watermark_ppm) / 1_000_000;
            u64::try_from(part).unwrap_or(u64::MAX)
        })
    }

    /// The largest total of each resource over the nodes that are there now.
    #[must_use]
    pub fn max_seen(&self) -> Both<u64> {
        self.nodes
            .values()
            .fold(Both::default(), |max, node| max.max(node.total))
    }

    // ---- pods ----

    /// A pod appeared or changed.
    pub fn pod_applied(&mut self, view: PodView) {
        if let Some(old) = self
            .pod_named(&view.key)
            .filter(|old| old.view.uid != view.uid)
        {
            // The name was given to a new pod, so the old one is gone whether or not we were told.
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
        if old.key != entry.view.key {
            self.names.remove(digest(&old.key), slot);
            self.names.insert(name, slot);
        }
        let old_vm = vm_key(&old);
        if old_vm != vm {
            self.unlink(old_vm, &old.uid);
        }
    }

    /// A pod is gone.
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

    /// The pod of that name.
    #[must_use]
    pub fn pod_named(&self, key: &NamespacedName) -> Option<&PodEntry> {
        let is_it = |slot| self.pods.at(slot).is_some_and(|pod| pod.view.key == *key);
        self.pods.at(self.names.find(digest(key), is_it)?)
    }

    /// The pod of that uid.
    #[must_use]
    pub fn pod(&self, uid: &str) -> Option<&PodEntry> {
        self.pods.get(uid)
    }

    /// All pods by uid.
    pub fn pods(&self) -> impl ExactSizeIterator<Item = &PodEntry> {
        self.pods.values()
    }

    /// Counts a pod on a node before it is seen bound, or stops doing so.
    pub fn set_bind_hold(&mut self, uid: &str, node: Option<String>) {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.bind_hold = node;
            self.recharge(uid);
        }
    }

    // ---- VMs ----

    /// A state of a VM was seen: by the watch, or in the answer to a write or a read. Returns
    /// whether it was news.
    pub fn vm_observed(&mut self, view: VmView) -> bool {
        let key = view.key.clone();
        match self.vms.get_mut(&key) {
            Some(entry) if view.version != 0 && view.version <= entry.view.version => return false,
            Some(entry) => {
                self.anomalies.vm_observed(Some(&entry.view), &view);
                if entry.view.uid != view.uid {
                    entry.claim = None;
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

    /// A VM is gone; its pods stay counted at what it was last.
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

    /// The VM of that name.
    #[must_use]
    pub fn vm(&self, key: &NamespacedName) -> Option<&VmEntry> {
        self.vms.get(key)
    }

    /// The VM that owns a pod; none if it is gone, also while there is another one of its name.
    #[must_use]
    pub fn vm_of(&self, pod: &PodView) -> Option<&VmEntry> {
        let vm = self.vms.get(&vm_key(pod)?);
        vm.filter(|vm| vm.view.uid == pod.vm_uid)
    }

    /// All VMs by name.
    pub fn vms(&self) -> impl ExactSizeIterator<Item = &VmEntry> {
        self.vms.values()
    }

    /// The pods of a VM that have not ended.
    #[must_use]
    pub fn live_pods_of(&self, vm: &NamespacedName) -> usize {
        self.pods_of(vm).filter(|pod| !pod.view.terminal).count()
    }

    /// Records what an agent says beyond what is approved, or that it says nothing of the kind.
    pub fn set_claim(&mut self, vm: &NamespacedName, claim: Option<Resources>) {
        if let Some(entry) = self.vms.get_mut(vm).filter(|entry| entry.claim != claim) {
            entry.claim = claim;
            self.recharge_vm(vm);
        }
    }

    /// Counts the target of a write that is about to be sent.
    pub fn add_hold(&mut self, vm: &NamespacedName, hold: GrantHold) {
        if let Some(entry) = self.vms.get_mut(vm) {
            if !entry.holds.contains(&hold) {
                entry.holds.push(hold);
            }
            self.recharge_vm(vm);
        }
    }

    /// Ends a hold whose write was refused for certain.
    pub fn drop_hold(&mut self, vm: &NamespacedName, hold: GrantHold) {
        if let Some(entry) = self.vms.get_mut(vm) {
            entry.holds.retain(|other| *other != hold);
            self.recharge_vm(vm);
        }
    }

    // ---- counting ----

    fn recharge_vm(&mut self, vm: &NamespacedName) {
        for uid in self.uids_of(vm) {
            self.recharge(&uid);
        }
    }

    fn uids_of(&self, vm: &NamespacedName) -> Vec<String> {
        let pods = self.vm_pods.get(vm);
        pods.map_or_else(Vec::new, |pods| pods.uids.iter().cloned().collect())
    }

    fn recharge(&mut self, uid: &str) {
        let Some(entry) = self.pods.get(uid) else {
            return;
        };
        let node = entry.view.node.as_ref().or(entry.bind_hold.as_ref());
        let node = node.filter(|_| !entry.view.terminal).cloned();
        let fresh = node.map(|node| Charge {
            load: self.charge_of(&entry.view, &node),
            node,
        });
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        if entry.charge == fresh {
            return;
        }
        let old = std::mem::replace(&mut entry.charge, fresh.clone());
        self.replace(uid, old.as_ref(), fresh.as_ref());
        if let Some(fresh) = &fresh {
            let load = self.loads.entry(fresh.node.clone()).or_default();
            *load = combine(*load, fresh.load, |sum, part| sum + part);
            self.touch(&fresh.node);
        }
        if let Some(old) = &old {
            self.discharge(old);
            self.room_epoch += u64::from(frees(old, fresh.as_ref()));
        }
    }

    fn discharge(&mut self, charge: &Charge) {
        self.touch(&charge.node);
        if let Some(load) = self.loads.get_mut(&charge.node) {
            // The charge was added before, so nothing can go below zero.
            *load = combine(*load, charge.load, |sum, part| sum - part);
            if *load == Load::default() {
                self.loads.remove(&charge.node);
            }
        }
    }

    fn unlink(&mut self, vm: Option<NamespacedName>, uid: &str) {
        let Some(vm) = vm else { return };
        if let Some(pods) = self.vm_pods.get_mut(&vm) {
            pods.uids.remove(uid);
            if pods.uids.is_empty() {
                self.vm_pods.remove(&vm);
            }
        }
    }

    // ---- book-keeping ----

    /// Grows whenever room may have appeared somewhere.
    #[must_use]
    pub fn room_epoch(&self) -> u64 {
        self.room_epoch
    }

    /// Recomputes every sum from the pods and compares it with what is kept. Always `Ok`; for
    /// tests.
    ///
    /// # Errors
    /// The names of the nodes whose sums are wrong.
    pub fn audit(&self) -> Result<(), Vec<String>> {
        let mut fresh: BTreeMap<String, Load> = BTreeMap::new();
        for entry in self.pods.values() {
            let node = entry.view.node.as_ref().or(entry.bind_hold.as_ref());
            if let Some(node) = node.filter(|_| !entry.view.terminal) {
                if !self
                    .on_node
                    .get(node)
                    .is_some_and(|uids| uids.contains(&entry.view.uid))
                {
                    return Err(vec![node.clone()]);
                }
                let load = fresh.entry(node.clone()).or_default();
                *load = combine(*load, self.charge_of(&entry.view, node), |sum, part| {
                    sum + part
                });
            }
        }
        let names: BTreeSet<&String> = fresh.keys().chain(self.loads.keys()).collect();
        let due = |name: &String| fresh.get(name).copied().unwrap_or_default();
        let wrong = names
            .into_iter()
            .filter(|name| due(name) != self.load(name));
        let wrong: Vec<String> = wrong.cloned().collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }
}

/// Whether a guest has what is wanted, or there is none.
fn is_settled(view: &VmView) -> bool {
    view.reached || view.plugged.0.is_empty()
}

/// The peak of a VM never seen before. A report below what is wanted may be older than any growth
/// and shrink since; where nothing was reported yet, the guest boots at what is wanted.
fn first_peak(view: &VmView) -> Resources {
    let is_reported = view.plugged.1.mem > Bytes(0);
    if is_reported && !is_settled(view) && view.plugged.1.has_field_below(view.in_use) {
        view.largest
    } else {
        Resources::default()
    }
}

/// The VM that owns a pod.
#[must_use]
pub fn vm_key(pod: &PodView) -> Option<NamespacedName> {
    let name = pod.vm.clone()?;
    Some(NamespacedName {
        namespace: pod.key.namespace.clone(),
        name,
    })
}

/// Whether replacing one charge by another leaves more room on some node.
fn frees(old: &Charge, fresh: Option<&Charge>) -> bool {
    let Some(fresh) = fresh.filter(|fresh| fresh.node == old.node) else {
        return true;
    };
    let less = |old: Both<u128>, fresh: Both<u128>| fresh.cpu < old.cpu || fresh.mem < old.mem;
    less(old.load.reserved, fresh.load.reserved) || less(old.load.ignored, fresh.load.ignored)
}

fn combine(sum: Load, part: Load, f: fn(u128, u128) -> u128) -> Load {
    let each = |a: Both<u128>, b: Both<u128>| a.zip(b).map(|_, (a, b)| f(a, b));
    Load {
        reserved: each(sum.reserved, part.reserved),
        committed: each(sum.committed, part.committed),
        migrating: each(sum.migrating, part.migrating),
        ignored: each(sum.ignored, part.ignored),
    }
}

#[cfg(test)]
mod tests;
