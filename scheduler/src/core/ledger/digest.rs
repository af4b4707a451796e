//! Digests of the ledger, whole and in parts. They leave out sums and indexes, which follow from
//! the entries.

use std::hash::{Hash, Hasher};

use protocol::permit::NamespacedName;

use super::{Ledger, vm_key};

impl Ledger {
    pub(in crate::core) fn digest(&self, hasher: &mut impl Hasher) {
        (&self.nodes, &self.pods, &self.vms).hash(hasher);
    }

    pub(in crate::core) fn digest_of(&self, vm: &NamespacedName, hasher: &mut impl Hasher) {
        for pod in self.pods_of(vm) {
            pod.hash(hasher);
        }
        self.vm(vm).hash(hasher);
    }

    pub(in crate::core) fn digest_shared(&self, hasher: &mut impl Hasher) {
        self.nodes.hash(hasher);
        for pod in self.pods.values() {
            if vm_key(&pod.view).is_none() {
                pod.hash(hasher);
            }
        }
    }
}
