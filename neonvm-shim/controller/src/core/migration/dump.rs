//! State of a VM's migrations for `/debug/state`. No decision reads it.

use std::collections::BTreeMap;

use protocol::time::Timestamp;
use protocol::vm::VirtualMachineMigration;
use serde::Serialize;

use super::kind::{Kind, Peer};
use super::state::MigrationCore;
use super::view::KnownRunner;
use crate::core::backoff::Backoff;

/// What `/debug/state` shows. Never read by a decision.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Dump {
    migrations: BTreeMap<String, String>,
    pub(super) known_pods: Vec<String>,
    runners: BTreeMap<String, KnownRunner>,
    under_way: Vec<(Peer, Kind)>,
    retries: Backoff<Kind>,
    failures: BTreeMap<Kind, String>,
    look_again_at: Option<Timestamp>,
}

impl MigrationCore {
    /// Copy of the core's state for `/debug/state`.
    #[must_use]
    pub fn snapshot(&self) -> Dump {
        let phase = |migration: &VirtualMachineMigration| {
            let status = migration.status.as_ref();
            status.map_or_else(String::new, |status| status.phase.clone())
        };
        Dump {
            migrations: self
                .migrations
                .iter()
                .map(|(name, migration)| (name.clone(), phase(migration)))
                .collect(),
            known_pods: self.pods.keys().cloned().collect(),
            runners: self.runners.clone(),
            under_way: self
                .busy
                .iter()
                .map(|(peer, action)| (*peer, action.kind()))
                .collect(),
            retries: self.backoff.clone(),
            failures: self.failures.clone(),
            look_again_at: self.wake_at,
        }
    }
}
