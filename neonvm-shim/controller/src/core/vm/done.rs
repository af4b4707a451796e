//! Changes by an action that has ended.

use protocol::object::Pod;
use protocol::runner::RunnerState;
use protocol::vm::{VirtualMachine, VmPhase, VmStatus};

use super::event::ActionResponse;
use super::state::{Link, VmCore};
use crate::core::action::Action;
use crate::core::backoff::REPORTED_FROM;
use crate::core::kind::Kind;
use crate::core::metadata;
use crate::core::moment::Moment;
use crate::core::observe::{ordered, size_of};
use crate::core::problem::{Problem, peer_text};
use crate::core::refusal::Refusal;
use crate::core::vm_event::VmEvent;

/// Which patched metadata the API server did not store, as a message.
fn unmet(action: &Action, response: &ActionResponse) -> Option<String> {
    match (action, response) {
        (
            Action::PatchPodMetadata { ops, .. } | Action::PatchPodCounted { ops, .. },
            ActionResponse::Pod(pod),
        ) => metadata::unmet(ops, &pod.metadata).map(metadata::unmet_text),
        _ => None,
    }
}

impl VmCore {
    pub(super) fn done(
        &mut self,
        at: Moment,
        kind: Kind,
        began: Moment,
        result: Result<ActionResponse, Refusal>,
    ) {
        let peer = kind.peer();
        if self.busy.get(&peer).map(Action::kind) != Some(kind) {
            // The result is late: another object with the same name has replaced the VM.
            return;
        }
        let Some(action) = self.busy.remove(&peer) else {
            return;
        };
        match result {
            Ok(response) => {
                let unmet = unmet(&action, &response);
                self.apply(at, began, &action, response);
                match unmet {
                    None => {
                        self.backoff.succeeded(kind);
                        self.failures.remove(&kind);
                    }
                    // After the update, which would clear the back-off.
                    Some(message) => self.not_stored(at, kind, &message),
                }
            }
            Err(Refusal::Conflict) => {
                self.backoff.failed(kind, at.now);
                self.must_read_vm = true;
            }
            Err(Refusal::Gone) => self.vm = None,
            Err(refusal) if self.does_without_privileges(kind, &refusal) => {}
            Err(Refusal::Failed { message, permanent }) => {
                self.action_failed(at, kind, action, &message, permanent);
            }
        }
    }

    fn action_failed(
        &mut self,
        at: Moment,
        kind: Kind,
        action: Action,
        message: &str,
        permanent: bool,
    ) {
        match action {
            Action::ResizePod { ops, .. } if !permanent && !self.resize_unsure.contains(&ops) => {
                self.resize_unsure.push(ops);
            }
            Action::SetSize { .. } if permanent => {
                self.ordering.pop();
            }
            _ => {}
        }
        let times = self.backoff.failed(kind, at.now);
        if permanent || times >= REPORTED_FROM {
            self.failed(kind, message);
        }
        match kind {
            Kind::PlugAhead => self.head_start.cancel(),
            Kind::PatchVm | Kind::WriteStatus => self.must_read_vm = true,
            // A patch or deletion that does not apply may rest on an old view of the pod.
            Kind::PatchPodMetadata
            | Kind::PatchPodCounted
            | Kind::ResizePod
            | Kind::DeletePod
            | Kind::OrphanPod => {
                self.reads_due.insert(Kind::ReadPod);
            }
            _ => {}
        }
    }

    /// Switches to pods without privileges when Pod Security has refused one with them; returns
    /// whether it did. A refusal of a pod without privileges is handled like any other.
    fn does_without_privileges(&mut self, kind: Kind, refusal: &Refusal) -> bool {
        let may = kind == Kind::CreatePod && refusal.is_of_pod_security();
        if !may || self.settings.unprivileged_pods {
            return false;
        }
        self.settings = self.settings.unprivileged();
        self.push_event(VmEvent::Unprivileged);
        true
    }

    /// Counts a patch that was accepted and not stored as a failure. Without a pause it would be
    /// repeated for ever.
    fn not_stored(&mut self, at: Moment, kind: Kind, message: &str) {
        if self.backoff.failed(kind, at.now) >= REPORTED_FROM {
            self.failed(kind, message);
        }
    }

    fn failed(&mut self, kind: Kind, message: &str) {
        let message = peer_text(message);
        let problem = match kind {
            // A status that cannot be written cannot report these, or they are no problem of the
            // VM.
            Kind::WriteStatus
            | Kind::PatchVm
            | Kind::ReadVm
            | Kind::ReadPod
            | Kind::ReadMigration => {
                return;
            }
            // The order does all of it.
            Kind::PlugAhead => return,
            Kind::SetSize => Problem::Runner { message },
            action => Problem::Api { action, message },
        };
        self.failures.insert(kind, problem);
    }

