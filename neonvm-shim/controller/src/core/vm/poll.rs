//! The next action of a VM, by a plan from scratch.

use std::collections::BTreeSet;

use protocol::core::Core;
use protocol::time::{Span, Timestamp};
use protocol::vm::VmPhase;

use super::event::Event;
use super::state::{Link, VmCore};
use crate::core::action::Action;
use crate::core::backoff::READ_AGAIN;
use crate::core::kind::{Kind, Peer};
use crate::core::metadata::PatchOp;
use crate::core::moment::Moment;
use crate::core::observe::{ordered, size_of};
use crate::core::plan::{Plan, plan};
use crate::core::problem::Problem;
use crate::core::view::{PlanInput, PodView, RunnerView};
use crate::core::vm_event::VmEvent;

/// A VM is planned again after this long at the latest.
pub const LOOK_AGAIN: Span = Span::from_secs(15);

impl Core for VmCore {
    type Time = Moment;
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, at: Moment, event: Event) {
        self.observe(at, event);
    }

    fn poll_action(&mut self, at: Moment) -> Option<Action> {
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
                Action::PlugAhead { cpus, .. } => {
                    let online = state.cpus.guest_online;
                    self.head_start.request(at.now, cpus.cpu, online);
                }
                _ => {}
            }
        }
        Some(action)
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        self.vm.as_ref().and(self.wake_at)
    }
}

impl VmCore {
    /// Looks for the secrets of a pending pod again, because no event reports that one was deleted.
    fn doubt_secrets(&mut self) {
        let status = self.vm.as_ref().and_then(|vm| vm.status.as_ref());
        if status.is_some_and(|status| status.phase == VmPhase::Pending) {
            self.ssh_secret_ready = false;
            self.runner_secret_ready = false;
        }
    }

    fn choose(&mut self, at: Moment) -> Option<Action> {
        let api_free = !self.busy.contains_key(&Peer::Api);
        if self.must_read_vm {
            // The stored object has changed. It is read before any other request to the API server.
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

    /// Plans, and forgets the failures of actions that are no longer wanted.
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
        plan(&PlanInput {
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
            took_over_at: self.took_over_at,
            head_start: &self.head_start,
            ordering: &self.ordering,
            resizing: self.resizing(),
            resize_unsure: self.resize_unsure(),
            scaling_from: self.scaling_from,
            at,
        })
    }

    /// Change of the pod's requests that is under way.
    fn resizing(&self) -> Option<&[PatchOp]> {
        match self.busy.get(&Peer::Requests)? {
            Action::ResizePod { ops, .. } => Some(ops),
            _ => None,
        }
    }

    /// Changes of the pod's requests whose outcome is unknown. If they keep failing, they delay no
    /// growth, and none is given.
    fn resize_unsure(&self) -> &[Vec<PatchOp>] {
        if self.failures.contains_key(&Kind::ResizePod) {
            &[]
        } else {
            &self.resize_unsure
        }
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
}
