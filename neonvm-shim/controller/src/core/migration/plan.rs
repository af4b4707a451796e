//! One look at a VM's migrations: from what is stored and what pods and runners say to what is to
//! be done now. Pure: the same input gives the same plan, and a plan whose actions have all been
//! carried out plans nothing more.
//!
//! The migrations of a VM take turns; here is decided whose it is. What one of them does is in
//! `steps`, how one ends in `ends`.

use std::collections::{BTreeMap, BTreeSet};

use protocol::migration::{IncomingReport, OutgoingReport};
use protocol::object::Pod;
use protocol::runner::RunnerState;
use protocol::time::{Timestamp, WallTime};
use protocol::vm::{MigrationStatus, VirtualMachine, VirtualMachineMigration, VmPhase, VmStatus};
use serde_json::{Value, json};

use super::action::{Action, Kind};
use super::objects;
use super::reason::Wait;
use crate::core::action::merge_difference;
use crate::core::conditions;
use crate::core::metadata;
use crate::core::missing_pods::MissingPods;
use crate::core::moment::Moment;
use crate::core::observe::{PodState, end_of, pod_state};
use crate::core::problem::peer_text;
use crate::core::settings::Settings;
use crate::core::vm_event::VmEvent;

/// Phases of a migration (docs/compatibility/neonvm.md §1.7); the first one is no word at all.
pub const PENDING: &str = "Pending";
/// The guest is on its way.
pub const RUNNING: &str = "Running";
/// Phase of a migration whose guest has moved.
pub const SUCCEEDED: &str = "Succeeded";
/// Phase of a migration whose guest has not moved.
pub const FAILED: &str = "Failed";

/// What is known of the VM.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum VmView<'a> {
    /// Nothing: it must be read.
    Unknown,
    /// The VM does not exist.
    Absent,
    /// The VM as last read.
    Present(&'a VirtualMachine),
}

/// What is known of a runner.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[serde(tag = "link", rename_all = "snake_case")]
pub enum KnownRunner {
    /// The runner does not answer.
    Silent {
        /// Text of the last error on the link to the runner.
        error: String,
    },
    /// The runner reported a state, and the link has not failed since.
    Known {
        /// Newest state that the runner reported.
        state: Box<RunnerState>,
    },
}

/// All that a plan rests on.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// Settings of the controller.
    pub settings: &'a Settings,
    /// The VM as the API server stores it.
    pub vm: VmView<'a>,
    /// Every known migration of the VM, by name.
    pub migrations: &'a BTreeMap<String, VirtualMachineMigration>,
    /// Every known pod of the VM, by name.
    pub pods: &'a BTreeMap<String, Pod>,
    /// Pods that the API server said do not exist.
    pub absent: &'a BTreeSet<String>,
    /// Pods of which it is only known that the watch does not show them.
    pub missing_pods: &'a MissingPods,
    /// Newest report of each runner, by pod name.
    pub runners: &'a BTreeMap<String, KnownRunner>,
    /// Actions that keep failing, and the peer's words.
    pub failures: &'a BTreeMap<Kind, String>,
    /// Five characters for the next target pod's name.
    pub suffix: &'a str,
    /// Time of this plan, monotonic and calendar.
    pub at: Moment,
}

/// Status to write and actions to carry out.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// What may be done now, the most urgent first.
    pub actions: Vec<Action>,
    /// When to plan again though nothing happens.
    pub look_again: Option<Timestamp>,
    /// The migration whose turn it is. Of the others nothing is written but what names them.
    pub turn: Option<String>,
}

/// Plans all migrations of a VM, in the order in which they get their turn.
#[must_use]
pub fn plan(input: &Input<'_>) -> Plan {
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

/// Whether it has come to an end, all but what is to be tidied up.
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
    pub(super) input: &'a Input<'a>,
    pub(super) migration: &'a VirtualMachineMigration,
    pub(super) vm: Option<&'a VirtualMachine>,
    pub(super) stored: MigrationStatus,
    pub(super) status: MigrationStatus,
    pub(super) actions: Vec<Action>,
    pub(super) look_again: Option<Timestamp>,
    pub(super) notes: Vec<VmEvent>,
}

/// What is known of a pod, by name.
pub(super) enum PodView<'a> {
    Unknown,
    Absent,
    Present(&'a Pod),
}

impl<'a> Draft<'a> {
    fn new(input: &'a Input<'a>, migration: &'a VirtualMachineMigration) -> Self {
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
            notes: Vec::new(),
        }
    }

    fn look(&mut self, before: Option<&str>) {
        if self.input.vm == VmView::Unknown {
            return self.actions.push(Action::ReadVm);
        }
        let deleting = self.migration.metadata.deletion_timestamp.is_some();
        if deleting && objects::release(&self.migration.metadata).is_none() {
            // Somebody else's finalizer.
            return;
        }
        if !deleting && let Some(patch) = objects::adopt(self.migration, self.vm) {
            let name = self.name();
            return self.actions.push(Action::PatchMigration { name, patch });
        }
        match self.stored.phase.as_str() {
            // Handed over is handed over, whatever is asked now.
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

    /// Meanwhile nobody else sees that the watch finds the pods it moves between.
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

    /// Whether the VM's object says that the guest is the target's. This is the point of no return,
    /// and the only one.
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

    /// Whether a VM that is taken is taken for this one, as far as the VM says; `None` if it does
    /// not.
    pub(super) fn holds_claim(&self) -> Option<bool> {
        let claim = self.vm_status()?.migration.as_ref()?;
        Some(claim.uid == self.id())
    }

    pub(super) fn name(&self) -> String {
        self.migration.metadata.name.clone()
    }

    /// What its orders are known by.
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

    /// What a pod's runner says, if it answers.
    pub(super) fn runner(&self, pod: &str) -> Option<&'a RunnerState> {
        match self.input.runners.get(pod) {
            Some(KnownRunner::Known { state }) => Some(state),
            _ => None,
        }
    }

    /// What the source says of this migration.
    pub(super) fn outgoing(&self) -> Option<&'a OutgoingReport> {
        let state = self.runner(&self.stored.source_pod_name)?;
        let report = state.outgoing.as_ref()?;
        (report.id == self.id()).then_some(report)
    }

    /// What the target says of it, or of its waiting for any.
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
                // There is no guest in it that could be asked to power off.
                grace_s: 0,
            });
        }
    }

    /// Says what it waits for.
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

    /// When it was begun: when its VM was taken for it.
    pub(super) fn begun_at(&self) -> Option<WallTime> {
        let mut all = self.stored.conditions.iter();
        all.find(|condition| condition.kind == conditions::AVAILABLE && condition.status == "False")
            .and_then(|condition| condition.last_transition_time)
    }

    /// What every look ends with: the write of what changed.
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
                notes: std::mem::take(&mut self.notes),
                patch,
            });
        }
    }
}
