//! The charge of each pod on its node, and the sums of the nodes. Every change of a pod, a VM or a
//! hold ends here.

use protocol::permit::NamespacedName;

use super::Ledger;
use super::entry::{Charge, Load, combine};
use crate::core::amount::Both;

impl Ledger {
    pub(super) fn recharge_vm(&mut self, vm: &NamespacedName) {
        for uid in self.uids_of(vm) {
            self.recharge(&uid);
        }
    }

    pub(super) fn uids_of(&self, vm: &NamespacedName) -> Vec<String> {
        let pods = self.vm_pods.get(vm);
        pods.map_or_else(Vec::new, |pods| pods.uids.iter().cloned().collect())
    }

    pub(super) fn recharge(&mut self, uid: &str) {
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
        self.move_pod(uid, old.as_ref(), fresh.as_ref());
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

    pub(super) fn discharge(&mut self, charge: &Charge) {
        self.touch(&charge.node);
        if let Some(load) = self.loads.get_mut(&charge.node) {
            // The charge was added before, so nothing can go below zero.
            *load = combine(*load, charge.load, |sum, part| sum - part);
            if *load == Load::default() {
                self.loads.remove(&charge.node);
            }
        }
    }

    pub(super) fn unlink(&mut self, vm: Option<NamespacedName>, uid: &str) {
        let Some(vm) = vm else { return };
        if let Some(pods) = self.vm_pods.get_mut(&vm) {
            pods.uids.remove(uid);
            if pods.uids.is_empty() {
                self.vm_pods.remove(&vm);
            }
        }
    }
}

/// Whether the new charge leaves more headroom on some node than the old one.
fn frees(old: &Charge, fresh: Option<&Charge>) -> bool {
    let Some(fresh) = fresh.filter(|fresh| fresh.node == old.node) else {
        return true;
    };
    let less = |old: Both<u128>, fresh: Both<u128>| fresh.cpu < old.cpu || fresh.mem < old.mem;
    less(old.load.reserved, fresh.load.reserved) || less(old.load.ignored, fresh.load.ignored)
}
