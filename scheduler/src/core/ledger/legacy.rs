//! Permits of agents that have ended. Their patches may arrive for a while.

use protocol::permit::NamespacedName;
use protocol::time::Timestamp;
use protocol::units::Resources;

use super::Ledger;

impl Ledger {
    /// Counts the permit of an earlier agent until `until`.
    pub fn set_legacy(&mut self, vm: &NamespacedName, legacy: Resources, until: Timestamp) {
        if let Some(entry) = self.vms.get_mut(vm) {
            entry.legacy_until = until;
            if entry.legacy != legacy {
                entry.legacy = legacy;
                self.recharge_vm(vm);
            }
        }
    }

    /// Ends the count of an earlier agent's permit, unless a later call extended it beyond `now`.
    pub fn end_legacy(&mut self, vm: &NamespacedName, now: Timestamp) {
        if let Some(entry) = self.vms.get_mut(vm).filter(|it| it.legacy_until <= now) {
            entry.legacy = Resources::default();
            self.recharge_vm(vm);
        }
    }
}
