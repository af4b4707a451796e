//! QEMUs send their guests, and notice that a stream breaks.

use super::Machine;
use crate::migrations::outcome::Cheat;
use crate::migrations::world::MigrationWorld;

impl MigrationWorld {
    /// The peer of a machine that is gone notices it.
    pub(super) fn stream_breaks(&mut self, gone: &str, machine: &Machine) {
        let peer = machine.qemu.as_ref().and_then(|qemu| qemu.peer.clone());
        for (name, other) in &mut self.machines {
            let is_target = peer.as_ref() == Some(name);
            let Some(qemu) = other.qemu.as_mut() else {
                continue;
            };
            if is_target && !qemu.whole {
                qemu.migration = "failed";
            }
            if qemu.peer.as_deref() == Some(gone) && qemu.migration == "active" {
                // It goes on by itself.
                (qemu.migration, qemu.run) = ("failed", "running");
            }
        }
    }

    /// A QEMU gets on.
    pub(super) fn qemu_moves(&mut self, name: &str) -> bool {
        let cheat = self.cheat;
        let Some(qemu) = self
            .machines
            .get(name)
            .and_then(|machine| machine.qemu.clone())
        else {
            return false;
        };
        if qemu.migration != "active" {
            return false;
        }
        let Some(peer) = qemu.peer.clone() else {
            return false;
        };
        let target = self.machines.get_mut(&peer).and_then(|to| to.qemu.as_mut());
        let Some(target) = target.filter(|to| to.run == "inmigrate" && to.migration == "active")
        else {
            if let Some(own) = self
                .machines
                .get_mut(name)
                .and_then(|own| own.qemu.as_mut())
            {
                (own.migration, own.run) = ("failed", "running");
            }
            return true;
        };
        (target.migration, target.run, target.whole) = ("completed", "paused", true);
        if cheat == Some(Cheat::BeginUnasked) {
            target.run = "running";
        }
        if let Some(own) = self
            .machines
            .get_mut(name)
            .and_then(|own| own.qemu.as_mut())
        {
            own.migration = "completed";
            if cheat != Some(Cheat::BeginUnasked) {
                own.run = "postmigrate";
            }
        }
        true
    }
}
