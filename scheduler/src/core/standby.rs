//! The state that a standby replica keeps, so that a hand-over needs no lists.
//!
//! ```text
//! leader    lists, watches, writes ──► newest version of each kind ──► version marks, left on the Lease
//! standby   lists, watches ──► StandbyCache ──── watches have reached every mark ──► first state of the term
//!                                        └────── not within a bounded time, or no marks ──► lists
//! ```
//!
//! A watch delivers the changes of a kind in the order of their versions. A watch that has reached
//! a version has delivered every earlier write. The rest of the watch may lag, as the leader's own
//! watch may. After a crash there are no marks, because no process has recorded the last writes.
//!
//! A mark covers each version that the leader received: in responses to its writes of VMs, and from
//! its watches. The response to a binding carries no version. The leader therefore leaves no marks
//! until its own watch has shown what it bound or created.
//!
//! Invariant: of two replicas, no order of writes, watches and a hand-over overcommits
//! (`tests/model.rs`, which also shows that a successor that ignores the marks does).

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use protocol::permit::NamespacedName;
use protocol::time::Span;

use super::event::{Event, ObjectKind, WatchProgress};
use super::ledger::vm_key;
use super::migrate::object::MigrationView;
use super::pod_requests::PodView;
use super::view::{NodeView, VmView};

/// How long a new leader waits for its watches to reach the marks. A watch lags far less, and lists
/// of a large cluster take far longer.
pub const CATCH_UP: Span = Span::from_secs(1);

/// One resource version per kind. A successor must have observed all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VersionMarks([u64; ObjectKind::ALL.len()]);

impl VersionMarks {
    fn raise(&mut self, kind: ObjectKind, version: u64) {
        let mark = &mut self.0[kind as usize];
        *mark = version.max(*mark);
    }

    fn raise_all(&mut self, other: Self) {
        for kind in ObjectKind::ALL {
            self.raise(kind, other.0[kind as usize]);
        }
    }
}

/// `nodes=7 pods=31 virtualmachines=40 migrations=0`.
impl fmt::Display for VersionMarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for kind in ObjectKind::ALL {
            let gap = if kind == ObjectKind::Nodes { "" } else { " " };
            write!(f, "{gap}{}={}", kind, self.0[kind as usize])?;
        }
        Ok(())
    }
}

/// The text does not name each kind once, in order, with a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("these are no marks")]
pub struct InvalidVersionMarks;

impl FromStr for VersionMarks {
    type Err = InvalidVersionMarks;

    fn from_str(text: &str) -> Result<Self, InvalidVersionMarks> {
        let mut marks = Self::default();
        let mut pairs = text.split(' ');
        for kind in ObjectKind::ALL {
            let (name, version) = pairs
                .next()
                .and_then(|pair| pair.split_once('='))
                .ok_or(InvalidVersionMarks)?;
            if name != kind.to_string() {
                return Err(InvalidVersionMarks);
            }
            marks.0[kind as usize] = version.parse().map_err(|_| InvalidVersionMarks)?;
        }
        pairs
            .next()
            .is_none()
            .then_some(marks)
            .ok_or(InvalidVersionMarks)
    }
}

/// The newest version per kind that this replica has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct NewestVersions {
    marks: VersionMarks,
    /// A version was not a number, so the marks would be incomplete.
    is_blind: bool,
}

impl NewestVersions {
    /// Records the version of a received object. Zero stands for one that is not a number.
    pub(super) fn record(&mut self, kind: ObjectKind, version: u64) {
        self.is_blind |= version == 0;
        self.marks.raise(kind, version);
    }

    pub(super) fn progress(&mut self, kind: ObjectKind, progress: Option<WatchProgress>) {
        match progress {
            Some(progress) => self.marks.raise(kind, progress.newest),
            None => self.is_blind = true,
        }
    }

    /// The versions that the next leader must have observed.
    pub(super) fn marks(&self) -> Option<VersionMarks> {
        (!self.is_blind).then_some(self.marks)
    }
}

/// The lists and watch events of a standby replica.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct StandbyCache {
    nodes: Option<BTreeMap<String, NodeView>>,
    pods: Option<BTreeMap<String, PodView>>,
    vms: Option<BTreeMap<NamespacedName, VmView>>,
    migrations: Option<BTreeMap<NamespacedName, MigrationView>>,
    observed: VersionMarks,
    newest: NewestVersions,
}

