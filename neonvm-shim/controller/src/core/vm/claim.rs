//! The claim of a migration on a VM, and when the core checks that the migration exists.

use protocol::time::{Span, Timestamp};
use protocol::vm::VmStatus;

/// A claimed VM is left to its migration for this long before the controller checks that the
/// migration exists.
pub const CLAIM_CHECK_AFTER: Span = Span::from_secs(10);

/// The migration that claims the VM.
#[derive(Debug, Clone, Default)]
pub(super) struct MigrationClaim {
    uid: Option<String>,
    pub(super) check_at: Option<Timestamp>,
}

impl MigrationClaim {
    pub(super) fn observe(&mut self, status: Option<&VmStatus>, now: Timestamp) {
        let uid = status.and_then(|status| Some(&status.migration.as_ref()?.uid));
        if uid != self.uid.as_ref() {
            self.uid = uid.cloned();
            self.check_at = Some(now + CLAIM_CHECK_AFTER);
        }
    }

    /// Takes the result of a check: the uid of the migration with the claiming name, or `None`.
    pub(super) fn found(&mut self, checked: &str, found: Option<&str>, now: Timestamp) {
        if self.uid.as_deref() == Some(checked) {
            self.check_at = (found == Some(checked)).then(|| now + CLAIM_CHECK_AFTER);
        }
    }
}
