//! The watch of this node's pods, and the workers that it starts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api_client::watch::{self as api_watch, Config, Event, Retry};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod as ApiPod;
use kube::Api;
use protocol::annotations::LABEL_VM_NAME;
use protocol::object::{Pod, without_nulls};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use super::api::PodId;
use super::deletions;
use super::host_wall;
use super::object::keep;
use super::params::{GuestWalls, NodeParams};
use super::pod_driver::{DesiredPod, PodDriver};
use super::pod_record::PodRecord;
use super::prepare::{AddressAllocator, grace_ms};
use super::trash::keep_clean;
use super::users::{self, UserAllocator};
use crate::core::pod::Desired;
use crate::shell::record::{RecordError, private_dir};

mod absent;

/// Pause between two requests about a pod that was not listed.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Interval of saving the objects for adoption.
pub(super) const SAVE_EVERY: Duration = Duration::from_secs(60);
/// Delay of saving after a pod was started: its VM's objects are complete by then.
const SAVE_AFTER_START: Duration = Duration::from_secs(5);

/// Errors at the start of a node driver.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The directory of VMs cannot be made or read.
    #[error("cannot use {0}")]
    Directory(String, #[source] std::io::Error),
    /// The file of the pods' addresses or users is malformed or cannot be read.
    #[error("cannot read the pods' addresses and users")]
    Addresses(#[from] RecordError),
}

/// Runs the node driver until cancelled. Runners and guests outlive it.
///
/// # Errors
/// [`NodeError`], at the start only. The driver waits for an API that is not available.
pub async fn run(mut params: NodeParams, cancel: CancellationToken) -> Result<(), NodeError> {
    // Runners have working directories of their own, so every path must be absolute.
    for dir in [&mut params.state_dir, &mut params.store_dir] {
        *dir = std::path::absolute(&*dir)
            .map_err(|error| NodeError::Directory(dir.display().to_string(), error))?;
    }
    let vms = params.vms_dir();
    for dir in [&params.state_dir, &vms] {
        private_dir(dir).map_err(|error| NodeError::Directory(dir.display().to_string(), error))?;
    }
    let path = params.state_dir.join("addresses.json");
    let addresses = AddressAllocator::open(path, params.loopback)?;
    let users = match params.walls {
        GuestWalls::Walled(Some(range)) => {
            Some(UserAllocator::open(users::path(&params.state_dir), range)?)
        }
        _ => None,
    };
    host_wall::make(&params).await;
    let mut driver = NodeDriver {
        params,
        addresses,
        users,
        workers: BTreeMap::new(),
        tasks: JoinSet::new(),
        queued: BTreeMap::new(),
        listed: None,
        doubtful: BTreeSet::new(),
        ask_at: Instant::now(),
        saving: None,
        save_at: Instant::now() + SAVE_EVERY,
    };
    let heart = tokio::spawn(keep(driver.params.clone(), cancel.clone()));
    let clock = driver.params.clock;
    let cleaner = tokio::spawn(keep_clean(driver.params.state_dir.clone(), clock));
    let deletions = tokio::spawn(deletions::follow(driver.params.clone(), cancel.clone()));
    let wall = tokio::spawn(host_wall::keep(driver.params.clone(), cancel.clone()));
    driver.follow(&cancel).await;
    // Workers keep no state that is not on disk.
    driver.tasks.shutdown().await;
    heart.abort();
    cleaner.abort();
    deletions.abort();
    wall.abort();
    Ok(())
}

struct PodTask {
    uid: String,
    desired_pod: watch::Sender<Arc<DesiredPod>>,
}

/// Why a pod counts as gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evidence {
    /// The watch has reported its deletion.
    Deleted,
    /// The API does not have it.
    Unlisted,
}

