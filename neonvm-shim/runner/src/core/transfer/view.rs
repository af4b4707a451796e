//! State of a migration in QEMU.

use protocol::migration::Progress;
use serde::{Deserialize, Serialize};

/// Result of a query of QEMU.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct View {
    /// Status from `query-migrate`; `none` before the first migration.
    pub migration: String,
    /// `error-desc` from `query-migrate`, if the migration failed.
    pub error: Option<String>,
    /// Status from `query-status`, such as `running` or `postmigrate`.
    pub run: String,
    /// Whether the copy of the disk is in sync with it. `None` without a copy.
    pub copy: Option<bool>,
    /// Progress of the migration, as the runner's state shows it.
    pub progress: Progress,
}
