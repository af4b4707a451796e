//! The phases of a VM (docs/compatibility/neonvm.md §2.3).
//!
//! ```text
//!          name written     pod ready          size differs
//!   "" ─► Pending ────────► Running ◄────────────────────► Scaling
//!             ▲               │  pod or runner ended, or pod gone │
//!             │               ▼                                   ▼
//!             └─ restart ─ Succeeded / Failed ◄───────────────────┘
//! ```

use protocol::annotations::ANNOTATION_ADOPTS;
use protocol::claims::{claims_among, keeps_a_disk};
use protocol::object::Pod;
use protocol::quantity::Quantity;
use protocol::revision::RevisionWithTime;
use protocol::runner::{ExitReport, RunnerPhase, RunnerState, SizeOrder};
use protocol::time::{Span, Timestamp, WallTime};
use protocol::trace::TraceId;
use protocol::units::{Bytes, Resources};
use protocol::vm::{RestartPolicy, TakenBy, VmPhase};
use serde_json::Value;

use super::action::{Action, Kind};
use super::conditions::whole_seconds;
use super::metadata::PatchOp;
use super::observe::{
    DELETED_COUNTS_AS_FAILED_US, Fit, PodState, deletion_age_us, end_of, fit, grows, held_up,
    ordered, pod_state, size_of, status_size,
};
use super::plan::{Draft, PodView, RunnerView};
use super::problem::{Problem, peer_text};
use super::settings::SLOT_ALIGNMENT_BYTES;
use super::vm_event::VmEvent;
use super::{metadata, pod, requests, volumes};

/// A runner that has not answered for this long is reported.
pub const SILENCE_REPORTED: Span = Span::from_secs(5);
/// Progress of a resize is written at most this often.
pub const PROGRESS_INTERVAL: Span = Span::from_millis(250);
/// Shortest pause between two writes of a pod's requests while its guest shrinks.
pub const REQUESTS_INTERVAL: Span = Span::from_secs(1);

/// How a VM came to its end.
enum End {
    Well(String),
    Badly(Problem),
}

