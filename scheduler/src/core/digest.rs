//! Digests of a core, for the model checker.
//!
//! [`Core::digest`] covers the whole state. [`Core::digest_of`] covers one VM and
//! [`Core::digest_shared`] the rest. A checker digests each VM without its names and sorts the
//! digests. It can then merge states that differ only in which VM is which. The parts leave out
//! nothing but the order of the VMs (`tests/model.rs`, where both tell the same cores apart).

use std::hash::{Hash, Hasher};

use protocol::permit::NamespacedName;

use super::Core;

impl Core {
    /// Feeds all state that future behaviour depends on to a hasher. Two cores with the same rules
    /// and the same digest behave alike. Counters are left out.
    pub fn digest(&self, hasher: &mut impl Hasher) {
        self.ledger.digest(hasher);
        self.permits.digest(hasher);
        self.digest_rest(hasher);
        if let Some(cache) = &self.standby_cache {
            cache.digest(hasher);
        }
    }

    /// The part of [`Core::digest`] about one VM. It includes the names of the VM and its pods, but
    /// not the ids of its requests.
    pub fn digest_of(&self, vm: &NamespacedName, hasher: &mut impl Hasher) {
        self.ledger.digest_of(vm, hasher);
        self.permits.digest_of(vm, hasher);
        if let Some(cache) = &self.standby_cache {
            cache.digest_of(vm, hasher);
        }
    }

    /// The part of [`Core::digest`] about no single VM. It includes placement, fairness and
    /// migrations as a whole, with names.
    pub fn digest_shared(&self, hasher: &mut impl Hasher) {
        self.ledger.digest_shared(hasher);
        self.permits.digest_shared(hasher);
        self.digest_rest(hasher);
        self.standby_cache.is_some().hash(hasher);
        if let Some(cache) = &self.standby_cache {
            cache.digest_shared(hasher);
        }
    }

    fn digest_rest(&self, hasher: &mut impl Hasher) {
        self.placement.digest(hasher);
        self.extender.digest(hasher);
        // Until migrations are listed, no decision depends on these.
        if self.migrate.is_listed() {
            self.denied_increases.digest(hasher);
            self.migrate.digest(hasher);
        }
        (self.synced, &self.lead, self.out.len()).hash(hasher);
        if self.caches_on_standby {
            (self.awaited, self.newest).hash(hasher);
        }
    }
}
