//! Changes by an action that has ended.

use super::action::Action;
use super::event::ActionResponse;
use super::kind::Kind;
use super::state::{KnownVm, MigrationCore};
use super::view::KnownRunner;
use crate::core::backoff::REPORTED_FROM;
use crate::core::metadata;
use crate::core::moment::Moment;
use crate::core::problem::peer_text;
use crate::core::refusal::Refusal;

impl MigrationCore {
    pub(super) fn done(&mut self, at: Moment, kind: Kind, result: Result<ActionResponse, Refusal>) {
        let peer = kind.peer();
        if self.busy.get(&peer).map(Action::kind) != Some(kind) {
            return;
        }
        let Some(action) = self.busy.remove(&peer) else {
            return;
        };
        match result {
            Ok(response) => self.action_succeeded(at, kind, action, response),
            Err(Refusal::Conflict) => {
                self.backoff.failed(kind, at.now);
                self.is_stale(&action);
            }
            Err(Refusal::Gone) => self.is_gone(&action),
            // The namespace's level was raised after the source was made.
            Err(refusal)
                if kind == Kind::CreatePod
                    && refusal.is_of_pod_security()
                    && !self.settings.unprivileged_pods =>
            {
                self.settings = self.settings.unprivileged();
            }
            Err(Refusal::Failed { message, permanent }) => {
                let times = self.backoff.failed(kind, at.now);
                if permanent || times >= REPORTED_FROM {
                    let is_reported = !matches!(
                        kind,
                        Kind::WriteMigration | Kind::ReadVm | Kind::ReadMigration | Kind::ReadPod
                    );
                    if is_reported {
                        self.failures.insert(kind, peer_text(&message));
                    }
                }
                self.is_stale(&action);
            }
        }
    }

    fn action_succeeded(
        &mut self,
        at: Moment,
        kind: Kind,
        action: Action,
        response: ActionResponse,
    ) {
        let unmet = match (&action, &response) {
            (Action::PatchPod { ops, .. }, ActionResponse::Pod(pod)) => {
                metadata::unmet(ops, &pod.metadata).map(metadata::unmet_text)
            }
            _ => None,
        };
        self.apply(action, response);
        let Some(message) = unmet else {
            self.backoff.succeeded(kind);
            self.failures.remove(&kind);
            return;
        };
        // Tried again at once, it might for ever.
        if self.backoff.failed(kind, at.now) >= REPORTED_FROM {
            self.failures.insert(kind, peer_text(&message));
        }
    }

    /// Marks the object of a refused write to be read again.
    fn is_stale(&mut self, action: &Action) {
        match action {
            Action::WriteVm { .. } => self.stale_vm = true,
            Action::PatchMigration { name, .. } | Action::WriteMigration { name, .. } => {
                self.stale_migration = Some(name.clone());
            }
            Action::PatchPod { name, .. } | Action::DeletePod { name, .. } => {
                // A pod that is unknown is read when a plan needs it.
                self.pods.remove(name);
            }
            _ => {}
        }
    }

    fn is_gone(&mut self, action: &Action) {
        match action {
            Action::ReadVm | Action::WriteVm { .. } => {
                self.vm = KnownVm::Absent;
                self.stale_vm = false;
            }
            Action::PatchMigration { name, .. }
            | Action::WriteMigration { name, .. }
            | Action::ReadMigration { name } => {
                self.migrations.remove(name);
                self.stale_migration = None;
            }
            _ => {}
        }
    }

    fn apply(&mut self, action: Action, response: ActionResponse) {
        if let Action::WriteMigration { events, .. } = &action {
            for event in events {
                self.push_event(event.clone());
            }
        }
        match (action, response) {
            (action, ActionResponse::Vm(vm)) => {
                if action == Action::ReadVm {
                    self.stale_vm = false;
                }
                self.observe_vm(vm);
            }
            (action, ActionResponse::Migration(migration)) => {
                if matches!(action, Action::ReadMigration { .. }) {
                    self.stale_migration = None;
                }
                self.observe_migration(*migration);
            }
            (Action::ReadPod { .. }, ActionResponse::Pod(pod)) => self.read_pod(*pod),
            (_, ActionResponse::Pod(pod)) => {
                self.observe_pod(*pod);
            }
            (_, ActionResponse::PodGone(name)) => self.lost_pod(&name),
            (
                Action::Send { pod, .. }
                | Action::Recall { pod, .. }
                | Action::Quit { pod, .. }
                | Action::Receive { pod, .. }
                | Action::Begin { pod, .. },
                ActionResponse::Runner(state),
            ) => {
                // A later report may have come before it over the other connection.
                let is_late = matches!(self.runners.get(&pod), Some(KnownRunner::Known { state: held })
                    if held.generation > state.generation);
                if !is_late {
                    self.runner_reported(pod, KnownRunner::Known { state });
                }
            }
            (_, ActionResponse::Runner(_)) => {}
        }
    }
}
