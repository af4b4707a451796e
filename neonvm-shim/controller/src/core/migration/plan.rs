//! One plan for a VM's migrations: from the objects and the reports of the runners to the actions
//! that may be carried out now. Pure: the same input gives the same plan, and a plan whose actions
//! have all been carried out plans nothing more.
//!
//! ```text
//! ""  ──► names ──► VM PreMigrating ──► Pending: target pod ──► source holds still
//!     ──► target listens ──► VM Migrating ──► Running: source sends
//!     ──► source stopped for good and target has all of it
//!     ──► VM's pod is the target  (the point of no return)
//!     ──► target runs ──► owners ──► source ends ──► Succeeded
//! ```
//!
//! The migrations of a VM take turns, and this module decides whose turn it is. The steps of one
//! migration are in `begin`, `pending` and `running`, its end is in `ends`.

use std::collections::BTreeMap;

use protocol::migration::{IncomingReport, OutgoingReport};
use protocol::object::Pod;
use protocol::runner::RunnerState;
use protocol::time::{Timestamp, WallTime};
use protocol::vm::{MigrationStatus, VirtualMachine, VirtualMachineMigration, VmPhase, VmStatus};
use serde_json::{Value, json};

use super::action::Action;
use super::kind::Kind;
use super::objects;
use super::reason::Wait;
use super::view::{FAILED, KnownRunner, PENDING, PlanInput, RUNNING, SUCCEEDED, VmView};
use crate::core::action::merge_difference;
use crate::core::conditions;
use crate::core::metadata;
use crate::core::observe::{PodState, end_of, pod_state};
use crate::core::problem::peer_text;
use crate::core::vm_event::VmEvent;

/// Status to write and actions to carry out.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// Actions that may be carried out now, the most urgent first.
    pub actions: Vec<Action>,
    /// When to plan again though nothing happens.
    pub look_again: Option<Timestamp>,
    /// The migration whose turn it is. The others only write that they wait for it.
    pub turn: Option<String>,
}

/// Plans all migrations of a VM, in the order in which they get their turn.
#[must_use]
pub fn plan(input: &PlanInput<'_>) -> Plan {
    let mut plan = Plan::default();
    let mut before: Option<&str> = None;
    for migration in in_turn(input.migrations) {
        let mut draft = Draft::new(input, migration);
        draft.look(before);
        plan.actions.append(&mut draft.actions);
        plan.look_again = match (plan.look_again, draft.look_again) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        if before.is_none() && !(is_over(migration) && draft.is_settled()) {
            before = Some(&migration.metadata.name);
        }
    }
    plan.turn = before.map(str::to_owned);
    plan
}

/// Whether the migration has ended. Tidying up may be left.
pub(super) fn is_over(migration: &VirtualMachineMigration) -> bool {
    let status = migration.status.as_ref();
    status.is_some_and(|status| matches!(status.phase.as_str(), SUCCEEDED | FAILED))
}

/// Migrations in the order in which they get their turn: those that have begun, then by age.
fn in_turn(
    migrations: &BTreeMap<String, VirtualMachineMigration>,
) -> Vec<&VirtualMachineMigration> {
    let mut all: Vec<&VirtualMachineMigration> = migrations.values().collect();
    all.sort_by_key(|migration| {
        let status = migration.status.as_ref();
        let begun = status.is_some_and(|status| !status.source_pod_name.is_empty());
        (
            !begun,
            migration.metadata.creation_timestamp,
            migration.metadata.name.clone(),
        )
    });
    all
}

/// One migration's plan in the making.
pub(super) struct Draft<'a> {
    pub(super) input: &'a PlanInput<'a>,
    pub(super) migration: &'a VirtualMachineMigration,
    pub(super) vm: Option<&'a VirtualMachine>,
    pub(super) stored: MigrationStatus,
    pub(super) status: MigrationStatus,
    pub(super) actions: Vec<Action>,
    pub(super) look_again: Option<Timestamp>,
    pub(super) events: Vec<VmEvent>,
}

/// A pod by its name, as far as known.
pub(super) enum PodView<'a> {
    Unknown,
    Absent,
    Present(&'a Pod),
}

impl<'a> Draft<'a> {
    fn new(input: &'a PlanInput<'a>, migration: &'a VirtualMachineMigration) -> Self {
        let stored = migration.status.clone().unwrap_or_default();
        let vm = match input.vm {
            VmView::Present(vm) => Some(vm),
            VmView::Unknown | VmView::Absent => None,
        };
        Self {
            input,
            migration,
            vm,
            status: stored.clone(),
            stored,
            actions: Vec::new(),
            look_again: None,
            events: Vec::new(),
        }
    }

