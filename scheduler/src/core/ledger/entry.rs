//! Entries of the ledger: a VM, a pod, and the sums of a node.

use std::collections::BTreeSet;

use protocol::permit::NamespacedName;
use protocol::time::Timestamp;
use protocol::units::{Bytes, Resources};
use serde::Serialize;

use super::table::Keyed;
use crate::core::amount::Both;
use crate::core::pod_requests::PodView;
use crate::core::view::VmView;

/// Sums over the pods of one node: CPU in thousandths, memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Load {
    /// Sum after over-commit, without ignored namespaces. Grants keep it within the node's total.
    pub reserved: Both<u128>,
    /// The same pods before over-commit. May be above the node's total.
    pub committed: Both<u128>,
    /// The part of `reserved` of pods that are being migrated away.
    pub migrating: Both<u128>,
    /// Pods of ignored namespaces, after over-commit. Not in `reserved`, but counted for
    /// placement.
    pub ignored: Both<u128>,
}

/// The amount that one pod adds to one node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Charge {
    pub(super) node: String,
    pub(super) load: Load,
}

/// A write of a VM's approved size whose outcome is not observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct GrantHold {
    /// The resource version that the write tests.
    pub base: u64,
    /// The size that the write approves.
    pub target: Resources,
}

/// A VirtualMachine, and sizes that count beyond its object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct VmEntry {
    /// The newest observed state.
    pub view: VmView,
    /// The last permit that the agent claims, if it is above the approved size.
    pub claim: Option<Resources>,
    /// The last permit that this replica gave. Zero before the first one.
    pub permitted: Resources,
    /// Writes whose outcome is not observed.
    pub holds: Vec<GrantHold>,
    /// The most that the guest may have while the runner's report is behind. Zero once it has
    /// caught up.
    pub peak: Resources,
    /// The permit of an earlier agent, which may still patch the VM to it.
    pub legacy: Resources,
    /// When `legacy` ends.
    pub legacy_until: Timestamp,
}

impl VmEntry {
    /// The peak after `next` is observed.
    pub(super) fn peak_before(&self, next: &VmView) -> Resources {
        let (pod, plugged) = &next.plugged;
        let (old_pod, old_plugged) = &self.view.plugged;
        if self.view.uid != next.uid || old_pod != pod {
            return first_peak(next);
        }
        if is_settled(next) {
            return Resources::default();
        }
        // A smaller report is newer than the growth that the report before it missed.
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

    /// Keeps what the VM's pod said before it said less. The controller writes the report of what
    /// the guest has first, but the watch of pods may be ahead of that of VMs.
    pub(super) fn pod_said(&mut self, old: &PodView) {
        if !is_settled(&self.view) && self.view.plugged.0 == old.key.name {
            self.peak = self.peak.field_max(old.announced);
        }
    }

    pub(super) fn counted(&self) -> Resources {
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

/// A pod, and sizes that count beyond its object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct PodEntry {
    /// The newest observed state.
    pub view: PodView,
    /// The node of a binding whose outcome is not observed.
    pub bind_hold: Option<String>,
    /// The size that the pod counted at when its VM's object was deleted.
    pub(super) orphan_floor: Resources,
    #[serde(skip)]
    pub(super) charge: Option<Charge>,
}

/// The pods of a VM.
#[derive(Debug, Clone)]
pub(super) struct VmPods {
    pub(super) vm: NamespacedName,
    pub(super) uids: BTreeSet<String>,
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

/// Whether the guest has the size in use, or there is no guest.
fn is_settled(view: &VmView) -> bool {
    view.reached || view.plugged.0.is_empty()
}

/// The peak of a VM at its first observation. A report below the size in use may be older than any
/// growth and shrink since. Without a report the guest boots at the size in use.
pub(super) fn first_peak(view: &VmView) -> Resources {
    let is_reported = view.plugged.1.mem > Bytes(0);
    if is_reported && !is_settled(view) && view.plugged.1.has_field_below(view.in_use) {
        view.largest
    } else {
        Resources::default()
    }
}

/// The name of the VM that owns a pod. `None` for a plain pod.
#[must_use]
pub fn vm_key(pod: &PodView) -> Option<NamespacedName> {
    let name = pod.vm.clone()?;
    Some(NamespacedName {
        namespace: pod.key.namespace.clone(),
        name,
    })
}

pub(super) fn combine(sum: Load, part: Load, f: fn(u128, u128) -> u128) -> Load {
    let each = |a: Both<u128>, b: Both<u128>| a.zip(b).map(|_, (a, b)| f(a, b));
    Load {
        reserved: each(sum.reserved, part.reserved),
        committed: each(sum.committed, part.committed),
        migrating: each(sum.migrating, part.migrating),
        ignored: each(sum.ignored, part.ignored),
    }
}
