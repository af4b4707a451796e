//! Phases Running and Scaling: whether pod and runner live, and what the runner reports.

use protocol::claims::claims_among;
use protocol::object::Pod;
use protocol::policy::LABEL_SET;
use protocol::runner::{ExitReport, RunnerPhase};
use protocol::time::{Span, Timestamp};
use protocol::vm::VmPhase;
use serde_json::Value;

use crate::core::action::Action;
use crate::core::conditions::{self, BOOTED};
use crate::core::draft::Draft;
use crate::core::observe::{
    DELETED_COUNTS_AS_FAILED_US, PodState, deletion_age_us, end_of, pod_state,
};
use crate::core::problem::{Problem, peer_text};
use crate::core::view::{PodView, RunnerView};
use crate::core::vm_event::VmEvent;

/// A runner that has not responded for this long is reported.
pub const SILENCE_REPORTED: Span = Span::from_secs(5);

/// How a VM came to its end.
pub(super) enum End {
    Succeeded(String),
    Failed(Problem),
}

impl Draft<'_> {
    /// Running and Scaling.
    pub(in crate::core) fn alive(&mut self) {
        match self.input.pod {
            PodView::Unknown => self.read_pod(),
            PodView::Absent => {
                let pod = self.status.pod_name.clone();
                self.finish(End::Failed(Problem::PodGone { pod }));
            }
            PodView::Present(pod) => {
                if let Some(end) = self.end(pod) {
                    return self.finish(end);
                }
                self.located(pod);
                self.sync_and_size(pod);
                self.guest_answers(pod);
                match self.input.runner {
                    // The target of a migration reports its size once the guest runs there.
                    RunnerView::Known(state) if state.phase == RunnerPhase::Receiving => {}
                    RunnerView::Known(state) => self.sized(state),
                    RunnerView::Silent { since, error } => self.silent(pod, since, error),
                    RunnerView::NoLink => self.elsewhere(pod),
                }
            }
        }
    }

    /// How the VM ended, by the first report of its pod or its runner.
    pub(super) fn end(&mut self, pod: &Pod) -> Option<End> {
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
            (Some(exit), _) if exit.success => Some(End::Succeeded(exit_text(exit))),
            (Some(exit), _) => {
                let reason = exit_text(exit);
                Some(End::Failed(Problem::PodFailed {
                    pod: name(),
                    reason,
                }))
            }
            (None, PodState::Succeeded) => Some(End::Succeeded(peer_text(&end_of(pod)))),
            (None, PodState::Failed) => {
                let reason = peer_text(&end_of(pod));
                Some(End::Failed(Problem::PodFailed {
                    pod: name(),
                    reason,
                }))
            }
            (None, PodState::Pending | PodState::Running) => None,
        }
    }

    pub(super) fn finish(&mut self, end: End) {
        match end {
            End::Succeeded(reason) => {
                self.status.phase = VmPhase::Succeeded;
                self.available(false, &reason);
                self.events.push(VmEvent::Succeeded { reason });
            }
            End::Failed(problem) => {
                self.status.phase = VmPhase::Failed;
                self.available(false, &problem.to_string());
                self.degraded(&problem.to_string());
                self.events.push(VmEvent::Failed { problem });
            }
        }
    }

    pub(super) fn read_pod(&mut self) {
        self.actions.push(Action::ReadPod {
            name: self.status.pod_name.clone(),
        });
    }

    pub(super) fn located(&mut self, pod: &Pod) {
        self.status.pod_ip.clone_from(&pod.status.pod_ip);
        self.status.node.clone_from(&pod.spec.node_name);
    }

    /// Reports a guest that hangs, whose disk is full, or whose programs do not follow its size.
    /// The controller leaves it alone, because it may still work.
    pub(super) fn guest_answers(&mut self, pod: &Pod) {
        let RunnerView::Known(state) = self.input.runner else {
            return;
        };
        // Only sets of VMs wait for it, so no other VM has a write more.
        if state.boot_id.is_some() && self.vm.metadata.labels.contains_key(LABEL_SET) {
            let (list, wall) = (&mut self.status.conditions, self.input.at.wall);
            conditions::set(list, BOOTED, "True", "the guest has responded", wall);
        }
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
        for file in &state.programs {
            self.problems
                .push(Problem::ProgramFile { file: file.clone() });
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
