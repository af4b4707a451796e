//! Events into the state of a VM.

use protocol::object::Pod;
use protocol::runner::RunnerState;
use protocol::vm::VirtualMachine;

use super::event::Event;
use super::state::{Link, VmCore};
use crate::core::action::Action;
use crate::core::kind::{Kind, Peer};
use crate::core::missing_pods::Found;
use crate::core::moment::Moment;
use crate::core::names::is_older;

impl VmCore {
    /// Something happened at `at`; for a watch event, the moment it was received.
    pub(super) fn observe(&mut self, at: Moment, event: Event) {
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

    pub(super) fn observe_vm(&mut self, at: Moment, vm: VirtualMachine) {
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
                // The API server responds again. A refusal that only the API server can lift is not
                // retried by our own write: the write of the refusal into the status would cause
                // the next refusal at once.
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
        // Of a pod that was the VM's and is not any more nobody reads what became of it.
        for name in self.missing_pods.take_others(pod) {
            self.pods.remove(&name);
        }
        if self.vm.is_none() && !pod.is_empty() {
            self.took_over_at = Some(at.now);
        }
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

    /// Returns whether the pod is not older than the known one.
    pub(super) fn observe_pod(&mut self, at: Moment, pod: Pod) -> bool {
        let name = pod.metadata.name.clone();
        // Resource versions grow from one pod to the next of the same name, so an old update never
        // replaces a newer pod.
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
        // A pod that was read again unchanged gives no reason to retry: its patch would be refused
        // again.
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
    pub(super) fn read_pod(&mut self, at: Moment, pod: Pod) {
        let owners = &pod.metadata.owner_references;
        let uid = self.vm.as_ref().map(|vm| vm.metadata.uid.as_str());
        let is_owned = owners.iter().any(|owner| uid == Some(&owner.uid));
        if self.missing_pods.read(&pod) == Found::Another && !is_owned {
            return self.lost_pod(&pod.metadata.name);
        }
        self.observe_pod(at, pod);
    }

    /// There is no such pod.
    pub(super) fn lost_pod(&mut self, name: &str) {
        self.pods.remove(name);
        self.missing_pods.remove(name);
        if self.is_its_pod(name) {
            self.absent = Some(name.to_owned());
            self.link = Link::None;
        }
    }

    pub(super) fn runner_reported(&mut self, at: Moment, pod: &str, state: Box<RunnerState>) {
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
}