    fn look(&mut self, before: Option<&str>) {
        if self.input.vm == VmView::Unknown {
            return self.actions.push(Action::ReadVm);
        }
        let deleting = self.migration.metadata.deletion_timestamp.is_some();
        if deleting && objects::release(&self.migration.metadata).is_none() {
            // The finalizer belongs to another controller.
            return;
        }
        if !deleting && let Some(patch) = objects::adopt(self.migration, self.vm) {
            let name = self.name();
            return self.actions.push(Action::PatchMigration { name, patch });
        }
        match self.stored.phase.as_str() {
            // After the handover there is no way back.
            _ if self.committed() => self.forward(),
            _ if deleting => {
                if self.cancelled() {
                    return self.release();
                }
            }
            SUCCEEDED => self.tidy_success(),
            FAILED => self.tidy_failure(),
            PENDING => self.pending(),
            RUNNING => self.running(),
            _ => self.fresh(before),
        }
        self.mark();
        self.conclude();
    }

    /// Restores the label by which the watch finds source and target. The VM's core leaves both
    /// alone meanwhile.
    fn mark(&mut self) {
        let is_under_way = matches!(self.stored.phase.as_str(), PENDING | RUNNING);
        let Some(vm) = self.vm.filter(|_| is_under_way) else {
            return;
        };
        let edits = |action: &Action| action.kind() == Kind::PatchPod;
        if self.actions.iter().any(edits) {
            return;
        }
        for pod in [self.source(), self.target()] {
            let PodView::Present(pod) = pod else { continue };
            if objects::is_of(pod, &self.migration.metadata) {
                let ops = metadata::mark(&vm.metadata.name, &pod.metadata);
                let name = pod.metadata.name.clone();
                let edit = (!ops.is_empty()).then_some(Action::PatchPod { name, ops });
                self.actions.extend(edit);
            }
        }
    }

    fn release(&mut self) {
        if let Some(patch) = objects::release(&self.migration.metadata) {
            let name = self.name();
            self.actions.push(Action::PatchMigration { name, patch });
        }
    }

    /// Whether the VM's status gives the guest to the target. This write is the only point of no
    /// return.
    pub(super) fn committed(&self) -> bool {
        let target = &self.stored.target_pod_name;
        let left = self.stored.phase == SUCCEEDED && self.stored.source_pod_name.is_empty();
        !left
            && !target.is_empty()
            && matches!(self.stored.phase.as_str(), PENDING | RUNNING | FAILED)
            && self.vm_status().is_some_and(|vm| vm.pod_name == *target)
    }