    fn apply(&mut self, at: Moment, began: Moment, action: &Action, response: ActionResponse) {
        match (action, response) {
            (Action::WriteStatus { status, events, .. }, ActionResponse::Vm(vm)) => {
                self.status_written(at, status, events, *vm);
            }
            (Action::ReadVm, ActionResponse::Vm(vm)) => {
                self.must_read_vm = false;
                self.reads_due.remove(&Kind::ReadVm);
                self.observe_vm(at, *vm);
            }
            (_, ActionResponse::Vm(vm)) => self.observe_own(at, *vm),
            (Action::CreatePod { .. }, ActionResponse::Pod(pod)) => {
                self.push_created(&pod);
                self.observe_pod(at, *pod);
            }
            (action, ActionResponse::Pod(pod)) => self.pod_returned(at, action.kind(), *pod),
            (_, ActionResponse::PodGone(name)) => {
                self.resize_unsure.clear();
                self.lost_pod(&name);
            }
            (Action::ReadMigration { uid, .. }, ActionResponse::MigrationClaim(found)) => {
                self.claim.found(uid, found.as_deref(), at.now);
            }
            (_, ActionResponse::MigrationClaim(_)) => {}
            (_, ActionResponse::Address { address, mask }) => self.address = Some((address, mask)),
            (_, ActionResponse::AddressReleased) => self.address_released = true,
            (Action::Certificate { order, .. }, ActionResponse::Certificate(facts)) => {
                self.certificate.refresh(&order.wanted, *facts, at);
            }
            (_, ActionResponse::Certificate(_)) => {}
            (Action::EnsureRunnerSecret { .. }, ActionResponse::SecretReady) => {
                self.runner_secret_ready = true;
            }
            (_, ActionResponse::SecretReady) => self.ssh_secret_ready = true,
            (Action::SetSize { pod, order, .. }, ActionResponse::Runner(state)) => {
                let before = self.ordered_from.take().unwrap_or_else(|| size_of(&state));
                self.ordering.clear();
                self.stages
                    .sent(&order.trace, ordered(order), before, began);
                self.responded(at, pod, state);
            }
            (Action::PlugAhead { pod, .. }, ActionResponse::Runner(state)) => {
                self.responded(at, pod, state)
            }
            (_, ActionResponse::Runner(_)) => {}
        }
    }

    fn status_written(
        &mut self,
        at: Moment,
        status: &VmStatus,
        events: &[VmEvent],
        vm: VirtualMachine,
    ) {
        let before = self
            .vm
            .as_ref()
            .and_then(|vm| vm.status.clone())
            .unwrap_or_default();
        self.wrote_status(at, &before, status);
        for event in events {
            if matches!(event, VmEvent::Scaled { .. }) {
                self.scaling_from = None;
            }
            self.push_event(event.clone());
        }
        self.observe_own(at, vm);
    }

    fn pod_returned(&mut self, at: Moment, kind: Kind, pod: Pod) {
        match kind {
            Kind::ResizePod => {
                self.resized_at = at.now;
                self.resize_unsure.clear();
            }
            Kind::ReadPod => {
                self.resize_unsure.clear();
                return self.read_pod(at, pod);
            }
            _ => {}
        }
        self.observe_pod(at, pod);
    }

    /// Takes the runner's state in the response to an order. A later report may have arrived before
    /// it over the other connection, and is kept.
    fn responded(&mut self, at: Moment, pod: &str, state: Box<RunnerState>) {
        let is_late = matches!(&self.link, Link::Known { pod: known, state: held }
            if known == pod && held.generation > state.generation);
        if !is_late {
            self.runner_reported(at, pod, state);
        }
    }

    /// Takes the VM in the response to our own write.
    fn observe_own(&mut self, at: Moment, vm: VirtualMachine) {
        self.observe_vm(at, vm);
    }

    fn wrote_status(&mut self, at: Moment, before: &VmStatus, now: &VmStatus) {
        if now.pod_name != before.pod_name {
            self.absent = None;
            self.ssh_secret_ready = false;
            self.certificate.expire();
            self.runner_secret_ready = false;
        }
        if now.phase == VmPhase::Scaling {
            self.progress_at = at.now;
        }
        if now.phase == VmPhase::Running {
            self.restarts.running(at.now);
            let revision = now
                .current_revision
                .map_or(0, |current| current.revision.value);
            self.stages.written(revision, at);
            if before.phase == VmPhase::Pending {
                self.scaling_from = None;
            }
        }
        let ended = |phase| matches!(phase, VmPhase::Succeeded | VmPhase::Failed);
        if ended(now.phase) && !ended(before.phase) {
            self.restarts.ended(at.now);
            self.scaling_from = None;
        }
    }

    fn push_created(&mut self, pod: &Pod) {
        let since_vm = self.vm.as_ref().and_then(|vm| {
            let first = vm
                .status
                .as_ref()
                .is_some_and(|status| status.restart_count == 0);
            let born = vm.metadata.creation_timestamp.filter(|_| first)?;
            let us = pod.metadata.creation_timestamp?.0.checked_sub(born.0)?;
            u64::try_from(us).ok().map(protocol::time::Span)
        });
        self.push_event(VmEvent::PodCreated {
            pod: pod.metadata.name.clone(),
            since_vm,
        });
    }
}
