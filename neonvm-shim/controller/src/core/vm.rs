//! One VM's state machine: events in, actions out, at most one action per peer under way.
//!
//! It holds the newest known state of the VM, its pods and its runner, and plans from scratch
//! ([`plan()`]) whenever it is asked what to do. So whatever was missed, repeated or reordered
//! changes nothing but how soon the right thing happens.
//!
//! Cold start: everything is read from the objects and the runner; nothing of this struct needs to
//! survive.

mod done;
mod dump;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;

pub use dump::Dump;
use protocol::object::Pod;
use protocol::runner::RunnerState;
use protocol::time::{Span, Timestamp};
use protocol::trace::StageRecord;
use protocol::units::Resources;
use protocol::vm::{VirtualMachine, VmPhase, VmStatus};
use serde::Serialize;

use super::action::{Action, Kind, Peer};
use super::ahead::HeadStart;
use super::backoff::{Backoff, READ_AGAIN, RestartBackoff};
use super::certificate::{CertificateState, Facts};
use super::metadata::PatchOp;
use super::missing_pods::{Found, MissingPods};
use super::moment::Moment;
use super::names::{is_older, suffix};
use super::observe::{PodRunner, ordered, runner_address, size_of};
use super::plan::{Input, Plan, PodView, RunnerView, plan};
use super::problem::Problem;
use super::refusal::Refusal;
use super::settings::Settings;
use super::stages::StageWatch;
use super::vm_event::VmEvent;

/// Whatever happens or not, a VM is planned again after this long.
pub const LOOK_AGAIN: Span = Span::from_secs(15);
/// A VM that is taken for a migration is left to it this long before it is asked whether there is
/// one.
pub const CLAIM_CHECK_AFTER: Span = Span::from_secs(10);
/// Notes kept for a shell that does not fetch them; the oldest fall out.
const EVENTS_LIMIT: usize = 64;
/// What the core is given: a change that a watch or a runner reports, or the end of an action.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The VM object was seen, by a watch or as an answer.
    Vm(Box<VirtualMachine>),
    /// The VM object is gone.
    VmGone {
        /// Uid of the VM that was deleted.
        uid: String,
    },
    /// A pod of the VM was seen.
    Pod(Box<Pod>),
    /// The watch shows a pod of the VM no more: it is gone, or is not marked as the VM's any more.
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
        /// Kind of the action that ended.
        kind: Kind,
        /// When it was truly begun, connection made.
        began: Moment,
        /// Result of the action, or the refusal.
        result: Result<Reply, Refusal>,
    },
}

/// What an action brought back.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// The VM object.
    Vm(Box<VirtualMachine>),
    /// The pod as the API server returned it, after a read, a creation or a patch.
    Pod(Box<Pod>),
    /// The pod of this name is gone.
    PodGone(String),
    /// The uid of the migration of that name, if there is one.
    MigrationClaim(Option<String>),
    /// The secret exists.
    SecretReady,
    /// The VM holds this address of the overlay.
    Address {
        /// Address of the guest on the overlay; it is written into the VM's status.
        address: Ipv4Addr,
        /// Network mask of the overlay.
        mask: Ipv4Addr,
    },
    /// The VM holds no address of the overlay.
    AddressReleased,
    /// The objects of the guest's certificate.
    Certificate(Box<Facts>),
    /// The runner holds the order.
    Runner(Box<RunnerState>),
}

/// What is known of the migration the VM is taken for.
#[derive(Debug, Clone, Default, Serialize)]
struct MigrationClaim {
    uid: Option<String>,
    check_at: Option<Timestamp>,
}

impl MigrationClaim {
    fn observe(&mut self, status: Option<&VmStatus>, now: Timestamp) {
        let uid = status.and_then(|status| Some(&status.migration.as_ref()?.uid));
        if uid != self.uid.as_ref() {
            self.uid = uid.cloned();
            self.check_at = Some(now + CLAIM_CHECK_AFTER);
        }
    }

    /// The migration of the name it was taken for has this uid, or there is none.
    fn found(&mut self, asked: &str, found: Option<&str>, now: Timestamp) {
        if self.uid.as_deref() == Some(asked) {
            self.check_at = (found == Some(asked)).then(|| now + CLAIM_CHECK_AFTER);
        }
    }
}

