//! Events into the state of a VM's migrations.

use protocol::object::Pod;
use protocol::vm::{VirtualMachine, VirtualMachineMigration};

use super::action::Action;
use super::event::Event;
use super::kind::{Kind, Peer};
use super::state::{KnownVm, MigrationCore};
use super::view::KnownRunner;
use crate::core::missing_pods::Found;
use crate::core::moment::Moment;
use crate::core::names::{is_older, suffix};

impl MigrationCore {
    /// Takes an event that happened at `at`. A change from elsewhere lets failed actions be tried
    /// again at once. The result of our own request does not, or a request that is always refused
    /// would be repeated without a pause.
    pub(super) fn observe(&mut self, at: Moment, event: Event) {
        match event {
            Event::Migration(migration) => {
                let held = self.migrations.get(&migration.metadata.name);
                let before = held.map(|held| held.metadata.generation);
                // Our own write of a refusal into the status must not cause the next attempt at
                // once.
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
                // The result of our own write held this state already.
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

    pub(super) fn observe_migration(&mut self, migration: VirtualMachineMigration) {
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

    pub(super) fn observe_vm(&mut self, vm: Box<VirtualMachine>) {
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

    /// Returns whether the pod is not older than the known one.
    pub(super) fn observe_pod(&mut self, pod: Pod) -> bool {
        let name = pod.metadata.name.clone();
        // The response to a call may arrive after the watch event for the pod's end.
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

    /// A watch no longer shows a pod. If a migration names it, it is read before any other action
    /// on it.
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
    pub(super) fn read_pod(&mut self, pod: Pod) {
        if self.missing_pods.read(&pod) == Found::Another {
            self.lost_pod(&pod.metadata.name);
        }
        self.observe_pod(pod);
    }

    /// There is no such pod.
    pub(super) fn lost_pod(&mut self, name: &str) {
        self.missing_pods.remove(name);
        if let Some(pod) = self.pods.remove(name) {
            self.gone.insert(name.to_owned(), pod.metadata.uid);
        }
        self.runners.remove(name);
        self.absent.insert(name.to_owned());
        let named = self.named();
        // Only pods that a migration names are remembered as absent.
        self.absent.retain(|name| named.contains(name));
        self.gone.retain(|name, _| named.contains(name));
    }

    pub(super) fn runner_reported(&mut self, pod: String, known: KnownRunner) {
        if self.link_targets().contains(&pod) {
            self.runners.insert(pod, known);
        } else {
            self.runners.remove(&pod);
        }
    }
}
