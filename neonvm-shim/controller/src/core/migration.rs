//! The migrations of one VM: events in, actions out, at most one action per peer under way. Source:
//! docs/compatibility/neonvm.md §2.9.
//!
//! ```text
//! watches ─┐                        ┌─► Kubernetes API (migration, VM's status, pods)
//! source  ─┼─► MoveCore ─► plan() ──┼─► runner of the source: hold, send, recall, quit
//! target  ─┘   (newest state)       └─► runner of the target: receive, begin
//! ```
//!
//! *One running guest.* The sending QEMU stops its guest when all of it is sent and does not go on
//! by itself; the receiving one is started stopped. Whose the guest is then is decided by one write
//! of the VM's status with the version it rests on: either its pod becomes the target, or its phase
//! becomes Running with the source. `begin` is said only after the first, `recall` only after the
//! second. So whatever dies or is repeated, and if two controllers overlap, no guest runs twice;
//! and none runs nowhere unless its own runner is lost. `tests::*_leaves_one_guest`
//!
//! Cold start: everything is read from objects and runners; nothing of this struct needs to
//! survive.
//!
//! One core takes all migrations of a VM in turn, so that two never take the same VM.

mod action;
mod done;
mod ends;
mod objects;
mod plan;
pub(super) mod reason;
mod steps;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use action::{Action, Kind, Peer};
pub use done::Reply;
pub use plan::{FAILED, Input, KnownRunner, PENDING, Plan, RUNNING, SUCCEEDED, VmView, plan};
use protocol::object::Pod;
use protocol::runner::RunnerState;
use protocol::time::{Span, Timestamp};
use protocol::vm::{VirtualMachine, VirtualMachineMigration};
pub use reason::{Reason, Wait};
use serde::Serialize;

use super::backoff::Backoff;
use super::missing_pods::{Found, MissingPods};
use super::moment::Moment;
use super::names::{is_older, suffix};
use super::observe::{PodRunner, runner_address};
use super::refusal::Refusal;
use super::settings::Settings;
use super::vm_event::VmEvent;

/// Whatever happens or not, the migrations of a VM are planned again after this long.
pub const LOOK_AGAIN: Span = Span::from_secs(15);
/// Whatever the watches say or not, objects are read afresh after this long.
pub const READ_AGAIN: Span = Span::from_secs(60);
/// Notes kept for a shell that does not fetch them; the oldest fall out.
const EVENTS_LIMIT: usize = 64;

/// What the core is given: a change that a watch or a runner reports, or the end of an action.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A migration of the VM was seen.
    Migration(Box<VirtualMachineMigration>),
    /// A migration object was deleted.
    MigrationGone {
        /// Name of the migration, in the VM's namespace.
        name: String,
        /// The incarnation that went, if known.
        uid: Option<String>,
    },
    /// A watch or a response showed the VM object.
    Vm(Box<VirtualMachine>),
    /// It is gone, or there never was one.
    VmGone,
    /// A pod of the VM was seen.
    Pod(Box<Pod>),
    /// The watch shows a pod of it no more: it is gone, or is not marked as the VM's any more.
    PodUnseen {
        /// Name of the pod, in the VM's namespace.
        name: String,
        /// The incarnation that was shown last, if known.
        uid: Option<String>,
    },
    /// The runner of a pod reported.
    Runner {
        /// Name of the runner's pod.
        pod: String,
        /// State that the runner reported.
        state: Box<RunnerState>,
    },
    /// The runner of a pod does not answer.
    RunnerSilent {
        /// Name of the runner's pod.
        pod: String,
        /// Text of the last error on the link to the runner.
        error: String,
    },
    /// An action has ended, well or badly.
    Done {
        /// Kind of the action that ended. The end of an action that is not under way is ignored.
        kind: Kind,
        /// Result of the action, or the refusal.
        result: Result<Reply, Refusal>,
    },
}

/// The VM as far as known.
#[derive(Debug, Clone)]
enum KnownVm {
    Unknown,
    Absent,
    Present(Box<VirtualMachine>),
}

