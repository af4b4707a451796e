//! A migration before its first phase: it waits for its turn and for its VM to be at rest.

use protocol::claims::claimed_disks;
use protocol::time::{Span, WallTime};
use protocol::vm::VmPhase;

use super::plan::Draft;
use super::reason::{Reason, Wait};
use super::view::PENDING;

impl Draft<'_> {
    /// Not begun: it waits for its turn and for its VM to be at rest.
    pub(super) fn fresh(&mut self, before: Option<&str>) {
        if self.status.conditions.is_empty() {
            self.available("Unknown", "Starting reconciliation");
        }
        let Some(vm) = self.vm else {
            let vm = self.migration.spec.vm_name.clone();
            return self.fail(&Reason::NoVm { vm });
        };
        if vm.metadata.deletion_timestamp.is_some() {
            return self.fail(&Reason::VmDeleted);
        }
        let disks = claimed_disks(&vm.spec);
        if !disks.is_empty() {
            let claims = disks.into_iter().map(|disk| disk.claim).collect();
            return self.fail(&Reason::DisksOnClaims { claims });
        }
        if self.status.target_pod_name.is_empty() {
            self.status.target_pod_name = format!("{}-{}", vm.metadata.name, self.input.suffix);
        }
        if let Some(behind) = before {
            let behind = behind.to_owned();
            return self.waits_for_vm(&Wait::Turn { behind });
        }
        let (phase, status) = (self.vm_phase(), self.vm_status().cloned());
        let status = status.unwrap_or_default();
        let is_named = !status.pod_name.is_empty()
            && self.stored.source_pod_name == status.pod_name
            && !self.stored.target_pod_name.is_empty();
        match phase {
            VmPhase::Running if is_named => self.write_vm(VmPhase::PreMigrating, None),
            VmPhase::PreMigrating if is_named && self.holds_claim() != Some(false) => {
                self.status.phase = PENDING.into();
                let pod = self.status.target_pod_name.clone();
                let why = String::new();
                self.wait(&Wait::Target { pod, why });
            }
            VmPhase::Running => {
                self.status.source_pod_name = status.pod_name;
                self.status.source_pod_ip = status.pod_ip;
                self.status.source_node = status.node;
            }
            phase => self.waits_for_vm(&Wait::VmAtRest { phase }),
        }
    }

    /// Waits, as long as it may take altogether.
    fn waits_for_vm(&mut self, wait: &Wait) {
        self.available("Unknown", &wait.to_string());
        let born = self.migration.metadata.creation_timestamp;
        if let Some(reason) = born.and_then(|born| self.too_late(born)) {
            self.fail(&reason);
        }
    }

    /// The reason to give up if the timeout has passed. Otherwise the plan wakes at the timeout.
    fn too_late(&mut self, since: WallTime) -> Option<Reason> {
        let after_s = u32::try_from(self.migration.spec.completion_timeout).ok()?;
        if after_s == 0 {
            return None;
        }
        let limit = i64::from(after_s).saturating_mul(1_000_000);
        let age = self.input.at.wall.0.saturating_sub(since.0);
        if age >= limit {
            return Some(Reason::TimedOut { after_s });
        }
        let left = u64::try_from(limit.saturating_sub(age)).unwrap_or(0);
        self.wake_at(self.input.at.now + Span(left.saturating_add(1)));
        None
    }

    /// Why the migration cannot go on, in any phase.
    pub(super) fn hopeless(&mut self) -> Option<Reason> {
        let Some(vm) = self.vm else {
            let vm = self.migration.spec.vm_name.clone();
            return Some(Reason::NoVm { vm });
        };
        if vm.metadata.deletion_timestamp.is_some() {
            return Some(Reason::VmDeleted);
        }
        let status = vm.status.clone().unwrap_or_default();
        let taken = matches!(status.phase, VmPhase::PreMigrating | VmPhase::Migrating)
            && self.holds_claim() != Some(false);
        if !taken || status.pod_name != self.stored.source_pod_name {
            return Some(Reason::VmChanged {
                phase: status.phase,
            });
        }
        self.begun_at().and_then(|since| self.too_late(since))
    }
}
