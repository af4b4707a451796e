//! The end of a migration, and the tidying up after it.
//!
//! An action on a guest comes before the write about it, so each write is true. A controller that
//! starts at any point finds in the objects and the runners the actions that are left.

use protocol::migration::IncomingStage;
use protocol::vm::{VirtualMachineMigration, VmPhase};

use super::action::Action;
use super::objects::{Part, is_of, is_reachable};
use super::plan::{Draft, PodView, is_over};
use super::reason::{Reason, Wait};
use super::view::{FAILED, KnownRunner, SUCCEEDED};
use crate::core::vm_event::VmEvent;

/// Status of a QEMU that has sent everything.
const COMPLETED: &str = "completed";

impl Draft<'_> {
    /// Records the failure. [`Self::tidy_failure`] follows.
    pub(super) fn fail(&mut self, reason: &Reason) {
        self.keep_figures(true);
        self.status.phase = FAILED.into();
        self.available("False", &reason.to_string());
        self.degraded(&reason.to_string());
        self.events.push(VmEvent::MigrationFailed {
            reason: reason.clone(),
        });
    }

    /// The guest is the target's: the target runs it, then the rest follows.
    pub(super) fn forward(&mut self) {
        let (source, target) = (self.source(), self.target());
        let PodView::Present(target) = target else {
            return match target {
                PodView::Unknown => {
                    let name = self.stored.target_pod_name.clone();
                    self.read_pod(&name);
                }
                _ => self.lost(String::new()),
            };
        };
        if let Some(why) = self.end(target) {
            return self.lost(why);
        }
        self.keep_figures(true);
        let begun = self
            .incoming()
            .is_some_and(|report| report.stage == IncomingStage::Begun);
        if !begun {
            let pod = target.metadata.name.clone();
            if self.runner(&pod).is_some() {
                let id = self.id().to_owned();
                self.actions.push(Action::Begin { pod, id });
            } else {
                self.wait(&Wait::Runner {
                    pod,
                    why: "the guest waits there to be let run".into(),
                });
            }
            return;
        }
        if !self.own(target, Part::Settled) {
            return;
        }
        match source {
            PodView::Unknown => {
                let name = self.stored.source_pod_name.clone();
                return self.read_pod(&name);
            }
            PodView::Absent => {}
            PodView::Present(pod) => {
                if !self.own(pod, Part::Left) || !self.left(&pod.metadata.name) {
                    return;
                }
            }
        }
        self.succeed();
    }

    /// Whether the source has nothing more to send. The source is ordered to end then.
    fn left(&mut self, pod: &str) -> bool {
        let ended = match self.source() {
            PodView::Present(pod) => self.end(pod).is_some(),
            _ => true,
        };
        if ended {
            return true;
        }
        let completed = self.outgoing().is_some_and(|report| {
            let progress = report.progress.as_ref();
            progress.is_some_and(|progress| progress.status == COMPLETED)
        });
        if !completed {
            // After a post-copy the guest's memory may still be here.
            return false;
        }
        let (pod, id) = (pod.to_owned(), self.id().to_owned());
        self.actions.push(Action::Quit { pod, id });
        false
    }

    fn lost(&mut self, why: String) {
        if self.stored.phase != FAILED {
            let pod = self.stored.target_pod_name.clone();
            return self.fail(&Reason::LostAfterHandover { pod, why });
        }
        // The VM's own pod reports the loss. The source holds no guest that may run.
        if let PodView::Present(pod) = self.source() {
            self.delete_pod(pod);
        }
    }

    fn succeed(&mut self) {
        self.status.phase = SUCCEEDED.into();
        let info = self.status.info.clone().unwrap_or_default();
        let figure = |name: &str| info[name].as_u64();
        let pause_ms = self.pause_ms();
        let mut text = format!("moved to pod {}", self.stored.target_pod_name);
        if let (Some(total), Some(down)) = (figure("totalTimeMs"), figure("downtimeMs")) {
            text.push_str(&format!(
                ": {total} ms in all, {down} ms of downtime by QEMU's account"
            ));
        }
        if let Some(pause) = pause_ms {
            text.push_str(&format!(
                ", {pause} ms between the guest's stop and its going on"
            ));
        }
        if info["encrypted"] == true {
            text.push_str(", encrypted");
        }
        self.available("True", &text);
        self.events.push(VmEvent::Migrated {
            from: self.stored.source_pod_name.clone(),
            to: self.stored.target_pod_name.clone(),
            total_ms: figure("totalTimeMs"),
            downtime_ms: figure("downtimeMs"),
            pause_ms,
        });
    }

    /// Milliseconds the guest did not run, by the stamps of both QEMUs; they are of one clock only
    /// on one machine.
    fn pause_ms(&self) -> Option<u64> {
        let same_node = self.status.source_node == self.status.target_node;
        let stopped = self.outgoing()?.stopped_unix_us.filter(|_| same_node)?;
        let began = self.incoming()?.began_unix_us?;
        u64::try_from(began.checked_sub(stopped)? / 1000).ok()
    }

    /// Succeeded: away with the pod that was left.
    pub(super) fn tidy_success(&mut self) {
        if self.stored.source_pod_name.is_empty() {
            return;
        }
        match self.source() {
            PodView::Unknown => {
                let name = self.stored.source_pod_name.clone();
                self.read_pod(&name);
            }
            PodView::Present(pod) if is_of(pod, &self.migration.metadata) => self.delete_pod(pod),
            PodView::Present(_) | PodView::Absent => {
                self.status.source_pod_name.clear();
                self.status.source_pod_ip.clear();
            }
        }
    }

    /// Failed: the VM is given back, the guest stays where it is, and nothing of the target stays.
    pub(super) fn tidy_failure(&mut self) {
        if self.holds_vm() {
            // From here on the guest cannot become the target's any more: this write and that one
            // exclude each other.
            return self.write_vm(VmPhase::Running, None);
        }
        let target = self.target();
        if let PodView::Present(pod) = target
            && is_of(pod, &self.migration.metadata)
        {
            self.delete_pod(pod);
        }
        self.give_back();
    }

    /// Whether the VM is still claimed by this migration, which has failed. The next one claims the
    /// VM only after this one has released it.
    fn holds_vm(&self) -> bool {
        let taken = matches!(self.vm_phase(), VmPhase::PreMigrating | VmPhase::Migrating);
        if let Some(is_ours) = self.holds_claim() {
            return taken && is_ours;
        }
        // An older controller has claimed the VM without writing for which migration.
        let source = &self.stored.source_pod_name;
        let ours = self.vm_status().is_some_and(|vm| vm.pod_name == *source);
        let has_begun = |other: &VirtualMachineMigration| {
            let status = other.status.as_ref();
            status.is_some_and(|status| !status.source_pod_name.is_empty())
        };
        let mut others = self.input.migrations.values();
        let is_next = |other: &&VirtualMachineMigration| {
            other.metadata.uid != self.id() && !is_over(other) && has_begun(other)
        };
        taken && ours && !source.is_empty() && !others.any(|other| is_next(&other))
    }

    /// Of one that is over: whether nothing of it is left that the next one could meet.
    pub(super) fn is_settled(&self) -> bool {
        let has_failed = self.stored.phase == FAILED;
        let parts = [self.source(), self.target()];
        let is_part = |part: &PodView<'_>| matches!(part, PodView::Present(pod) if is_of(pod, &self.migration.metadata));
        !(has_failed && (self.holds_vm() || parts.iter().any(is_part)))
    }

    /// The source keeps its guest, and the VM alone owns the pod.
    fn give_back(&mut self) {
        let PodView::Present(pod) = self.source() else {
            return;
        };
        // Pods of a VM that is gone go with it.
        if self.vm.is_none() || !is_of(pod, &self.migration.metadata) {
            return;
        }
        let name = pod.metadata.name.clone();
        if self.vm_status().is_none_or(|vm| vm.pod_name != name) {
            // The guest was handed over, was lost there and started again elsewhere. The stopped
            // one here never runs again.
            return self.delete_pod(pod);
        }
        if self.end(pod).is_none() {
            match self.input.runners.get(&name) {
                Some(KnownRunner::Known { .. }) if self.outgoing().is_some() => {
                    let id = self.id().to_owned();
                    return self.actions.push(Action::Recall { pod: name, id });
                }
                Some(KnownRunner::Known { .. }) => {}
                // It may hold the guest: it is waited for.
                Some(KnownRunner::Silent { .. }) => return,
                None if is_reachable(pod, self.vm, self.input.settings) => return,
                None => {}
            }
        }
        self.own(pod, Part::Settled);
    }

    /// Deletion was requested before the handover, or after the end. Returns whether everything is
    /// tidied up.
    pub(super) fn cancelled(&mut self) -> bool {
        let source = self.stored.source_pod_name.clone();
        if self.stored.phase == SUCCEEDED {
            self.tidy_success();
            return source.is_empty();
        }
        if source.is_empty() {
            return true;
        }
        if self.vm.is_some() && matches!(self.source(), PodView::Unknown) {
            self.read_pod(&source);
            return false;
        }
        self.tidy_failure();
        if self.actions.is_empty() && self.is_held() {
            self.available(
                "False",
                "cancelled; the source's runner has not resumed the guest",
            );
        }
        self.actions.is_empty() && !self.is_held()
    }

    /// Whether the source is still marked as ours.
    fn is_held(&self) -> bool {
        let pod = self.source();
        self.vm.is_some()
            && matches!(pod, PodView::Present(pod) if is_of(pod, &self.migration.metadata))
    }
}