impl StandbyCache {
    pub(super) fn observe(&mut self, event: Event) {
        match event {
            Event::NodesListed(nodes) => self.nodes = by(nodes, |node| node.name.clone()),
            Event::PodsListed(pods) => self.pods = by(pods, |pod| pod.uid.clone()),
            Event::VmsListed(vms) => self.vms = by(vms, |vm| vm.key.clone()),
            Event::MigrationsListed(views) => self.migrations = by(views, |view| view.key.clone()),
            Event::NodeApplied(node) => put(&mut self.nodes, node.name.clone(), node),
            Event::PodApplied(pod) => put(&mut self.pods, pod.uid.clone(), pod),
            Event::VmApplied(vm) => put(&mut self.vms, vm.key.clone(), vm),
            Event::MigrationApplied(view) => put(&mut self.migrations, view.key.clone(), view),
            Event::NodeDeleted(name) => drop_if(&mut self.nodes, &name, |_| true),
            Event::PodDeleted(uid) => drop_if(&mut self.pods, &uid, |_| true),
            Event::VmDeleted(key, uid) => drop_if(&mut self.vms, &key, |vm| vm.uid == uid),
            Event::MigrationDeleted(key, uid) => {
                drop_if(&mut self.migrations, &key, |view| view.uid == uid);
            }
            // Not from a watch.
            _ => {}
        }
    }

    pub(super) fn progress(&mut self, kind: ObjectKind, progress: Option<WatchProgress>) {
        self.newest.progress(kind, progress);
        self.observed
            .raise(kind, progress.map_or(0, |progress| progress.observed));
    }

    /// Whether nodes, pods and VMs have been listed. A cluster without the kind of migrations has
    /// no list of them and no mark.
    pub(super) fn is_listed(&self) -> bool {
        self.nodes.is_some() && self.pods.is_some() && self.vms.is_some()
    }

    /// Whether the watches have reached all of these marks.
    pub(super) fn covers(&self, marks: VersionMarks) -> bool {
        let has_all = |kind: ObjectKind| self.observed.0[kind as usize] >= marks.0[kind as usize];
        self.is_listed() && !self.newest.is_blind && ObjectKind::ALL.into_iter().all(has_all)
    }

    /// The cache as lists, and the newest versions including these marks.
    pub(super) fn into_lists(self, marks: VersionMarks) -> (Vec<Event>, NewestVersions) {
        let mut newest = self.newest;
        newest.marks.raise_all(marks);
        let lists = [
            self.nodes.map(|all| Event::NodesListed(values(all))),
            self.pods.map(|all| Event::PodsListed(values(all))),
            self.vms.map(|all| Event::VmsListed(values(all))),
            self.migrations
                .map(|all| Event::MigrationsListed(values(all))),
        ];
        (lists.into_iter().flatten().collect(), newest)
    }

    pub(super) fn digest(&self, hasher: &mut impl Hasher) {
        (&self.nodes, &self.pods, &self.vms, &self.migrations).hash(hasher);
        (self.observed, self.newest).hash(hasher);
    }

    pub(super) fn digest_of(&self, vm: &NamespacedName, hasher: &mut impl Hasher) {
        let pods = self.pods.iter().flat_map(|pods| pods.values());
        for pod in pods.filter(|pod| vm_key(pod).as_ref() == Some(vm)) {
            pod.hash(hasher);
        }
        self.vms.as_ref().and_then(|vms| vms.get(vm)).hash(hasher);
    }

    pub(super) fn digest_shared(&self, hasher: &mut impl Hasher) {
        let pods = self.pods.iter().flat_map(|pods| pods.values());
        for pod in pods.filter(|pod| vm_key(pod).is_none()) {
            pod.hash(hasher);
        }
        let is_listed = (self.pods.is_some(), self.vms.is_some());
        (&self.nodes, is_listed, &self.migrations).hash(hasher);
        (self.observed, self.newest).hash(hasher);
    }
}

fn by<K: Ord, V>(list: Vec<V>, key: fn(&V) -> K) -> Option<BTreeMap<K, V>> {
    Some(list.into_iter().map(|one| (key(&one), one)).collect())
}

fn put<K: Ord, V>(known: &mut Option<BTreeMap<K, V>>, key: K, view: V) {
    // A watch event before the first list has no state to change.
    if let Some(known) = known {
        known.insert(key, view);
    }
}

fn drop_if<K: Ord, V>(known: &mut Option<BTreeMap<K, V>>, key: &K, is_it: impl FnOnce(&V) -> bool) {
    if let Some(known) = known
        && known.get(key).is_some_and(is_it)
    {
        known.remove(key);
    }
}

fn values<K, V>(known: BTreeMap<K, V>) -> Vec<V> {
    known.into_values().collect()
}

#[cfg(test)]
mod tests;
