//! What agents that are gone were permitted: their patches may land for a while.

use protocol::permit::NamespacedName;
use protocol::time::Timestamp;
use protocol::units::Resources;

use super::Ledger;

impl Ledger {
    /// Counts what an earlier agent may yet patch, `until` then.
    pub fn set_legacy(&mut self, vm: &NamespacedName, legacy: Resources, until: Timestamp) {
        if let Some(entry) = self.vms.get_mut(vm) {
            entry.legacy_until = until;
            if entry.legacy != legacy {
                entry.legacy = legacy;
                self.recharge_vm(vm);
            }
        }
    }

    /// It is `now`: what an earlier agent was permitted is not counted any more, unless it is to be
    /// for longer.
    pub fn end_legacy(&mut self, vm: &NamespacedName, now: Timestamp) {
        if let Some(entry) = self.vms.get_mut(vm).filter(|it| it.legacy_until <= now) {
            entry.legacy = Resources::default();
            self.recharge_vm(vm);
        }
    }
}