/// What is known of the runner.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "link", rename_all = "snake_case")]
enum Link {
    None,
    Silent {
        pod: String,
        since: Timestamp,
        error: String,
    },
    Known {
        pod: String,
        state: Box<RunnerState>,
    },
}

/// One VM. See the module.
#[derive(Debug, Clone)]
pub struct VmCore {
    settings: Settings,
    seed: u64,
    vm: Option<VirtualMachine>,
    pods: BTreeMap<String, Pod>,
    absent: Option<String>,
    /// The VM's pod, while it is only known that the watch does not show it.
    missing_pods: MissingPods,
    link: Link,
    busy: BTreeMap<Peer, Action>,
    backoff: Backoff<Kind>,
    failures: BTreeMap<Kind, Problem>,
    restarts: RestartBackoff,
    ssh_secret_ready: bool,
    runner_secret_ready: bool,
    address: Option<(Ipv4Addr, Ipv4Addr)>,
    address_released: bool,
    certificate: CertificateState,
    claim: MigrationClaim,
    suffix: String,
    progress_at: Timestamp,
    resized_at: Timestamp,
    head_start: HeadStart,
    /// Orders to a pod's runner, and the sizes they order, that are on their way or may have been
    /// taken up without our knowing: until the runner answers a later one, or the same sent again.
    ordering: Vec<(String, Resources)>,
    /// A change of what the pod requests that may have been carried out or not, until the pod is
    /// read.
    resize_unsure: Option<Vec<PatchOp>>,
    scaling_from: Option<Resources>,
    /// What the runner had when the order under way was decided: its news may overtake the order's
    /// answer.
    ordered_from: Option<Resources>,
    must_read_vm: bool,
    read_at: Timestamp,
    reads_due: BTreeSet<Kind>,
    wake_at: Option<Timestamp>,
    reported: BTreeSet<&'static str>,
    problems: Vec<Problem>,
    notes: VecDeque<VmEvent>,
    stages: StageWatch,
}

impl VmCore {
    /// A VM nothing is known of yet. `seed` makes the random part of its pods' names.
    #[must_use]
    pub fn new(settings: Settings, seed: u64) -> Self {
        let mut core = Self {
            settings,
            seed,
            vm: None,
            pods: BTreeMap::new(),
            absent: None,
            missing_pods: MissingPods::default(),
            link: Link::None,
            busy: BTreeMap::new(),
            backoff: Backoff::default(),
            failures: BTreeMap::new(),
            restarts: RestartBackoff::default(),
            ssh_secret_ready: false,
            runner_secret_ready: false,
            address: None,
            address_released: false,
            certificate: CertificateState::default(),
            claim: MigrationClaim::default(),
            suffix: String::new(),
            progress_at: Timestamp(0),
            resized_at: Timestamp(0),
            head_start: HeadStart::default(),
            ordering: Vec::new(),
            resize_unsure: None,
            scaling_from: None,
            ordered_from: None,
            must_read_vm: false,
            read_at: Timestamp(0),
            reads_due: BTreeSet::new(),
            wake_at: None,
            reported: BTreeSet::new(),
            problems: Vec::new(),
            notes: VecDeque::new(),
            stages: StageWatch::default(),
        };
        core.next_suffix();
        core
    }

    /// Something happened at `at`; for a watch event, the moment it was received.
    pub fn handle(&mut self, at: Moment, event: Event) {
        match event {
            Event::Vm(vm) => self.observe_vm(at, *vm),
            Event::VmGone { uid } => {
                if self.vm.as_ref().is_some_and(|vm| vm.metadata.uid == uid) {
                    self.vm = None;
                }
            }
            Event::Pod(pod) => {
                let name = pod.metadata.name.clone();
                if self.observe_pod(at, *pod) {
                    self.missing_pods.remove(&name);
                }
            }
            Event::PodUnseen { name, uid } => self.missed_pod(at, &name, uid.as_deref()),
            Event::Runner { pod, state } => self.runner_reported(at, &pod, state),
            Event::RunnerSilent { pod, error } => {
                let since = match &self.link {
                    Link::Silent {
                        pod: silent, since, ..
                    } if *silent == pod => *since,
                    _ => at.now,
                };
                if self.link_target().is_some_and(|target| target == pod) {
                    self.link = Link::Silent { pod, since, error };
                }
            }
            Event::Done {
                kind,
                began,
                result,
            } => self.done(at, kind, began, result),
        }
        self.wake_at = Some(at.now);
    }

