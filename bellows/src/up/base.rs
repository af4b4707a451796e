//! What `bellows up` builds every component from.

use std::sync::{Arc, OnceLock};

use apiserver::Backups;
use daemon_kit::StageLog;
use daemon_kit::clock::Clock;
use neonvm_runner::node::Orphans;

use super::part_registry::PartRegistry;
use super::secrets::Secrets;
use crate::instance::Instance;
use crate::places::StateDir;

/// State and handles that every component of `bellows up` receives.
pub(crate) struct Base {
    pub(crate) state: StateDir,
    pub(crate) instance: Instance,
    pub(crate) clock: Clock,
    pub(crate) stages: StageLog,
    pub(crate) parts: PartRegistry,
    /// Guests whose pods the store does not have.
    pub(crate) orphans: Orphans,
    /// Makes copies of the store, once it is open.
    pub(crate) backups: Arc<OnceLock<Backups>>,
    pub(crate) secrets: Secrets,
}
