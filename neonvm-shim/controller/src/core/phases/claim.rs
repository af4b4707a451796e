//! A VM that a migration has claimed and that is gone.

use protocol::vm::VmPhase;

use crate::core::action::Action;
use crate::core::draft::Draft;
use crate::core::vm_event::VmEvent;

impl Draft<'_> {
    /// Releases the claim of a migration that does not exist, and returns whether it did. A
    /// controller's write may land after the controller and the migration have ended, and would
    /// leave the VM claimed for ever. A new claim needs a newer version of the object.
    pub(in crate::core) fn release_claim(&mut self) -> bool {
        let Some(claim) = self.stored.migration.clone() else {
            return false;
        };
        match self.input.check_claim_at {
            None => {
                self.status.phase = VmPhase::Running;
                self.status.migration = None;
                self.events.push(VmEvent::TakenBack {
                    migration: claim.name,
                });
                true
            }
            Some(at) if at > self.input.at.now => {
                self.wake_at(at);
                false
            }
            Some(_) => {
                self.actions.push(Action::ReadMigration {
                    name: claim.name,
                    uid: claim.uid,
                });
                false
            }
        }
    }
}
