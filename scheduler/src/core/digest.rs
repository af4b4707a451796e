//! What tells two cores apart, for model checking.
//!
//! [`Core::digest`] is the whole of it. The same in parts, [`Core::digest_of`] for each VM and
//! [`Core::digest_shared`] for the rest, lets a checker take states for one that differ in nothing
//! but which VM is which: it digests each VM's part without its names and puts the digests in
//! order. What the parts leave out of the whole is the order of VMs alone (`tests/model.rs`, where
//! both tell the same cores apart).

use std::hash::{Hash, Hasher};

use protocol::permit::NamespacedName;

use super::Core;

impl Core {
    /// Feeds all that decides over what it does from now on to a hasher: of two cores with the same
    /// rules, the same digest means the same behaviour. Mere counts are left out. For model
    /// checking.
    pub fn digest(&self, hasher: &mut impl Hasher) {
        self.ledger.digest(hasher);
        self.permits.digest(hasher);
        self.digest_rest(hasher);
        if let Some(warm) = &self.warm {
            warm.digest(hasher);
        }
    }

    /// The part of [`Core::digest`] that concerns one VM. Its names and its pods' are in it, the
    /// numbers of its requests are not.
    pub fn digest_of(&self, vm: &NamespacedName, hasher: &mut impl Hasher) {
        self.ledger.digest_of(vm, hasher);
        self.permits.digest_of(vm, hasher);
        if let Some(warm) = &self.warm {
            warm.digest_of(vm, hasher);
        }
    }

    /// The part of [`Core::digest`] that concerns no VM in particular. Where more is on than
    /// grants, such as placement, fairness or migration, that is all in here, with its names.
    pub fn digest_shared(&self, hasher: &mut impl Hasher) {
        self.ledger.digest_shared(hasher);
        self.permits.digest_shared(hasher);
        self.digest_rest(hasher);
        self.warm.is_some().hash(hasher);
        if let Some(warm) = &self.warm {
            warm.digest_shared(hasher);
        }
    }

    fn digest_rest(&self, hasher: &mut impl Hasher) {
        self.placement.digest(hasher);
        self.extender.digest(hasher);
        // Until migrations are known, nothing of this decides anything.
        if self.migrate.is_listed() {
            self.wishes.digest(hasher);
            self.migrate.digest(hasher);
        }
        (self.synced, &self.lead, self.out.len()).hash(hasher);
        if self.keeps_warm {
            (self.awaited, self.newest).hash(hasher);
        }
    }
}
