//! `pod.json` of a runner's directory: the pod that the directory belongs to, and the store that
//! has returned the pod.

use std::net::Ipv4Addr;
use std::path::Path;

use protocol::object::Pod;
use serde::{Deserialize, Serialize};

use super::api::PodId;
use crate::shell::record::{RecordError, read_json, write_json};

/// `pod.json`: the pod of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PodRecord {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) ip: Ipv4Addr,
    /// Milliseconds that the guest gets when the pod is gone from the API.
    pub(super) grace_ms: u64,
    /// Store of the pod, and the pod's last known revision. Directories of earlier versions have
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) store: Option<StorePosition>,
}

/// A store of the API server, and a revision that it has reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorePosition {
    /// Identity of the store, as its API server reports it.
    pub id: String,
    /// Resource version as a number; 0 if the API's is not a number.
    pub revision: u64,
}

impl StorePosition {
    /// Position of the store `id` when it returned this pod.
    pub(super) fn of(id: &str, pod: &Pod) -> Self {
        Self {
            id: id.to_owned(),
            revision: pod.metadata.resource_version.parse().unwrap_or(0),
        }
    }
}

/// Store positions in the directories of `state_dir`.
#[must_use]
pub fn seen_stores(state_dir: &Path) -> Vec<StorePosition> {
    let entries = std::fs::read_dir(state_dir.join("vms"))
        .into_iter()
        .flatten()
        .flatten();
    entries
        .filter_map(|entry| PodRecord::read(&entry.path())?.store)
        .collect()
}

impl PodRecord {
    pub(super) fn id(&self) -> PodId {
        PodId {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: self.uid.clone(),
        }
    }

    pub(super) fn read(dir: &Path) -> Option<Self> {
        // A directory with an unreadable record has no pod.
        read_json(&dir.join("pod.json")).ok().flatten()
    }

    pub(super) fn write(&self, dir: &Path) -> Result<(), RecordError> {
        write_json(&dir.join("pod.json"), self)
    }

    /// Whether the store `id` has returned this pod. Only then does its absence mean that it was
    /// deleted.
    pub(super) fn is_of_store(&self, id: &str) -> bool {
        self.store.as_ref().is_some_and(|store| store.id == id)
    }
}