    pub(super) fn vm_status(&self) -> Option<&'a VmStatus> {
        self.vm.and_then(|vm| vm.status.as_ref())
    }

    pub(super) fn vm_phase(&self) -> VmPhase {
        self.vm_status().map_or(VmPhase::New, |status| status.phase)
    }

    /// Whether this migration holds the claim on the VM; `None` if the VM names no claim.
    pub(super) fn holds_claim(&self) -> Option<bool> {
        let claim = self.vm_status()?.migration.as_ref()?;
        Some(claim.uid == self.id())
    }

    pub(super) fn name(&self) -> String {
        self.migration.metadata.name.clone()
    }

    /// Id of the migration in its orders.
    pub(super) fn id(&self) -> &'a str {
        &self.migration.metadata.uid
    }

    pub(super) fn pod(&self, name: &str) -> PodView<'a> {
        match self.input.pods.get(name) {
            Some(pod) if !self.input.missing_pods.has(name) => PodView::Present(pod),
            None if self.input.absent.contains(name) => PodView::Absent,
            _ => PodView::Unknown,
        }
    }

    pub(super) fn source(&self) -> PodView<'a> {
        self.pod(&self.stored.source_pod_name)
    }

    pub(super) fn target(&self) -> PodView<'a> {
        self.pod(&self.stored.target_pod_name)
    }

    pub(super) fn read_pod(&mut self, name: &str) {
        self.actions.push(Action::ReadPod { name: name.into() });
    }

    /// Newest state of the runner of a pod, if it responds.
    pub(super) fn runner(&self, pod: &str) -> Option<&'a RunnerState> {
        match self.input.runners.get(pod) {
            Some(KnownRunner::Known { state }) => Some(state),
            _ => None,
        }
    }

    /// Report of the source on this migration.
    pub(super) fn outgoing(&self) -> Option<&'a OutgoingReport> {
        let state = self.runner(&self.stored.source_pod_name)?;
        let report = state.outgoing.as_ref()?;
        (report.id == self.id()).then_some(report)
    }

    /// Report of the target on this migration, or that it waits for one.
    pub(super) fn incoming(&self) -> Option<&'a IncomingReport> {
        let state = self.runner(&self.stored.target_pod_name)?;
        let report = state.incoming.as_ref()?;
        (report.id.is_empty() || report.id == self.id()).then_some(report)
    }

    /// Why a pod counts as ended, by itself or its runner; `None` while it does not.
    pub(super) fn end(&self, pod: &Pod) -> Option<String> {
        let exit = self
            .runner(&pod.metadata.name)
            .and_then(|state| state.exit.as_ref());
        if let Some(exit) = exit {
            let word = serde_json::to_value(exit.reason).unwrap_or_default();
            let word = word.as_str().unwrap_or_default().replace('_', " ");
            return Some(match peer_text(exit.message.trim()) {
                text if text.is_empty() => word,
                text => format!("{word}: {text}"),
            });
        }
        match pod_state(pod, self.input.at.wall) {
            PodState::Succeeded | PodState::Failed => Some(peer_text(&end_of(pod))),
            PodState::Pending | PodState::Running => None,
        }
    }

    pub(super) fn wake_at(&mut self, at: Timestamp) {
        self.look_again = Some(self.look_again.map_or(at, |earlier| earlier.min(at)));
    }

    /// Writes the VM's phase, and where it runs if that changes.
    pub(super) fn write_vm(&mut self, phase: VmPhase, pod: Option<&Pod>) {
        let Some(vm) = self.vm else { return };
        let is_taken = matches!(phase, VmPhase::PreMigrating | VmPhase::Migrating);
        let claim = is_taken.then(|| json!({"name": self.name(), "uid": self.id()}));
        let mut status = json!({"phase": phase, "migration": claim});
        if let Some(pod) = pod {
            status["podName"] = json!(pod.metadata.name);
            status["podIP"] = json!(pod.status.pod_ip);
            status["node"] = json!(pod.spec.node_name);
        }
        self.actions.push(Action::WriteVm {
            patch: json!({
                "metadata": {"resourceVersion": vm.metadata.resource_version},
                "status": status,
            }),
        });
    }

    pub(super) fn own(&mut self, pod: &Pod, part: objects::Part) -> bool {
        let Some(vm) = self.vm else { return true };
        let ops = objects::own(pod, part, vm, &self.migration.metadata);
        let is_so = ops.is_empty();
        if !is_so {
            let name = pod.metadata.name.clone();
            self.actions.push(Action::PatchPod { name, ops });
        }
        is_so
    }

    pub(super) fn delete_pod(&mut self, pod: &Pod) {
        if pod.metadata.deletion_timestamp.is_none() {
            self.actions.push(Action::DeletePod {
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
                // The pod holds no guest that could power off.
                grace_s: 0,
            });
        }
    }

    /// Writes what the migration waits for.
    pub(super) fn wait(&mut self, wait: &Wait) {
        self.available("False", &wait.to_string());
    }

    pub(super) fn available(&mut self, status: &str, message: &str) {
        let wall = self.input.at.wall;
        conditions::set(
            &mut self.status.conditions,
            conditions::AVAILABLE,
            status,
            message,
            wall,
        );
    }

    pub(super) fn degraded(&mut self, message: &str) {
        let wall = self.input.at.wall;
        conditions::set(
            &mut self.status.conditions,
            conditions::DEGRADED,
            "True",
            message,
            wall,
        );
    }

    /// When the migration claimed its VM.
    pub(super) fn begun_at(&self) -> Option<WallTime> {
        let mut all = self.stored.conditions.iter();
        all.find(|condition| condition.kind == conditions::AVAILABLE && condition.status == "False")
            .and_then(|condition| condition.last_transition_time)
    }

    /// Last step of every plan: the write of a changed status.
    fn conclude(&mut self) {
        let refused = self.input.failures.iter().next();
        if let Some((action, why)) = refused {
            let (action, why) = (*action, why.clone());
            let wait = Wait::Refused { action, why };
            self.degraded(&wait.to_string());
        } else if self.status.phase != FAILED {
            let wall = self.input.at.wall;
            conditions::clear(&mut self.status.conditions, conditions::DEGRADED, wall);
        }
        let json = |status: &MigrationStatus| {
            serde_json::to_value(status).expect("a status always encodes")
        };
        let change: Option<Value> = merge_difference(&json(&self.stored), &json(&self.status));
        if let Some(change) = change {
            let patch = json!({
                "metadata": {"resourceVersion": self.migration.metadata.resource_version},
                "status": change,
            });
            self.actions.push(Action::WriteMigration {
                name: self.name(),
                events: std::mem::take(&mut self.events),
                patch,
            });
        }
    }
}