impl Draft<'_> {
    /// A controller's write can land after its end, when the migration it was for is gone as well:
    /// the VM would be taken for ever. Whether it is taken back. No other migration takes it
    /// without a newer version of the object.
    pub(super) fn release_claim(&mut self) -> bool {
        let Some(claim) = self.stored.migration.clone() else {
            return false;
        };
        match self.input.check_claim_at {
            None => {
                self.status.phase = VmPhase::Running;
                self.status.migration = None;
                self.notes.push(VmEvent::TakenBack {
                    migration: claim.name,
                });
                true
            }
            Some(at) if at > self.input.at.now => {
                self.wake_at(at);
                false
            }
            Some(_) => {
                let TakenBy { name, uid } = claim;
                self.actions.push(Action::ReadTaker { name, uid });
                false
            }
        }
    }

    /// Pending: a name first, then the pod, then wait for its runner.
    pub(super) fn pending(&mut self) {
        if self.status.pod_name.is_empty() {
            if self.spec_allows_a_pod() {
                self.status.pod_name = self.first_pod_name();
            }
            return;
        }
        match self.input.pod {
            PodView::Unknown => self.read_pod(),
            PodView::Absent => self.create(),
            PodView::Present(pod) if !self.owns(pod) => {
                // Written, the empty name leads to another choice.
                self.problems.push(Problem::NameTaken {
                    pod: pod.metadata.name.clone(),
                });
                self.status.pod_name.clear();
            }
            PodView::Present(pod) => self.started(pod),
        }
    }

    /// A name of its own, or that of the guest which the VM adopts. Only a node driver on this
    /// machine knows of such guests.
    fn first_pod_name(&self) -> String {
        let adopts = self.vm.metadata.annotations.get(ANNOTATION_ADOPTS);
        let is_first = self.stored.restart_count == 0 && !self.input.settings.runners_at_pods;
        match adopts.and_then(|adopts| adopts.split_once('/')) {
            Some((pod, _)) if is_first => pod.to_owned(),
            _ => format!("{}-{}", self.vm.metadata.name, self.input.suffix),
        }
    }

    fn create(&mut self) {
        if !self.spec_allows_a_pod() {
            return;
        }
        // The pod mounts the secrets: without one it would not start.
        if !self.has_secrets() || !self.certified || !self.has_address() {
            return;
        }
        if self.status.extra_net_ip != self.stored.extra_net_ip {
            // Written first: the pod is told of it.
            return;
        }
        self.actions.push(Action::CreatePod {
            name: self.status.pod_name.clone(),
            pod: pod::build(self.vm, &self.status, self.input.settings),
        });
    }

    /// Whether the secrets that its pod mounts, and that are ours to make, are known to be there.
    fn has_secrets(&mut self) -> bool {
        if self.vm.spec.enable_ssh && !self.input.ssh_secret_ready {
            self.actions.push(Action::EnsureSshSecret {
                name: self.status.ssh_secret_name.clone(),
                owner: pod::owner(self.vm),
            });
            return false;
        }
        self.has_runner_secret()
    }

    /// Whether runners of the VM find the token by which they know us. It is made if it is not
    /// there, also for a VM that is older than it: a pod that a migration makes asks for it.
    pub(super) fn has_runner_secret(&mut self) -> bool {
        let is_there = !self.input.settings.runners_at_pods || self.input.runner_secret_ready;
        if !is_there {
            self.actions.push(Action::EnsureRunnerSecret {
                name: volumes::runner_secret(&self.vm.metadata.name),
                owner: pod::owner(self.vm),
            });
        }
        is_there
    }

    /// Checks what admission does not, or did not when the object was made.
    fn spec_allows_a_pod(&mut self) -> bool {
        let guest = &self.vm.spec.guest;
        let before = self.problems.len();
        let bytes = guest.slot_bytes();
        if bytes == 0 || !bytes.is_multiple_of(SLOT_ALIGNMENT_BYTES) {
            self.problems.push(Problem::SlotSize { bytes });
        }
        let cpus = guest.cpus;
        if cpus.min.0 == 0 || cpus.min > cpus.r#use || cpus.r#use > cpus.max {
            self.problems.push(Problem::Bounds {
                field: ".spec.guest.cpus",
            });
        }
        let slots = guest.memory_slots;
        if slots.min <= 0 || slots.min > slots.r#use || slots.r#use > slots.max {
            self.problems.push(Problem::Bounds {
                field: ".spec.guest.memorySlots",
            });
        }
        self.problems.len() == before
    }

    /// Pending with a pod: orders the size already, so that the guest has it when it is up.
    fn started(&mut self, pod: &Pod) {
        if let Some(end) = self.end(pod) {
            return self.finish(end);
        }
        if pod.status.phase != "Running" {
            // It waits for what it mounts, also where that was deleted since it was made.
            self.has_secrets();
        }
        self.sync_and_size(pod);
        self.guest_answers(pod);
        if let Some(why) = held_up(pod) {
            self.problems.push(Problem::PodWaits {
                pod: pod.metadata.name.clone(),
                why: peer_text(&why),
            });
        }
        if pod_state(pod, self.input.at.wall) == PodState::Running {
            self.status.phase = VmPhase::Running;
            self.available(true, &format!("pod {} runs", pod.metadata.name));
            self.located(pod);
            self.notes.push(self.first_seen_running(pod));
            if let RunnerView::Known(state) = self.input.runner {
                self.measured(state);
                self.propagate(state);
            }
        }
    }

    fn first_seen_running(&self, pod: &Pod) -> VmEvent {
        let first = self.stored.restart_count == 0;
        let since = |then: Option<WallTime>| {
            let us = self
                .input
                .at
                .wall
                .0
                .checked_sub(then.filter(|_| first)?.0)?;
            u64::try_from(us).ok().map(Span)
        };
        VmEvent::Running {
            pod: pod.metadata.name.clone(),
            since_pod: since(pod.metadata.creation_timestamp),
            since_vm: since(self.vm.metadata.creation_timestamp),
        }
    }

    /// Running and Scaling.
    pub(super) fn alive(&mut self) {
        match self.input.pod {
            PodView::Unknown => self.read_pod(),
            PodView::Absent => {
                let pod = self.status.pod_name.clone();
                self.finish(End::Badly(Problem::PodGone { pod }));
            }
            PodView::Present(pod) => {
                if let Some(end) = self.end(pod) {
                    return self.finish(end);
                }
                self.located(pod);
                self.sync_and_size(pod);
                self.guest_answers(pod);
                match self.input.runner {
                    // A guest that has just moved says what it has when it goes on.
                    RunnerView::Known(state) if state.phase == RunnerPhase::Receiving => {}
                    RunnerView::Known(state) => self.sized(state),
                    RunnerView::Silent { since, error } => self.silent(pod, since, error),
                    RunnerView::NoLink => self.elsewhere(pod),
                }
            }
        }
    }

    /// How the VM ended, by its pod or its runner, whoever says it first.
    fn end(&mut self, pod: &Pod) -> Option<End> {
        if let Some(age) = deletion_age_us(pod, self.input.at.wall)
            && age <= DELETED_COUNTS_AS_FAILED_US
        {
            self.wake_when_older(age, DELETED_COUNTS_AS_FAILED_US);
        }
        let exit = match self.input.runner {
            RunnerView::Known(state) => state.exit.as_ref(),
            _ => None,
        };
        let name = || pod.metadata.name.clone();
        match (exit, pod_state(pod, self.input.at.wall)) {
            (Some(exit), _) if exit.success => Some(End::Well(exit_text(exit))),
            (Some(exit), _) => {
                let reason = exit_text(exit);
                Some(End::Badly(Problem::PodFailed {
                    pod: name(),
                    reason,
                }))
            }
            (None, PodState::Succeeded) => Some(End::Well(peer_text(&end_of(pod)))),
            (None, PodState::Failed) => {
                let reason = peer_text(&end_of(pod));
                Some(End::Badly(Problem::PodFailed {
                    pod: name(),
                    reason,
                }))
            }
            (None, PodState::Pending | PodState::Running) => None,
        }
    }

    fn finish(&mut self, end: End) {
        match end {
            End::Well(reason) => {
                self.status.phase = VmPhase::Succeeded;
                self.available(false, &reason);
                self.notes.push(VmEvent::Succeeded { reason });
            }
            End::Badly(problem) => {
                self.status.phase = VmPhase::Failed;
                self.available(false, &problem.to_string());
                self.degraded(&problem.to_string());
                self.notes.push(VmEvent::Failed { problem });
            }
        }
    }

    fn read_pod(&mut self) {
        self.actions.push(Action::ReadPod {
            name: self.status.pod_name.clone(),
        });
    }

    fn located(&mut self, pod: &Pod) {
        self.status.pod_ip.clone_from(&pod.status.pod_ip);
        self.status.node.clone_from(&pod.spec.node_name);
    }

    /// The pod first, then the order: whoever adds up a node by its pods must never see a guest
    /// grow before its pod says so. Growth therefore waits for the sync, and so does what is less
    /// than a guest booted with and more than its pod says by now; everything else goes out beside
    /// it. A pod says so by its requests, where they tell all of its VM, and its metadata may
    /// follow the guest then; else by that part of its metadata by which others count it.
    fn sync_and_size(&mut self, pod: &Pod) {
        if pod.metadata.deletion_timestamp.is_some() {
            return;
        }
        let wanted = self.vm.spec.guest.in_use();
        let said = metadata::annotated_size(&pod.metadata);
        let size = if self.may_say_less() {
            wanted
        } else {
            wanted.field_max(said.unwrap_or_default())
        };
        let ops = metadata::expected_at(self.vm, self.input.settings, size).patch(&pod.metadata);
        let resize = self.requests(pod);
        let by_requests = self.is_sized_by_requests(pod);
        let may_be_less = self.input.resizing;
        let may_be_less = may_be_less.is_some_and(|ops| requests::undercuts(self.vm, ops));
        let counted = metadata::counted(&ops);
        let in_sync = (by_requests || counted.is_empty())
            && !may_be_less
            && !resize.as_ref().is_some_and(|resize| resize.grows);
        let is_unsaid = !by_requests && said.is_none_or(|said| wanted.has_field_above(said));
        let waits = |state: &RunnerState| is_unsaid || grows(wanted, state);
        if let RunnerView::Known(state) = self.input.runner {
            if self.fit(state) == Fit::Unordered && (in_sync || !waits(state)) {
                self.order(pod, wanted);
            } else {
                self.plug_ahead(pod, state, by_requests);
            }
        }
        let is_said = matches!(self.input.runner, RunnerView::Known(state)
            if self.fit(state) != Fit::Reached && (by_requests || !waits(state)));
        let can_wait = is_said && self.may_be_quick();
        self.sync(pod, ops, counted, can_wait);
        if let Some(resize) = resize
            && (resize.grows || !self.has_yet_to_shrink())
            && !(resize.grows && self.has_a_head_start(wanted))
        {
            let (name, ops) = (pod.metadata.name.clone(), resize.ops);
            self.actions.push(Action::ResizePod { name, ops });
        }
        if self.overlay_is_wanted() && self.input.settings.network_attachment.is_none() {
            self.problems.push(Problem::NoOverlay);
        }
    }

    /// All in one write; but where that is refused or undone, what is counted goes by itself and
    /// first.
    fn sync(&mut self, pod: &Pod, ops: Vec<PatchOp>, counted: Vec<PatchOp>, can_wait: bool) {
        let is_refused = self.input.failures.contains_key(&Kind::PatchPodMetadata);
        let name = || pod.metadata.name.clone();
        if is_refused && !counted.is_empty() && !can_wait {
            let (name, ops) = (name(), counted);
            self.actions.push(Action::PatchPodCounted { name, ops });
        }
        // What is refused stays planned, or it would not be known any more that it is.
        if !ops.is_empty() && (is_refused || !can_wait) {
            let name = name();
            self.actions.push(Action::PatchPodMetadata { name, ops });
        }
    }

    fn order(&mut self, pod: &Pod, size: Resources) {
        let trace = TraceId {
            vm: self.vm.metadata.key(),
            revision: self.revision(),
        };
        let over = match self.input.runner {
            RunnerView::Known(state) => state.orders,
            RunnerView::NoLink | RunnerView::Silent { .. } => None,
        };
        self.actions.push(Action::SetSize {
            pod: pod.metadata.name.clone(),
            order: SizeOrder {
                cpu: size.cpu,
                memory: size.mem,
                trace,
            },
            over,
        });
    }

    /// What is to change in what the pod requests. An API server or a node that will not have it is
    /// told of and holds nobody up: what a node has room for is the scheduler's to know, and it has
    /// permitted the size.
    fn requests(&mut self, pod: &Pod) -> Option<requests::Change> {
        if !self.input.settings.true_requests {
            return None;
        }
        if let Some(message) = requests::pending(pod) {
            self.problems.push(Problem::RequestsPending {
                pod: pod.metadata.name.clone(),
                message: peer_text(message),
            });
        }
        let has = match self.input.runner {
            RunnerView::Known(state) => self.may_have(state),
            RunnerView::NoLink | RunnerView::Silent { .. } => None,
        };
        let mut change = requests::change(self.vm, pod, has)?;
        change.grows &= !self.input.failures.contains_key(&Kind::ResizePod);
        Some(change)
    }

    /// The most a guest has, or comes to have by what its runner was told last or is being told. A
    /// runner that has just taken over does not know its QEMU yet.
    fn may_have(&self, state: &RunnerState) -> Option<Resources> {
        if matches!(state.phase, RunnerPhase::Booting | RunnerPhase::Receiving) {
            return None;
        }
        let mut has = size_of(state);
        let requested = state.memory.requested.0;
        has.mem = has.mem.max(Bytes(state.memory.base.0 + requested));
        let told = state.resize.as_ref().map(|report| ordered(&report.order));
        let told = told.into_iter().chain(self.ordering());
        Some(told.fold(has, Resources::field_max))
    }

    /// Whether the pod may say less than it does. The guest has as much as it was made for, or told
    /// before, until the status says what it has: of a controller that died meanwhile it tells less
    /// than that.
    fn may_say_less(&self) -> bool {
        let RunnerView::Known(state) = self.input.runner else {
            return false;
        };
        let told = self
            .vm
            .spec
            .guest
            .in_use()
            .field_max(status_size(&self.status));
        let has = self.may_have(state);
        has.is_some_and(|has| !has.has_field_above(told))
    }

    /// Whether the guest shrinks and its pod's requests followed lately. If so, looks again.
    fn has_yet_to_shrink(&mut self) -> bool {
        let is_there = matches!(self.input.runner, RunnerView::Known(state) if self.fit(state) == Fit::Reached);
        let next = self.input.wanted_since.max(self.input.resized_at) + REQUESTS_INTERVAL;
        !is_there && self.is_before(next)
    }

    /// Whether others see by what the pod requests how large its guest may be.
    fn is_sized_by_requests(&self, pod: &Pod) -> bool {
        self.input.settings.true_requests
            && !self.input.failures.contains_key(&Kind::ResizePod)
            && requests::cover_vm(self.vm, pod)
    }

    /// Whether the resize may end before its progress is worth a write. If so, looks again.
    fn may_be_quick(&mut self) -> bool {
        let until = self.input.wanted_since + self.input.settings.quick;
        self.stored.phase == VmPhase::Running && self.is_before(until)
    }

    /// Whether this is yet to come; then it is looked at again.
    pub(super) fn is_before(&mut self, at: Timestamp) -> bool {
        let is_before = self.input.at.now < at;
        if is_before {
            self.wake_at(at);
        }
        is_before
    }

    /// Where the runner stands. An order of another size that is on its way may yet be taken up:
    /// the guest does not have the wanted size for good before that order's fate is known.
    pub(super) fn fit(&self, state: &RunnerState) -> Fit {
        match fit(self.vm.spec.guest.in_use(), state) {
            Fit::Reached if self.is_ordering_another() => Fit::Unordered,
            fit => fit,
        }
    }

    /// Whether an order of another size than the wanted one is on its way, or its fate not known.
    fn is_ordering_another(&self) -> bool {
        let wanted = self.vm.spec.guest.in_use();
        self.ordering().any(|size| size != wanted)
    }

    /// What the runner is being told, or may have been.
    fn ordering(&self) -> impl Iterator<Item = Resources> {
        let orders = self.input.ordering.iter();
        let pod = &self.status.pod_name;
        orders.filter_map(move |(of, size)| (of == pod).then_some(*size))
    }

    /// The revision of the wish; 0 without one.
    fn revision(&self) -> i64 {
        self.vm
            .spec
            .target_revision
            .map_or(0, |target| target.revision.value)
    }

    pub(super) fn overlay_is_wanted(&self) -> bool {
        let extra = self.vm.spec.extra_network.as_ref();
        extra
            .and_then(|extra| extra.get("enable"))
            .and_then(Value::as_bool)
            == Some(true)
    }

    /// The phase by the size, and the size into the status.
    fn sized(&mut self, state: &RunnerState) {
        if let Some(problem) = state
            .resize
            .as_ref()
            .and_then(|report| report.problem.clone())
        {
            self.problems.push(Problem::Resize { problem });
        }
        if self.fit(state) == Fit::Reached {
            self.status.phase = VmPhase::Running;
            self.measured(state);
            self.propagate(state);
            self.scaled(state);
            return;
        }
        if self.may_be_quick() {
            return;
        }
        let began_before = self.stored.phase == VmPhase::Scaling;
        self.status.phase = VmPhase::Scaling;
        let next = self.input.progress_at + PROGRESS_INTERVAL;
        if began_before && self.input.at.now < next {
            let held = (self.status.cpus, self.status.memory_size);
            self.measured(state);
            if held != (self.status.cpus, self.status.memory_size) {
                (self.status.cpus, self.status.memory_size) = held;
                self.wake_at(next);
            }
        } else {
            self.measured(state);
        }
    }

    /// Reports a resize that is done, also one that was done before phase Scaling was written.
    fn scaled(&mut self, state: &RunnerState) {
        let to = size_of(state);
        let from = self.input.scaling_from;
        if self.stored.phase == VmPhase::Scaling || from.is_some_and(|from| from != to) {
            let (from, revision) = (from.unwrap_or(to), self.revision());
            self.notes.push(VmEvent::Scaled { from, to, revision });
        }
    }

    /// A guest that is told to have another size than the wanted one may be about to grow. Less
    /// than before is said only of one that is told the wanted size: whoever adds up a node takes
    /// it that a guest seen to shrink goes on doing so.
    fn measured(&mut self, state: &RunnerState) {
        // A runner that has just taken over does not know its QEMU yet: what the one before said
        // stands.
        if state.phase == RunnerPhase::Booting && self.status.memory_size.is_some() {
            return;
        }
        let mut size = size_of(state);
        if self.fit(state) == Fit::Unordered || self.is_ordering_another() {
            size = size.field_max(status_size(&self.status));
        }
        self.status.cpus = Some(size.cpu);
        self.status.memory_size = Some(Quantity::from_bytes(size.mem.0));
    }

    /// The guest has the spec's size, so the spec's revision is current. Only equality matters.
    fn propagate(&mut self, state: &RunnerState) {
        let Some(target) = self.vm.spec.target_revision else {
            return;
        };
        let current = self.status.current_revision.map(|current| current.revision);
        let reached = self.fit(state) == Fit::Reached;
        if self.status.phase == VmPhase::Running && reached && current != Some(target.revision) {
            self.status.current_revision = Some(RevisionWithTime {
                revision: target.revision,
                updated_at: whole_seconds(self.input.at.wall),
            });
        }
    }

    /// A guest that hangs is told of, and left alone: it may be at work all the same. So is one
    /// that its node's disk keeps from it.
    fn guest_answers(&mut self, pod: &Pod) {
        let RunnerView::Known(state) = self.input.runner else {
            return;
        };
        if let Some(full) = &state.disk_full {
            self.problems.push(Problem::DiskFull {
                pod: pod.metadata.name.clone(),
                node: pod.spec.node_name.clone(),
                claims: claims_among(&self.vm.spec, &full.disks),
                full: full.clone(),
            });
        }
        if let Some(silence) = state.guest_silent {
            self.problems.push(Problem::GuestSilent {
                pod: pod.metadata.name.clone(),
                silence,
            });
        }
    }

    fn silent(&mut self, pod: &Pod, since: Timestamp, error: &str) {
        let due = since + SILENCE_REPORTED;
        if !self.is_before(due) {
            self.problems.push(Problem::RunnerSilent {
                pod: pod.metadata.name.clone(),
                message: peer_text(error),
            });
        }
    }

    fn elsewhere(&mut self, pod: &Pod) {
        let local = self.input.settings.local_node.as_deref();
        let node = &pod.spec.node_name;
        if !node.is_empty() && local.is_some_and(|local| local != node) {
            self.problems
                .push(Problem::RunnerElsewhere { node: node.clone() });
        }
    }

    /// Succeeded and Failed: away with the pod, then by the restart policy.
    pub(super) fn ended(&mut self) {
        if !self.status.pod_name.is_empty() {
            match self.input.pod {
                PodView::Unknown => return self.read_pod(),
                PodView::Absent => {}
                PodView::Present(pod) if !self.owns(pod) => {}
                PodView::Present(pod) => {
                    if pod.metadata.deletion_timestamp.is_none() {
                        return self.delete_pod(pod);
                    }
                    if !pod.metadata.owner_references.is_empty() {
                        let (name, uid) = (pod.metadata.name.clone(), pod.metadata.uid.clone());
                        return self.actions.push(Action::OrphanPod { name, uid });
                    }
                    // A disk that stays is one file: the next QEMU waits until the last has gone.
                    let has_one_disk = keeps_a_disk(&self.vm.spec);
                    if self.input.settings.at_most_one_pod || has_one_disk {
                        return;
                    }
                }
            }
        }
        self.status.pod_name.clear();
        self.status.pod_ip.clear();
        self.status.node.clear();
        self.status.cpus = None;
        self.status.memory_size = None;
        let failed = self.status.phase == VmPhase::Failed;
        let again = match self.vm.spec.restart_policy {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => failed,
            RestartPolicy::Never => false,
        };
        if !again {
            return;
        }
        if self.input.at.now < self.input.restart_at {
            return self.wake_at(self.input.restart_at);
        }
        let after = self.status.phase;
        self.status.phase = VmPhase::Pending;
        self.status.restart_count = self.status.restart_count.saturating_add(1);
        self.notes.push(VmEvent::Restarted {
            after,
            count: self.status.restart_count,
        });
    }
}

fn exit_text(exit: &ExitReport) -> String {
    let reason = serde_json::to_value(exit.reason).ok();
    let word = reason
        .as_ref()
        .and_then(Value::as_str)
        .unwrap_or_default()
        .replace('_', " ");
    let mut text = word;
    if let Some(code) = exit.code {
        text.push_str(&format!(", exit code {code}"));
    }
    if !exit.message.is_empty() {
        text.push_str(": ");
        text.push_str(exit.message.trim());
    }
    peer_text(&text)
}