struct NodeDriver {
    params: NodeParams,
    addresses: AddressAllocator,
    users: Option<UserAllocator>,
    workers: BTreeMap<String, PodTask>,
    tasks: JoinSet<(String, String)>,
    /// Pods that wait for the end of a predecessor with the same name.
    queued: BTreeMap<String, (PodId, DesiredPod)>,
    /// Keys in the list in progress.
    listed: Option<BTreeSet<String>>,
    /// Pods that were missing in a list, until the API confirms that they are gone.
    doubtful: BTreeSet<String>,
    /// When the API is asked about them again.
    ask_at: Instant,
    /// The task that saves objects, and when the next one is due.
    saving: Option<AbortOnDropHandle<()>>,
    save_at: Instant,
}

impl NodeDriver {
    async fn follow(&mut self, cancel: &CancellationToken) {
        let pods: Api<ApiPod> = Api::all(self.params.client.clone());
        // Without the label: a label-selected watch sends `DELETED` for a pod that loses the label,
        // and the driver would stop its guest.
        let node = format!("spec.nodeName={}", self.params.node_name);
        let config = Config::default().fields(&node);
        let mut events = api_watch::objects(pods, config, Retry::Patient);
        let orphans = self.params.orphans.clone();
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                Some(done) = self.tasks.join_next() => {
                    if let Ok((key, uid)) = done {
                        self.forget(&key, &uid);
                    }
                }
                event = events.next() => match event {
                    Some(Ok(event)) => self.take(event).await,
                    Some(Err(error)) => debug!(error = daemon_kit::chain(&error), "watch of pods failed, retrying"),
                    None => return,
                },
                released = orphans.released() => {
                    for orphan in released {
                        self.let_go(&orphan);
                    }
                }
                () = tokio::time::sleep_until(self.ask_at), if !self.doubtful.is_empty() => {
                    self.end_deleted().await;
                }
                () = tokio::time::sleep_until(self.save_at) => self.save_objects(),
            }
        }
    }

    async fn take(&mut self, event: Event<ApiPod>) {
        match event {
            Event::Init => self.listed = Some(BTreeSet::new()),
            Event::InitApply(pod) => {
                if !self.is_ours(&pod) {
                    return;
                }
                if let (Some(listed), Some(key)) = (&mut self.listed, key_of(&pod)) {
                    listed.insert(key);
                }
                self.apply(&pod);
            }
            Event::InitDone => {
                if let Some(listed) = self.listed.take() {
                    self.miss(&listed);
                    self.end_deleted().await;
                }
            }
            Event::Apply(pod) => {
                if self.is_ours(&pod) {
                    self.apply(&pod);
                }
            }
            Event::Delete(pod) => {
                if let Some(key) = key_of(&pod) {
                    self.queued.remove(&key);
                    self.gone(&key, Evidence::Deleted);
                }
            }
        }
    }

    /// Whether this driver runs a pod: it has the label of VMs' pods, or had it when its guest
    /// started.
    fn is_ours(&self, pod: &ApiPod) -> bool {
        let labels = pod.metadata.labels.as_ref();
        if labels.is_some_and(|labels| labels.contains_key(LABEL_VM_NAME)) {
            return true;
        }
        let Some(id) = id_of(pod) else { return false };
        let known = self.workers.get(&id.key());
        known.is_some_and(|known| known.uid == id.uid)
            || self.record(&id).is_some_and(|record| record.uid == id.uid)
    }

    /// The record in the directory for a pod's name.
    fn record(&self, id: &PodId) -> Option<PodRecord> {
        PodRecord::read(&self.params.vms_dir().join(id.dir_name()))
    }

    fn apply(&mut self, pod: &ApiPod) {
        let Some((id, desired_pod)) = desired_pod(pod) else {
            // A malformed pod affects only itself.
            warn!(pod = ?pod.metadata.name, "malformed pod ignored");
            return;
        };
        let key = id.key();
        if self
            .workers
            .get(&key)
            .is_some_and(|known| known.uid == id.uid)
        {
            if let Some(known) = self.workers.get(&key) {
                known.desired_pod.send_replace(Arc::new(desired_pod));
            }
            return;
        }
        if self.workers.contains_key(&key) {
            self.queued.insert(key.clone(), (id, desired_pod));
            self.gone(&key, Evidence::Unlisted);
            return;
        }
        match self.record(&id) {
            Some(record) if record.uid == id.uid || self.is_adopted(&record, &desired_pod) => {
                self.belongs_to(record, &id, &desired_pod);
                self.start(id, desired_pod);
            }
            Some(record) if self.is_orphan(&record) => self.hold_up(id, desired_pod, &record),
            Some(record) => {
                self.queued.insert(key, (id, desired_pod));
                self.start_gone(&record);
            }
            None => self.start(id, desired_pod),
        }
    }

    fn start(&mut self, id: PodId, desired_pod: DesiredPod) {
        self.save_at = self.save_at.min(Instant::now() + SAVE_AFTER_START);
        let (key, uid) = (id.key(), id.uid.clone());
        let (tx, rx) = watch::channel(Arc::new(desired_pod));
        let worker = PodDriver {
            params: self.params.clone(),
            addresses: self.addresses.clone(),
            users: self.users.clone(),
            dir: self.params.vms_dir().join(id.dir_name()),
            id,
            desired_pod: rx,
        };
        self.workers.insert(
            key.clone(),
            PodTask {
                uid: uid.clone(),
                desired_pod: tx,
            },
        );
        self.tasks.spawn(async move {
            worker.run().await;
            (key, uid)
        });
    }

    fn gone(&mut self, key: &str, evidence: Evidence) {
        if let Some(known) = self.workers.get(key) {
            known.desired_pod.send_modify(|desired_pod| {
                let grace_ms = match desired_pod.desired {
                    Desired::Stop { grace_ms } | Desired::Gone { grace_ms } => grace_ms,
                    Desired::Run => grace_ms(&desired_pod.pod),
                };
                let was_deleted = matches!(desired_pod.desired, Desired::Stop { .. });
                *desired_pod = Arc::new(DesiredPod {
                    desired: Desired::Gone { grace_ms },
                    seen_deleted: evidence == Evidence::Deleted
                        || was_deleted
                        || desired_pod.seen_deleted,
                    ..DesiredPod::clone(desired_pod)
                });
            });
        }
    }

    fn start_gone(&mut self, record: &PodRecord) {
        let desired = Desired::Gone {
            grace_ms: record.grace_ms,
        };
        self.start(
            record.id(),
            DesiredPod {
                desired,
                pod: Pod::default(),
                status: Value::Null,
                seen_deleted: false,
            },
        );
    }

    fn forget(&mut self, key: &str, uid: &str) {
        if self.workers.get(key).is_some_and(|known| known.uid == uid) {
            self.workers.remove(key);
        }
        if let Some((id, desired_pod)) = self.queued.remove(key) {
            self.start(id, desired_pod);
        }
    }
}

