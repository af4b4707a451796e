//! Guests whose pods the API does not list: some are ended, others are left alone as [`Orphan`]s.

use std::collections::{BTreeMap, BTreeSet};

use protocol::annotations::ANNOTATION_ADOPTS;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::{ASK_AGAIN, DesiredPod, Evidence, Instant, NodeDriver, PodId, PodRecord, SAVE_EVERY};
use crate::node::api;
use crate::node::orphans::Orphan;
use crate::node::pod_record::StorePosition;
use crate::node::saved;

impl NodeDriver {
    /// Sorts guests without a pod in the list. Only a store that has returned a pod can have
    /// deleted it.
    pub(super) fn miss(&mut self, listed: &BTreeSet<String>) {
        let workers = self.workers.keys();
        let unlisted = workers.filter(|key| !listed.contains(*key));
        self.doubtful = unlisted.cloned().collect();
        for record in self.directories() {
            let key = record.id().key();
            if listed.contains(&key) || self.workers.contains_key(&key) {
                continue;
            }
            if self.is_orphan(&record) {
                self.leave_alone(&record);
            } else {
                self.doubtful.insert(key);
            }
        }
    }

    /// Ends the doubtful guests whose pods are gone by the API's answer. A list can lack an
    /// existing pod, for example one that was bound to this node under another name.
    pub(super) async fn end_deleted(&mut self) {
        let records: BTreeMap<String, PodRecord> = self
            .directories()
            .into_iter()
            .map(|record| (record.id().key(), record))
            .collect();
        for key in std::mem::take(&mut self.doubtful) {
            let record = records.get(&key);
            let known = self.workers.get(&key).map(|known| known.uid.clone());
            let Some(uid) = known.or_else(|| record.map(|record| record.uid.clone())) else {
                continue;
            };
            let Some(id) = PodId::of_key(&key, &uid) else {
                continue;
            };
            self.end_if_deleted(&id, record).await;
        }
        self.ask_at = Instant::now() + ASK_AGAIN;
    }

    async fn end_if_deleted(&mut self, id: &PodId, record: Option<&PodRecord>) {
        let pod = id.key();
        let asked = timeout(ASK_AGAIN, api::is_there(&self.params.client, id)).await;
        let problem = match asked {
            Ok(Ok(true)) => {
                warn!(
                    pod,
                    "pod exists but is not bound to this node: its guest is left alone"
                );
                return;
            }
            Ok(Ok(false)) => {
                info!(
                    pod,
                    "pod was deleted while it was not watched, its guest is stopped"
                );
                match record {
                    _ if self.workers.contains_key(&pod) => self.gone(&pod, Evidence::Unlisted),
                    Some(record) => self.start_gone(record),
                    None => {}
                }
                return;
            }
            Ok(Err(error)) => daemon_kit::chain(&error),
            Err(_) => "no answer".to_owned(),
        };
        warn!(pod, problem, "failed to ask the API for the pod, retrying");
        self.doubtful.insert(pod);
    }

    /// Whether a directory belongs to a pod that this store has never returned.
    pub(super) fn is_orphan(&self, record: &PodRecord) -> bool {
        !record.is_of_store(&self.params.store_id)
    }

    /// Whether a pod adopts the guest of a directory whose own pod the store does not have.
    pub(super) fn is_adopted(&self, record: &PodRecord, desired_pod: &DesiredPod) -> bool {
        let adopts = desired_pod.pod.metadata.annotations.get(ANNOTATION_ADOPTS);
        let [pod, uid] = [&record.name, &record.uid];
        self.is_orphan(record) && adopts.is_some_and(|adopts| *adopts == format!("{pod}/{uid}"))
    }

    /// Records that a directory belongs to a pod of this store, before anything is done for the
    /// pod.
    pub(super) fn belongs_to(
        &mut self,
        mut record: PodRecord,
        id: &PodId,
        desired_pod: &DesiredPod,
    ) {
        let is_known = record.uid == id.uid && !self.is_orphan(&record);
        if is_known {
            return;
        }
        let key = id.key();
        record.uid.clone_from(&id.uid);
        record.store = Some(StorePosition::of(&self.params.store_id, &desired_pod.pod));
        match record.write(&self.params.vms_dir().join(id.dir_name())) {
            Ok(()) => info!(pod = key, "guest adopted from another store"),
            // The guest is then an orphan again at the next start, and nothing is lost.
            Err(error) => warn!(
                pod = key,
                error = daemon_kit::chain(&error),
                "failed to record the pod's store"
            ),
        }
        self.params.orphans.remove(&key);
    }

    /// Queues a pod whose directory belongs to an orphan with the same name.
    pub(super) fn hold_up(&mut self, id: PodId, desired_pod: DesiredPod, record: &PodRecord) {
        self.leave_alone(record);
        let key = id.key();
        if self.queued.insert(key.clone(), (id, desired_pod)).is_none() {
            warn!(
                pod = key,
                "pod waits: a guest of another store has its name; see bellows adopt"
            );
        }
    }

    /// Ends a released guest. Its directory is moved aside.
    pub(super) fn let_go(&mut self, orphan: &Orphan) {
        let records = self.directories();
        let of_orphan = |record: &&PodRecord| record.id().key() == orphan.key();
        if let Some(record) = records.iter().find(of_orphan)
            && !self.workers.contains_key(&orphan.key())
        {
            info!(pod = orphan.key(), "guest released, it is stopped");
            self.start_gone(record);
        }
    }

    fn leave_alone(&self, record: &PodRecord) {
        let orphan = Orphan::of(record, &self.params.vms_dir().join(record.id().dir_name()));
        let key = orphan.key();
        if self.params.orphans.add(orphan) {
            warn!(
                pod = key,
                "the store has never shown this pod: its guest and its disk are left alone; \
                 bellows adopt brings its objects back or lets it go"
            );
        }
    }

    /// Saves the objects for adoption, in a task of its own.
    pub(super) fn save_objects(&mut self) {
        self.save_at = Instant::now() + SAVE_EVERY;
        let pods = self.workers.values().map(|known| {
            let desired_pod = known.desired_pod.borrow();
            desired_pod.pod.clone()
        });
        let pods: Vec<_> = pods.collect();
        let is_over = self.saving.as_ref().is_none_or(|task| task.is_finished());
        if is_over && !pods.is_empty() {
            let saving = saved::save(self.params.clone(), pods);
            self.saving = Some(AbortOnDropHandle::new(tokio::spawn(saving)));
        }
    }

    fn directories(&self) -> Vec<PodRecord> {
        let Ok(entries) = std::fs::read_dir(self.params.vms_dir()) else {
            return Vec::new();
        };
        entries
            .flatten()
            .filter_map(|entry| PodRecord::read(&entry.path()))
            .collect()
    }
}
