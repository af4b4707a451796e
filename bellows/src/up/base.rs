//! State that every component of `bellows up` is built from.

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
    /// Guests whose pods the store lacks.
    pub(crate) orphans: Orphans,
    /// Copies the store, once it is open.
    pub(crate) backups: Arc<OnceLock<Backups>>,
    /// This machine among others, once it has joined.
    pub(crate) peers: Arc<OnceLock<peers_mesh::Mesh>>,
    pub(crate) secrets: Secrets,
}