/// The migrations of one VM. See the module.
#[derive(Debug, Clone)]
pub struct MoveCore {
    settings: Settings,
    seed: u64,
    vm: KnownVm,
    migrations: BTreeMap<String, VirtualMachineMigration>,
    pods: BTreeMap<String, Pod>,
    absent: BTreeSet<String>,
    /// Pods somebody asks for of which it is only known that the watch does not show them.
    missing_pods: MissingPods,
    /// The uids of the pods that went, by their names.
    gone: BTreeMap<String, String>,
    runners: BTreeMap<String, KnownRunner>,
    busy: BTreeMap<Peer, Action>,
    backoff: Backoff<Kind>,
    failures: BTreeMap<Kind, String>,
    suffix: String,
    /// Whose turn it was when there was a plan last.
    turn: Option<String>,
    /// Objects that have moved on: they are read before anything else is written.
    stale_vm: bool,
    stale_migration: Option<String>,
    read_at: Timestamp,
    wake_at: Option<Timestamp>,
    notes: VecDeque<VmEvent>,
}

/// What `/debug/state` shows. Never read by a decision.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Dump {
    migrations: BTreeMap<String, String>,
    known_pods: Vec<String>,
    runners: BTreeMap<String, KnownRunner>,
    under_way: Vec<(Peer, Kind)>,
    retries: Backoff<Kind>,
    failures: BTreeMap<Kind, String>,
    look_again_at: Option<Timestamp>,
}

