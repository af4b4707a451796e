//! State of the migrations of one VM: the newest known objects, and the actions under way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use protocol::object::Pod;
use protocol::time::Timestamp;
use protocol::vm::{VirtualMachine, VirtualMachineMigration};

use super::action::Action;
use super::kind::{Kind, Peer};
use super::objects;
use super::view::{FAILED, KnownRunner, SUCCEEDED};
use crate::core::backoff::Backoff;
use crate::core::missing_pods::MissingPods;
use crate::core::names::suffix;
use crate::core::observe::{PodRunner, runner_address};
use crate::core::settings::Settings;
use crate::core::vm_event::VmEvent;

/// Notes kept for a shell that does not fetch them; the oldest fall out.
const EVENTS_LIMIT: usize = 64;

/// The VM as far as known.
#[derive(Debug, Clone)]
pub(super) enum KnownVm {
    Unknown,
    Absent,
    Present(Box<VirtualMachine>),
}

/// State of the migrations of one VM.
#[derive(Debug, Clone)]
pub struct MigrationCore {
    pub(super) settings: Settings,
    pub(super) seed: u64,
    pub(super) vm: KnownVm,
    pub(super) migrations: BTreeMap<String, VirtualMachineMigration>,
    pub(super) pods: BTreeMap<String, Pod>,
    pub(super) absent: BTreeSet<String>,
    /// Pods that a migration names, and that the watch no longer shows.
    pub(super) missing_pods: MissingPods,
    /// The uids of the pods that went, by their names.
    pub(super) gone: BTreeMap<String, String>,
    pub(super) runners: BTreeMap<String, KnownRunner>,
    pub(super) busy: BTreeMap<Peer, Action>,
    pub(super) backoff: Backoff<Kind>,
    pub(super) failures: BTreeMap<Kind, String>,
    pub(super) suffix: String,
    /// The migration whose turn it was in the last plan.
    pub(super) turn: Option<String>,
    /// Objects that have moved on: they are read before anything else is written.
    pub(super) stale_vm: bool,
    pub(super) stale_migration: Option<String>,
    pub(super) read_at: Timestamp,
    pub(super) wake_at: Option<Timestamp>,
    pub(super) events: VecDeque<VmEvent>,
}

impl MigrationCore {
    /// State of a VM of which no object is known. `seed` makes the random part of target pods'
    /// names.
    #[must_use]
    pub fn new(settings: Settings, seed: u64) -> Self {
        let mut core = Self {
            settings,
            seed,
            vm: KnownVm::Unknown,
            migrations: BTreeMap::new(),
            pods: BTreeMap::new(),
            absent: BTreeSet::new(),
            missing_pods: MissingPods::default(),
            gone: BTreeMap::new(),
            runners: BTreeMap::new(),
            busy: BTreeMap::new(),
            backoff: Backoff::default(),
            failures: BTreeMap::new(),
            suffix: String::new(),
            turn: None,
            stale_vm: false,
            stale_migration: None,
            read_at: Timestamp(0),
            wake_at: None,
            events: VecDeque::new(),
        };
        core.suffix = suffix(&mut core.seed);
        core
    }

    /// The next event to publish.
    pub fn poll_event(&mut self) -> Option<VmEvent> {
        self.events.pop_front()
    }

    /// Whether there is nothing to be done, now or later, unless something new comes.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.migrations.is_empty() && self.busy.is_empty()
    }

    /// The VM as last seen.
    #[must_use]
    pub fn vm(&self) -> Option<&VirtualMachine> {
        match &self.vm {
            KnownVm::Present(vm) => Some(vm),
            KnownVm::Unknown | KnownVm::Absent => None,
        }
    }

    /// The migration for which the action of this kind is under way: the one that it names, or else
    /// the one whose turn it is.
    #[must_use]
    pub fn migration_of(&self, kind: Kind) -> Option<&str> {
        let action = self.busy.get(&kind.peer());
        let named = action.filter(|action| action.kind() == kind)?.migration();
        let name = named.or(self.turn.as_deref())?;
        self.migrations.contains_key(name).then_some(name)
    }

    /// Pods to whose runners the shell should hold links.
    #[must_use]
    pub fn link_targets(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for migration in self.migrations.values() {
            let Some(status) = &migration.status else {
                continue;
            };
            let over = matches!(status.phase.as_str(), SUCCEEDED | FAILED);
            for name in [&status.source_pod_name, &status.target_pod_name] {
                let Some(pod) = self.pods.get(name) else {
                    continue;
                };
                // A migration that has ended and is tidied up owns no pod, and needs no link.
                let part = objects::is_of(pod, &migration.metadata);
                let settled = over && (!part || status.phase == SUCCEEDED);
                let before = status.phase.is_empty();
                if !settled && !before && self.is_reachable(pod) {
                    all.insert(name.clone());
                }
            }
        }
        all
    }

    /// Address of the runner of a pod; `None` if it has a socket on this machine, or no address so
    /// far.
    #[must_use]
    pub fn link_address(&self, pod: &str) -> Option<PodRunner> {
        let pod = self.pods.get(pod)?;
        let vm = self.vm().filter(|_| self.settings.runners_at_pods)?;
        runner_address(vm, pod)
    }

    fn is_reachable(&self, pod: &Pod) -> bool {
        objects::is_reachable(pod, self.vm(), &self.settings)
    }

    /// The pods that migrations name.
    pub(super) fn named(&self) -> BTreeSet<String> {
        let all = self.migrations.values();
        let all = all.filter_map(|migration| migration.status.as_ref());
        all.flat_map(|status| [&status.source_pod_name, &status.target_pod_name])
            .cloned()
            .collect()
    }

    pub(super) fn push_event(&mut self, event: VmEvent) {
        if self.events.len() == EVENTS_LIMIT {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}