    /// The next thing to do, if a peer is free for it. Call until `None`.
    pub fn poll_action(&mut self, at: Moment) -> Option<Action> {
        self.vm.as_ref()?;
        self.wake_at = Some(at.now + LOOK_AGAIN);
        if self.read_at == Timestamp(0) {
            self.read_at = at.now + READ_AGAIN;
        }
        if at.now >= self.read_at {
            self.read_at = at.now + READ_AGAIN;
            self.reads_due = [Kind::ReadVm, Kind::ReadPod].into();
            self.doubt_secrets();
        }
        self.wake_no_later(self.read_at);
        let action = self.choose(at)?;
        self.busy.insert(action.kind().peer(), action.clone());
        if let Link::Known { state, .. } = &self.link {
            match &action {
                Action::SetSize { pod, order, .. } => {
                    self.ordered_from = Some(size_of(state));
                    self.scaling_from = self.scaling_from.or(self.ordered_from);
                    let order = (pod.clone(), ordered(order));
                    self.ordering.retain(|other| *other != order);
                    self.ordering.push(order);
                }
                Action::PlugAhead { wish, .. } => {
                    let online = state.cpus.guest_online;
                    self.head_start.request(at.now, wish.cpu, online);
                }
                _ => {}
            }
        }
        Some(action)
    }

    /// The secrets that a pod mounts are looked for again while it may wait for them: nothing tells
    /// that one is gone.
    fn doubt_secrets(&mut self) {
        let status = self.vm.as_ref().and_then(|vm| vm.status.as_ref());
        if status.is_some_and(|status| status.phase == VmPhase::Pending) {
            self.ssh_secret_ready = false;
            self.runner_secret_ready = false;
        }
    }