impl MoveCore {
    /// A VM nothing is known of yet. `seed` makes the random part of target pods' names.
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
            notes: VecDeque::new(),
        };
        core.suffix = suffix(&mut core.seed);
        core
    }

    /// Something happened at `at`. News from elsewhere lets everything be tried again at once;
    /// answers to our own requests do not, or what is always refused would be tried as fast as it
    /// is.
    pub fn handle(&mut self, at: Moment, event: Event) {
        match event {
            Event::Migration(migration) => {
                let held = self.migrations.get(&migration.metadata.name);
                let before = held.map(|held| held.metadata.generation);
                // A refusal told in the status must not lead to the next one at once.
                let edited = before != Some(migration.metadata.generation);
                self.observe_migration(*migration);
                if edited {
                    self.backoff.retry_now(at.now);
                }
            }
            Event::MigrationGone { name, uid } => {
                let held = self.migrations.get(&name);
                if held.is_some_and(|held| uid.is_none_or(|uid| held.metadata.uid == uid)) {
                    self.migrations.remove(&name);
                }
            }
            Event::Vm(vm) => {
                self.observe_vm(vm);
                self.backoff
                    .retry_now_if(at.now, |kind| kind.peer() == Peer::Api);
            }
            Event::VmGone => self.vm = KnownVm::Absent,
            Event::Pod(pod) => {
                let name = pod.metadata.name.clone();
                // What our own write has made of it was in the answer, and is no reason to write
                // again.
                let is_news = self.pods.get(&name) != Some(&*pod);
                if self.observe_pod(*pod) {
                    self.missing_pods.remove(&name);
                }
                if is_news {
                    self.backoff.retry_now(at.now);
                }
            }
            Event::PodUnseen { name, uid } => self.missed_pod(at, &name, uid.as_deref()),
            Event::Runner { pod, state } => self.runner_reported(pod, KnownRunner::Known { state }),
            Event::RunnerSilent { pod, error } => {
                self.runner_reported(pod, KnownRunner::Silent { error })
            }
            Event::Done { kind, result } => self.done(at, kind, result),
        }
        self.wake_at = Some(at.now);
    }

    /// The next thing to do, if a peer is free for it. Call until `None`.
    pub fn poll_action(&mut self, at: Moment) -> Option<Action> {
        if self.migrations.is_empty() {
            self.wake_at = None;
            return None;
        }
        self.wake_at = Some(at.now + LOOK_AGAIN);
        if at.now >= self.read_at {
            if self.read_at != Timestamp(0) {
                self.stale_vm = true;
            }
            self.read_at = at.now + READ_AGAIN;
        }
        let action = self.choose(at)?;
        self.busy.insert(action.kind().peer(), action.clone());
        Some(action)
    }

    /// When to call [`Self::poll_action`] again though nothing happens.
    #[must_use]
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        self.wake_at
    }

    /// The next thing to tell people.
    pub fn poll_note(&mut self) -> Option<VmEvent> {
        self.notes.pop_front()
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

    /// The migration that the action of this kind is for that is under way: the one it names, else
    /// the one whose turn it is.
    #[must_use]
    pub fn migration_of(&self, kind: Kind) -> Option<&str> {
        let action = self.busy.get(&kind.peer());
        let named = action.filter(|action| action.kind() == kind)?.migration();
        let name = named.or(self.turn.as_deref())?;
        self.migrations.contains_key(name).then_some(name)
    }

    /// The pods to whose runners links should be held.
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
                // What is over and tidied up has no pod that it owns; what it left is not listened
                // to.
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

    /// Where the runner of a pod listens; `None` where it has a socket on this machine, or no
    /// address yet.
    #[must_use]
    pub fn link_address(&self, pod: &str) -> Option<PodRunner> {
        let pod = self.pods.get(pod)?;
        let vm = self.vm().filter(|_| self.settings.runners_at_pods)?;
        runner_address(vm, pod)
    }

    fn is_reachable(&self, pod: &Pod) -> bool {
        objects::is_reachable(pod, self.vm(), &self.settings)
    }

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

    fn choose(&mut self, at: Moment) -> Option<Action> {
        let api_free = !self.busy.contains_key(&Peer::Api);
        if api_free && self.stale_vm && self.may(Kind::ReadVm, at.now) {
            return Some(Action::ReadVm);
        }
        if api_free
            && let Some(name) = self.stale_migration.clone()
            && self.may(Kind::ReadMigration, at.now)
        {
            return Some(Action::ReadMigration { name });
        }
        if api_free
            && let Some(name) = self.missing_pods.next().map(str::to_owned)
            && self.may(Kind::ReadPod, at.now)
        {
            return Some(Action::ReadPod { name });
        }
        let stale = self.stale_vm || self.stale_migration.is_some();
        let found = self.plan(at);
        if let Some(wake) = found.look_again {
            self.wake_no_later(wake);
        }
        for action in found.actions {
            let kind = action.kind();
            let blocked = stale && kind.peer() == Peer::Api;
            if !blocked && !self.busy.contains_key(&kind.peer()) && self.may(kind, at.now) {
                return Some(action);
            }
        }
        None
    }

    /// Plans, and forgets the failures of what is no longer wanted.
    fn plan(&mut self, at: Moment) -> Plan {
        let first = self.plan_once(at);
        let wanted: BTreeSet<Kind> = first.actions.iter().map(Action::kind).collect();
        let busy: BTreeSet<Kind> = self.busy.values().map(Action::kind).collect();
        let before = self.failures.len();
        self.failures
            .retain(|kind, _| wanted.contains(kind) || busy.contains(kind));
        let plan = if self.failures.len() == before {
            first
        } else {
            self.plan_once(at)
        };
        self.turn.clone_from(&plan.turn);
        plan
    }

    fn plan_once(&self, at: Moment) -> Plan {
        plan(&Input {
            settings: &self.settings,
            vm: match &self.vm {
                KnownVm::Unknown => VmView::Unknown,
                KnownVm::Absent => VmView::Absent,
                KnownVm::Present(vm) => VmView::Present(vm),
            },
            migrations: &self.migrations,
            pods: &self.pods,
            absent: &self.absent,
            missing_pods: &self.missing_pods,
            runners: &self.runners,
            failures: &self.failures,
            suffix: &self.suffix,
            at,
        })
    }

    fn may(&mut self, kind: Kind, now: Timestamp) -> bool {
        match self.backoff.waits(kind, now) {
            None => true,
            Some(at) => {
                self.wake_no_later(at);
                false
            }
        }
    }

    fn wake_no_later(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }

    fn observe_migration(&mut self, migration: VirtualMachineMigration) {
        let name = migration.metadata.name.clone();
        let held = self.migrations.get(&name);
        let same = held.filter(|held| held.metadata.uid == migration.metadata.uid);
        if same.is_some_and(|held| {
            is_older(
                &migration.metadata.resource_version,
                &held.metadata.resource_version,
            )
        }) {
            return;
        }
        let uses = migration
            .status
            .as_ref()
            .is_some_and(|status| status.target_pod_name.ends_with(&self.suffix));
        if uses {
            // No later target pod gets this name.
            self.suffix = suffix(&mut self.seed);
        }
        self.migrations.insert(name, migration);
    }

    fn observe_vm(&mut self, vm: Box<VirtualMachine>) {
        let old = self.vm().is_some_and(|held| {
            held.metadata.uid == vm.metadata.uid
                && is_older(
                    &vm.metadata.resource_version,
                    &held.metadata.resource_version,
                )
        });
        if !old {
            self.vm = KnownVm::Present(vm);
        }
    }

    /// Whether it is not older than what is known.
    fn observe_pod(&mut self, pod: Pod) -> bool {
        let name = pod.metadata.name.clone();
        // The answer to a call may come after the watch has told of the end of the pod it was
        // about.
        if self.gone.get(&name) == Some(&pod.metadata.uid) {
            return false;
        }
        let old = self.pods.get(&name).is_some_and(|held| {
            is_older(
                &pod.metadata.resource_version,
                &held.metadata.resource_version,
            )
        });
        if !old {
            self.absent.remove(&name);
            self.pods.insert(name, pod);
        }
        !old
    }

    /// A watch shows a pod no more. One that somebody asks for is read before anything else is done
    /// about it.
    fn missed_pod(&mut self, at: Moment, name: &str, uid: Option<&str>) {
        let Some(held) = self.pods.get(name) else {
            return;
        };
        if uid.is_some_and(|uid| held.metadata.uid != uid) {
            return;
        }
        if !self.named().contains(name) {
            self.pods.remove(name);
            return;
        }
        let busy = self.busy.get(&Peer::Api).map(Action::kind);
        self.missing_pods.add(held, busy == Some(Kind::ReadPod));
        self.backoff
            .retry_now_if(at.now, |kind| kind == Kind::ReadPod);
    }

    /// A pod was read. Of its name there may be another by now.
    fn read_pod(&mut self, pod: Pod) {
        if self.missing_pods.read(&pod) == Found::Another {
            self.lost_pod(&pod.metadata.name);
        }
        self.observe_pod(pod);
    }

    /// There is no such pod.
    fn lost_pod(&mut self, name: &str) {
        self.missing_pods.remove(name);
        if let Some(pod) = self.pods.remove(name) {
            self.gone.insert(name.to_owned(), pod.metadata.uid);
        }
        self.runners.remove(name);
        self.absent.insert(name.to_owned());
        let named = self.named();
        // Only of pods somebody asks for is it remembered that they are gone.
        self.absent.retain(|name| named.contains(name));
        self.gone.retain(|name, _| named.contains(name));
    }

    /// The pods that migrations name.
    fn named(&self) -> BTreeSet<String> {
        let all = self.migrations.values();
        let all = all.filter_map(|migration| migration.status.as_ref());
        all.flat_map(|status| [&status.source_pod_name, &status.target_pod_name])
            .cloned()
            .collect()
    }

    fn runner_reported(&mut self, pod: String, known: KnownRunner) {
        if self.link_targets().contains(&pod) {
            self.runners.insert(pod, known);
        } else {
            self.runners.remove(&pod);
        }
    }

    fn push_event(&mut self, note: VmEvent) {
        if self.notes.len() == EVENTS_LIMIT {
            self.notes.pop_front();
        }
        self.notes.push_back(note);
    }
}

#[cfg(test)]
mod tests;