fn key_of(pod: &ApiPod) -> Option<String> {
    let name = pod.metadata.name.as_deref()?;
    Some(format!("{}/{name}", pod.metadata.namespace.as_deref()?))
}

fn id_of(pod: &ApiPod) -> Option<PodId> {
    let meta = &pod.metadata;
    Some(PodId {
        namespace: meta.namespace.clone()?,
        name: meta.name.clone()?,
        uid: meta.uid.clone()?,
    })
}

fn desired_pod(pod: &ApiPod) -> Option<(PodId, DesiredPod)> {
    let value = without_nulls(serde_json::to_value(pod).ok()?);
    let status = value.get("status").cloned().unwrap_or_default();
    let period = value["metadata"]["deletionGracePeriodSeconds"].as_i64();
    let pod: Pod = serde_json::from_value(value).ok()?;
    let id = PodId {
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
    };
    if id.namespace.is_empty() || id.name.is_empty() {
        return None;
    }
    let desired = if pod.metadata.deletion_timestamp.is_some() {
        let given = period.and_then(|seconds| u64::try_from(seconds).ok());
        let grace_ms = given.map_or_else(|| grace_ms(&pod), |seconds| seconds.saturating_mul(1000));
        Desired::Stop { grace_ms }
    } else {
        Desired::Run
    };
    Some((
        id,
        DesiredPod {
            desired,
            pod,
            status,
            seen_deleted: false,
        },
    ))
}

#[cfg(test)]
mod tests;
