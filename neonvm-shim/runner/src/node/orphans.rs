//! Guests whose pods the API's store does not have, and never had. They are left alone until a
//! person decides.
//!
//! A pod that is absent was deleted only if the same store has shown it before. With another store,
//! an emptied one or an older copy, the absence means nothing, and ending the guest would lose its
//! disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::pod_record::PodRecord;
use crate::config::RunnerConfig;
use crate::core::paths::Paths;
use crate::shell::record::read_json;

/// A running guest without a pod in the API's store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphan {
    /// Namespace of its pod and VM.
    pub namespace: String,
    /// Name of its VM. Empty if the directory does not have it.
    pub vm: String,
    /// Name of its pod, which the API's store does not have.
    pub pod: String,
    /// Uid of the pod, from the directory's record.
    pub uid: String,
    /// The runner's directory of the guest.
    pub dir: PathBuf,
}

impl Orphan {
    pub(super) fn of(record: &PodRecord, dir: &Path) -> Self {
        let config: Option<RunnerConfig> = read_json(&Paths::new(dir).config()).ok().flatten();
        Self {
            namespace: record.namespace.clone(),
            vm: config.map(|config| config.vm).unwrap_or_default(),
            pod: record.name.clone(),
            uid: record.uid.clone(),
            dir: dir.to_owned(),
        }
    }

    /// Key of the pod, `namespace/pod`.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.pod)
    }
}

/// Orphans of a node driver. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Orphans(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    all: BTreeMap<String, Orphan>,
    released: BTreeSet<String>,
}

impl Orphans {
    /// All orphans, in the order of `namespace/pod`.
    #[must_use]
    pub fn list(&self) -> Vec<Orphan> {
        self.locked().all.values().cloned().collect()
    }

    /// Releases the guest of a pod: the driver ends it and moves its directory aside. Returns
    /// `false` if the pod is no orphan.
    #[must_use]
    pub fn release(&self, key: &str) -> bool {
        let mut state = self.locked();
        let is_known = state.all.contains_key(key);
        if is_known {
            state.released.insert(key.to_owned());
            self.0.wake.notify_one();
        }
        is_known
    }

    /// Adds an orphan; returns `true` if it is new.
    pub(super) fn add(&self, orphan: Orphan) -> bool {
        self.locked().all.insert(orphan.key(), orphan).is_none()
    }

    pub(super) fn remove(&self, key: &str) {
        self.locked().all.remove(key);
    }

    /// Waits for releases, and removes those orphans.
    pub(super) async fn released(&self) -> Vec<Orphan> {
        loop {
            // Created before the check, so that no release is missed in between.
            let woken = self.0.wake.notified();
            let taken = self.take_released();
            if !taken.is_empty() {
                return taken;
            }
            woken.await;
        }
    }

    fn take_released(&self) -> Vec<Orphan> {
        let mut state = self.locked();
        let released = std::mem::take(&mut state.released);
        let taken = released.iter().filter_map(|key| state.all.remove(key));
        taken.collect()
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