    /// When to call [`Self::poll_action`] again though nothing happens.
    #[must_use]
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        self.vm.as_ref().and(self.wake_at)
    }

    /// The next thing to tell people.
    pub fn poll_note(&mut self) -> Option<VmEvent> {
        self.notes.pop_front()
    }

    /// Removes and returns the finished stages of resizes.
    pub fn take_stages(&mut self) -> Vec<StageRecord> {
        self.stages.take()
    }

    /// The VM as last seen.
    #[must_use]
    pub fn vm(&self) -> Option<&VirtualMachine> {
        self.vm.as_ref()
    }

    /// The pod whose runner a link should be held to, if any.
    #[must_use]
    pub fn link_target(&self) -> Option<&str> {
        let status = self.vm.as_ref()?.status.as_ref()?;
        let pod = self.pods.get(&status.pod_name)?;
        let node = pod.spec.node_name.as_str();
        let here = self
            .settings
            .local_node
            .as_deref()
            .is_none_or(|local| local == node);
        let lives = matches!(status.phase, VmPhase::Pending) || status.phase.is_alive();
        let reachable = !self.settings.runners_at_pods || self.link_address().is_some();
        (lives && here && reachable && !node.is_empty() && !pod.is_terminal())
            .then_some(status.pod_name.as_str())
    }

    /// Where the runner of that pod listens; `None` where it has a socket on this machine, or no
    /// address yet.
    #[must_use]
    pub fn link_address(&self) -> Option<PodRunner> {
        if !self.settings.runners_at_pods {
            return None;
        }
        let vm = self.vm.as_ref()?;
        let pod = self.pods.get(&vm.status.as_ref()?.pod_name)?;
        runner_address(vm, pod)
    }

    fn choose(&mut self, at: Moment) -> Option<Action> {
        let api_free = !self.busy.contains_key(&Peer::Api);
        if self.must_read_vm {
            // What is stored has moved on: nothing else makes sense to the API before it is read.
            if api_free && self.may(Kind::ReadVm, at.now) {
                return Some(Action::ReadVm);
            }
        }
        let plan = self.plan(at);
        if let Some(wake) = plan.look_again {
            self.wake_no_later(wake);
        }
        for action in plan.actions {
            let kind = action.kind();
            let of_vm = matches!(kind.peer(), Peer::Api | Peer::Requests);
            let blocked = self.must_read_vm && of_vm;
            if !blocked && !self.busy.contains_key(&kind.peer()) && self.may(kind, at.now) {
                return Some(action);
            }
        }
        if api_free && self.reads_due.contains(&Kind::ReadVm) && self.may(Kind::ReadVm, at.now) {
            return Some(Action::ReadVm);
        }
        let pod = self
            .vm
            .as_ref()?
            .status
            .as_ref()
            .map(|status| status.pod_name.clone());
        if api_free && self.reads_due.remove(&Kind::ReadPod) && self.may(Kind::ReadPod, at.now) {
            let name = pod.filter(|name| !name.is_empty())?;
            return Some(Action::ReadPod { name });
        }
        None
    }

    /// Plans, and forgets the failures of what is no longer wanted.
    fn plan(&mut self, at: Moment) -> Plan {
        let first = self.plan_once(at);
        let planned: BTreeSet<Kind> = first.actions.iter().map(Action::kind).collect();
        let busy: BTreeSet<Kind> = self.busy.values().map(Action::kind).collect();
        let before = self.failures.len();
        self.failures
            .retain(|kind, _| planned.contains(kind) || busy.contains(kind));
        let plan = if self.failures.len() == before {
            first
        } else {
            self.plan_once(at)
        };
        let labels: BTreeSet<&'static str> = plan.problems.iter().map(Problem::label).collect();
        for problem in &plan.problems {
            if !self.reported.contains(problem.label()) {
                self.push_event(VmEvent::Problem {
                    problem: problem.clone(),
                });
            }
        }
        self.reported = labels;
        self.problems.clone_from(&plan.problems);
        plan
    }

    fn plan_once(&self, at: Moment) -> Plan {
        let vm = self.vm.as_ref().expect("checked by the caller");
        let name = vm
            .status
            .as_ref()
            .map_or("", |status| status.pod_name.as_str());
        let pod = match self.pods.get(name) {
            Some(pod) if !self.missing_pods.has(name) => PodView::Present(pod),
            None if self.absent.as_deref() == Some(name) => PodView::Absent,
            _ => PodView::Unknown,
        };
        let runner = match &self.link {
            Link::Known { pod, state } if pod == name => RunnerView::Known(state),
            Link::Silent { pod, since, error } if pod == name => RunnerView::Silent {
                since: *since,
                error,
            },
            _ => RunnerView::NoLink,
        };
        plan(&Input {
            settings: &self.settings,
            vm,
            pod,
            pods: &self.pods,
            runner,
            failures: &self.failures,
            ssh_secret_ready: self.ssh_secret_ready,
            runner_secret_ready: self.runner_secret_ready,
            address: self.address,
            address_released: self.address_released,
            certificate: &self.certificate,
            check_claim_at: self.claim.check_at,
            suffix: &self.suffix,
            restart_at: self.restarts.not_before(),
            wanted_since: self.stages.wanted_since(),
            progress_at: self.progress_at,
            resized_at: self.resized_at,
            head_start: &self.head_start,
            ordering: &self.ordering,
            resizing: self.resizing(),
            scaling_from: self.scaling_from,
            at,
        })
    }

    /// The change of what the pod requests that is under way, or whose end is not known. One that
    /// keeps failing holds nobody up.
    fn resizing(&self) -> Option<&[PatchOp]> {
        if let Some(Action::ResizePod { ops, .. }) = self.busy.get(&Peer::Requests) {
            return Some(ops);
        }
        let fails = self.failures.contains_key(&Kind::ResizePod);
        self.resize_unsure.as_deref().filter(|_| !fails)
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

    fn observe_vm(&mut self, at: Moment, vm: VirtualMachine) {
        if let Some(held) = &self.vm {
            let versions = (
                &vm.metadata.resource_version,
                &held.metadata.resource_version,
            );
            if held.metadata.uid != vm.metadata.uid {
                let seed = self.seed;
                *self = Self::new(self.settings.clone(), seed);
            } else if is_older(versions.0, versions.1) {
                return;
            } else {
                if is_older(versions.1, versions.0) {
                    self.must_read_vm = false;
                }
                let edited = held.metadata.generation != vm.metadata.generation;
                // The server answers again. What only it can refuse is not hurried by our own
                // writes, though: a refusal told in the status would lead to the next refusal at
                // once.
                let with_the_vm = [Kind::ReadVm, Kind::PatchVm, Kind::WriteStatus];
                self.backoff
                    .retry_now_if(at.now, |kind| edited || with_the_vm.contains(&kind));
            }
        }
        self.stages.wanted(vm.spec.guest.in_use(), at);
        let status = vm.status.as_ref();
        self.claim.observe(status, at.now);
        let uses_the_suffix = status.is_some_and(|status| status.pod_name.ends_with(&self.suffix));
        let pod = status.map_or("", |status| status.pod_name.as_str());
        self.ordering.retain(|(of, _)| of == pod);
        self.vm = Some(vm);
        if uses_the_suffix {
            // However that was learnt: no later pod gets the name of this one.
            self.next_suffix();
        }
        if !self.link_holds() {
            self.link = Link::None;
        }
    }

    /// Whether the link still leads to the VM's pod.
    fn link_holds(&self) -> bool {
        match &self.link {
            Link::None => true,
            Link::Silent { pod, .. } | Link::Known { pod, .. } => {
                let status = self.vm.as_ref().and_then(|vm| vm.status.as_ref());
                status.is_some_and(|status| status.pod_name == *pod)
            }
        }
    }

    /// Whether it is not older than what is known.
    fn observe_pod(&mut self, at: Moment, pod: Pod) -> bool {
        let name = pod.metadata.name.clone();
        // Versions go on from one pod to the next of its name: what is known of the next is not
        // undone by old news.
        let older = self.pods.get(&name).is_some_and(|held| {
            is_older(
                &pod.metadata.resource_version,
                &held.metadata.resource_version,
            )
        });
        if older {
            return false;
        }
        if self.absent.as_ref() == Some(&name) {
            self.absent = None;
        }
        // What was read again and is as it was promises nothing: a patch that it led to would be
        // refused again.
        let is_news = self.pods.get(&name) != Some(&pod);
        self.pods.insert(name, pod);
        if is_news {
            self.backoff.retry_now(at.now);
        }
        true
    }

    /// A watch shows a pod no more. The VM's own is read before anything else is done about it.
    fn missed_pod(&mut self, at: Moment, name: &str, uid: Option<&str>) {
        let Some(held) = self.pods.get(name) else {
            return;
        };
        if uid.is_some_and(|uid| held.metadata.uid != uid) {
            return;
        }
        if !self.is_its_pod(name) {
            self.pods.remove(name);
            return;
        }
        let busy = self.busy.get(&Peer::Api).map(Action::kind);
        self.missing_pods.add(held, busy == Some(Kind::ReadPod));
        self.backoff
            .retry_now_if(at.now, |kind| kind == Kind::ReadPod);
    }

    /// A pod was read.
    fn read_pod(&mut self, at: Moment, pod: Pod) {
        let owners = &pod.metadata.owner_references;
        let uid = self.vm.as_ref().map(|vm| vm.metadata.uid.as_str());
        let is_owned = owners.iter().any(|owner| uid == Some(&owner.uid));
        if self.missing_pods.read(&pod) == Found::Another && !is_owned {
            return self.lost_pod(&pod.metadata.name);
        }
        self.observe_pod(at, pod);
    }

    /// There is no such pod.
    fn lost_pod(&mut self, name: &str) {
        self.pods.remove(name);
        self.missing_pods.remove(name);
        if self.is_its_pod(name) {
            self.absent = Some(name.to_owned());
            self.link = Link::None;
        }
    }

    /// Whether it is the pod the VM says it has.
    fn is_its_pod(&self, name: &str) -> bool {
        let status = self.vm.as_ref().and_then(|vm| vm.status.as_ref());
        status.is_some_and(|status| status.pod_name == name)
    }

    fn runner_reported(&mut self, at: Moment, pod: &str, state: Box<RunnerState>) {
        if self.link_target().is_none_or(|target| target != pod) {
            return;
        }
        self.stages.reported(&state, at);
        self.head_start.reported(at.now, state.cpus.guest_online);
        self.link = Link::Known {
            pod: pod.to_owned(),
            state,
        };
    }

    fn push_event(&mut self, note: VmEvent) {
        if self.notes.len() == EVENTS_LIMIT {
            self.notes.pop_front();
        }
        self.notes.push_back(note);
    }

    fn next_suffix(&mut self) {
        self.suffix = suffix(&mut self.seed);
    }
}

#[cfg(test)]
mod tests;
