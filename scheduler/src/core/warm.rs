//! What a replica in waiting knows, so that a hand-over needs no lists.
//!
//! ```text
//! leader    lists, watches, writes ──► newest state of each kind it knows of ──► marks, left on the Lease
//! standby   lists, watches ──► [`Warm`] ──── everything up to every mark was told ──► the term's first state
//!                                   └────── not within a bounded time, or no marks ──► lists anew
//! ```
//!
//! A watch tells the changes of a kind in the order of their versions. So whoever was told
//! everything up to a version that covers all writes of the last leader knows all of them, however
//! late its watch is for the rest; a leader's own watch may be as late. After a crash there are no
//! marks, and nobody knows what the last writes were.
//!
//! A mark covers what the leader got a version for: the answers to its writes of VMs, and every
//! state its watches told. A binding is answered without one, so there are no marks before its own
//! watch has shown what it bound or created.
//!
//! Invariant: of two replicas no order of writes, watches and a hand-over overcommits
//! (`tests/model.rs`, which also shows that a taker that does not wait for the marks does).

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use protocol::permit::NamespacedName;
use protocol::time::Span;

use super::event::Event;
use super::ledger::vm_key;
use super::migrate::MigrationView;
use super::view::{NodeView, PodView, VmView};

/// How long a taker waits for its watches to reach the marks: far longer than a watch lags, far
/// shorter than lists of a large cluster take.
pub const CATCH_UP: Span = Span::from_secs(1);

/// What is listed and watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Nodes.
    Nodes,
    /// Pods.
    Pods,
    /// VirtualMachines.
    VirtualMachines,
    /// VirtualMachineMigrations.
    Migrations,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Nodes,
        Self::Pods,
        Self::VirtualMachines,
        Self::Migrations,
    ];

    /// The word for it in marks.
    const fn word(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Pods => "pods",
            Self::VirtualMachines => "virtualmachines",
            Self::Migrations => "migrations",
        }
    }
}

/// How far the watch of a kind has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// Every change up to this version was told.
    pub told: u64,
    /// The newest state among those told just now; zero if there is none, as when something is
    /// gone.
    pub newest: u64,
}

/// For each kind a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Marks([u64; Kind::ALL.len()]);

impl Marks {
    fn raise(&mut self, kind: Kind, version: u64) {
        let mark = &mut self.0[kind as usize];
        *mark = version.max(*mark);
    }

    fn raise_all(&mut self, other: Self) {
        for kind in Kind::ALL {
            self.raise(kind, other.0[kind as usize]);
        }
    }
}

/// `nodes=7 pods=31 virtualmachines=40 migrations=0`.
impl fmt::Display for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for kind in Kind::ALL {
            let gap = if kind == Kind::Nodes { "" } else { " " };
            write!(f, "{gap}{}={}", kind.word(), self.0[kind as usize])?;
        }
        Ok(())
    }
}

/// It does not name each kind once, with a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("these are no marks")]
pub struct NoMarks;

impl FromStr for Marks {
    type Err = NoMarks;

    fn from_str(text: &str) -> Result<Self, NoMarks> {
        let mut marks = Self::default();
        let mut words = text.split(' ');
        for kind in Kind::ALL {
            let (word, version) = words
                .next()
                .and_then(|w| w.split_once('='))
                .ok_or(NoMarks)?;
            if word != kind.word() {
                return Err(NoMarks);
            }
            marks.0[kind as usize] = version.parse().map_err(|_| NoMarks)?;
        }
        words.next().is_none().then_some(marks).ok_or(NoMarks)
    }
}

/// The newest states known, for who comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Newest {
    marks: Marks,
    /// A version was not a number: nothing can be said of what is covered.
    is_blind: bool,
}

impl Newest {
    /// A state of this version is known; zero stands for one that cannot be read.
    pub(super) fn state(&mut self, kind: Kind, version: u64) {
        self.is_blind |= version == 0;
        self.marks.raise(kind, version);
    }

    /// A watch has come so far; nothing: it cannot be said how far.
    pub(super) fn reach(&mut self, kind: Kind, reach: Option<Reach>) {
        match reach {
            Some(reach) => self.marks.raise(kind, reach.newest),
            None => self.is_blind = true,
        }
    }

    /// What the next leader must have been told of.
    pub(super) fn marks(&self) -> Option<Marks> {
        (!self.is_blind).then_some(self.marks)
    }
}

/// See the module's description.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Warm {
    nodes: Option<BTreeMap<String, NodeView>>,
    pods: Option<BTreeMap<String, PodView>>,
    vms: Option<BTreeMap<NamespacedName, VmView>>,
    migrations: Option<BTreeMap<NamespacedName, MigrationView>>,
    told: Marks,
    newest: Newest,
}

impl Warm {
    /// Takes in what a watch tells.
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
            // Nothing that a watch tells.
            _ => {}
        }
    }

    /// A watch has come so far.
    pub(super) fn reach(&mut self, kind: Kind, reach: Option<Reach>) {
        self.newest.reach(kind, reach);
        self.told.raise(kind, reach.map_or(0, |reach| reach.told));
    }

    /// Whether everything was listed once. A cluster without migrations has no list of them, and no
    /// mark either.
    pub(super) fn is_listed(&self) -> bool {
        self.nodes.is_some() && self.pods.is_some() && self.vms.is_some()
    }

    /// Whether everything up to these marks is known.
    pub(super) fn covers(&self, marks: Marks) -> bool {
        let has_all = |kind: Kind| self.told.0[kind as usize] >= marks.0[kind as usize];
        self.is_listed() && !self.newest.is_blind && Kind::ALL.into_iter().all(has_all)
    }

    /// All of it as lists, and the newest states among it and up to these marks.
    pub(super) fn into_lists(self, marks: Marks) -> (Vec<Event>, Newest) {
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
        (self.told, self.newest).hash(hasher);
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
        (self.told, self.newest).hash(hasher);
    }
}

fn by<K: Ord, V>(list: Vec<V>, key: fn(&V) -> K) -> Option<BTreeMap<K, V>> {
    Some(list.into_iter().map(|one| (key(&one), one)).collect())
}

fn put<K: Ord, V>(known: &mut Option<BTreeMap<K, V>>, key: K, view: V) {
    // A watch tells nothing before its list.
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
