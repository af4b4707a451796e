//! Phase Pending: a pod name, the secrets, the pod, and the wait for its runner.

use protocol::annotations::ANNOTATION_ADOPTS;
use protocol::object::Pod;
use protocol::time::{Span, WallTime};
use protocol::vm::VmPhase;

use crate::core::action::Action;
use crate::core::draft::Draft;
use crate::core::observe::{PodState, held_up, pod_state};
use crate::core::pod;
use crate::core::problem::{Problem, peer_text};
use crate::core::settings::SLOT_ALIGNMENT_BYTES;
use crate::core::view::{PodView, RunnerView};
use crate::core::vm_event::VmEvent;
use crate::core::volumes;

impl Draft<'_> {
    /// Pending: a name first, then the pod, then wait for its runner.
    pub(in crate::core) fn pending(&mut self) {
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

    /// A new name, or that of the guest which the VM adopts. Only the node driver of one machine
    /// starts such guests.
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
            // The address is written first, because the pod is built from the status.
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

    /// Whether the secret exists with the token by which runners recognize the controller. It is
    /// made if it is missing, also for an older VM: the target pod of a migration mounts it.
    pub(in crate::core) fn has_runner_secret(&mut self) -> bool {
        let is_there = !self.input.settings.runners_at_pods || self.input.runner_secret_ready;
        if !is_there {
            self.actions.push(Action::EnsureRunnerSecret {
                name: volumes::runner_secret(&self.vm.metadata.name),
                owner: pod::owner(self.vm),
            });
        }
        is_there
    }

    /// Checks the rules that admission did not check when the object was made.
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
            // The pod waits for its secrets, also if one was deleted after the pod was made.
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
            self.events.push(self.first_seen_running(pod));
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
}
