//! One migration as the watch showed it, and the choice that led to it.

use protocol::permit::NamespacedName;
use protocol::time::Timestamp;
use serde::Serialize;

use super::object::MigrationView;
use crate::core::event::CallId;

/// The choice behind a migration that this process began.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub(super) struct Chosen {
    pub(super) pod_uid: String,
    pub(super) vm: NamespacedName,
    pub(super) target: Option<String>,
}

/// An observed migration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub(super) struct Known {
    pub(super) view: MigrationView,
    pub(super) chosen: Option<Chosen>,
    /// When it was first observed.
    pub(super) since: Timestamp,
    /// When its phase or sent bytes last changed.
    pub(super) progress: Timestamp,
    pub(super) deletion: Option<CallId>,
}
