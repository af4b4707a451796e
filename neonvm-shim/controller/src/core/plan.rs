//! One look at a VM: from what is stored, what its pod and runner say and what went wrong lately,
//! to the status it should have and the things to do now. Pure: the same input gives the same plan,
//! and a plan whose actions have all been carried out plans nothing more.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use protocol::annotations::FINALIZER;
use protocol::object::Pod;
use protocol::runner::RunnerState;
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;
use protocol::vm::{VirtualMachine, VmPhase, VmStatus};
use serde_json::{Value, json};

use super::action::{Action, Kind, VmEdit, merge_difference};
use super::ahead::HeadStart;
use super::certificate::CertificateState;
use super::conditions;
use super::metadata::PatchOp;
use super::moment::Moment;
use super::overlay::Holder;
use super::problem::Problem;
use super::settings::Settings;
use super::vm_event::VmEvent;

/// Past its grace period by this much, a pod no longer holds up the deletion of its VM.
pub const STUCK_POD_PATIENCE: Span = Span::from_secs(120);

/// What is known of the pod `status.podName`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PodView<'a> {
    /// Nothing: it must be read.
    Unknown,
    /// The API server said that it does not exist.
    Absent,
    /// The pod as last seen.
    Present(&'a Pod),
}

/// What is known of its runner.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RunnerView<'a> {
    /// No link is held: no pod, not bound, or on another machine.
    NoLink,
    /// The connection to the runner is down.
    Silent {
        /// When the link was first found down. It stays the same over all errors that follow.
        since: Timestamp,
        /// Text of the last error on the link.
        error: &'a str,
    },
    /// State that the runner reported last; the link has not failed since.
    Known(&'a RunnerState),
}

/// All that a plan rests on.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// Settings of the controller.
    pub settings: &'a Settings,
    /// The VM as the API server stores it.
    pub vm: &'a VirtualMachine,
    /// View of the pod that `status.podName` names.
    pub pod: PodView<'a>,
    /// Every known pod of the VM, by name.
    pub pods: &'a BTreeMap<String, Pod>,
    /// The runner of the pod `status.podName`.
    pub runner: RunnerView<'a>,
    /// Last failure of each kind of action that keeps failing.
    pub failures: &'a BTreeMap<Kind, Problem>,
    /// Whether the SSH secret is known to exist.
    pub ssh_secret_ready: bool,
    /// Whether the token for the VM's runners is known to exist.
    pub runner_secret_ready: bool,
    /// The address of the overlay that the VM is known to hold, and its mask.
    pub address: Option<(Ipv4Addr, Ipv4Addr)>,
    /// Whether it is known to hold none any more.
    pub address_released: bool,
    /// What is known of the guest's certificate.
    pub certificate: &'a CertificateState,
    /// When to ask whether the migration exists that the VM is taken for; `None` once it is known
    /// not to.
    pub check_claim_at: Option<Timestamp>,
    /// Five characters for the next pod name.
    pub suffix: &'a str,
    /// Not before this may a finished VM be started again.
    pub restart_at: Timestamp,
    /// When the size wished for now was first seen.
    pub wanted_since: Timestamp,
    /// When progress of a resize was last written.
    pub progress_at: Timestamp,
    /// When what the pod requests was last changed.
    pub resized_at: Timestamp,
    /// CPUs that the guest starts ahead of their order.
    pub head_start: &'a HeadStart,
    /// The sizes of orders that are on their way to the runner of a pod, or may have been taken up
    /// without our knowing.
    pub ordering: &'a [(String, Resources)],
    /// The change of what the pod requests that may yet be carried out, or was without our knowing.
    pub resizing: Option<&'a [PatchOp]>,
    /// The size the guest had when the resize under way began.
    pub scaling_from: Option<Resources>,
    /// Time of this plan, monotonic and calendar.
    pub at: Moment,
}

/// Status to write and actions to carry out.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The status the VM should have.
    pub status: VmStatus,
    /// What may be done now, the most urgent first.
    pub actions: Vec<Action>,
    /// When to plan again though nothing happens.
    pub look_again: Option<Timestamp>,
    /// What stands in the way.
    pub problems: Vec<Problem>,
}

/// Plans what is to be done for a VM now, and the status that the VM should have.
#[must_use]
pub fn plan(input: &Input<'_>) -> Plan {
    let mut draft = Draft::new(input);
    if input.vm.metadata.deletion_timestamp.is_some() {
        draft.deletion();
        return draft.done();
    }
    if !has_finalizer(input.vm) {
        draft.edit(VmEdit::AddFinalizer);
        return draft.done();
    }
    if input.vm.spec.cpu_scaling_mode.is_none() {
        draft.edit(VmEdit::SetScalingMode(
            input.settings.default_cpu_scaling_mode,
        ));
        return draft.done();
    }
    match draft.status.phase {
        // These two belong to the migration, as long as there is one.
        VmPhase::PreMigrating | VmPhase::Migrating => {
            if !draft.release_claim() {
                return draft.done();
            }
        }
        phase => {
            draft.prepare();
            if phase == VmPhase::Pending || phase.is_alive() {
                draft.certificate();
            }
            match phase {
                _ if draft.power() => {}
                VmPhase::New if !draft.has_address() => {}
                VmPhase::New => draft.status.phase = VmPhase::Pending,
                VmPhase::Pending => draft.pending(),
                VmPhase::Running | VmPhase::Scaling => draft.alive(),
                _ => draft.ended(),
            }
        }
    }
    draft.conclude();
    if draft.stored.phase.is_alive() {
        draft.has_runner_secret();
    }
    draft.done()
}

fn has_finalizer(vm: &VirtualMachine) -> bool {
    vm.metadata.finalizers.iter().any(|name| name == FINALIZER)
}

/// A plan in the making.
pub(super) struct Draft<'a> {
    pub(super) input: &'a Input<'a>,
    pub(super) vm: &'a VirtualMachine,
    pub(super) stored: VmStatus,
    pub(super) status: VmStatus,
    pub(super) actions: Vec<Action>,
    pub(super) look_again: Option<Timestamp>,
    pub(super) problems: Vec<Problem>,
    pub(super) notes: Vec<VmEvent>,
    /// Whether the guest's certificate is there, or none is asked for.
    pub(super) certified: bool,
}

impl<'a> Draft<'a> {
    fn new(input: &'a Input<'a>) -> Self {
        let stored = input.vm.status.clone().unwrap_or_default();
        Self {
            input,
            vm: input.vm,
            status: stored.clone(),
            stored,
            actions: Vec::new(),
            look_again: None,
            problems: Vec::new(),
            notes: Vec::new(),
            certified: true,
        }
    }

    fn done(self) -> Plan {
        Plan {
            status: self.status,
            actions: self.actions,
            look_again: self.look_again,
            problems: self.problems,
        }
    }

    pub(super) fn wake_at(&mut self, at: Timestamp) {
        self.look_again = Some(self.look_again.map_or(at, |earlier| earlier.min(at)));
    }

    /// Calls again when `age` of a thing that is `is` microseconds old is passed.
    pub(super) fn wake_when_older(&mut self, is_us: i64, than_us: i64) {
        let left = u64::try_from(than_us.saturating_sub(is_us)).unwrap_or(0);
        self.wake_at(self.input.at.now + Span(left.saturating_add(1)));
    }

    fn edit(&mut self, what: VmEdit) {
        let mut metadata = json!({"resourceVersion": self.vm.metadata.resource_version});
        let mut patch = json!({});
        match what {
            VmEdit::AddFinalizer => {
                let mut list = self.vm.metadata.finalizers.clone();
                list.push(FINALIZER.into());
                metadata["finalizers"] = json!(list);
            }
            VmEdit::DropFinalizer => {
                let mut list = self.vm.metadata.finalizers.clone();
                list.retain(|name| name != FINALIZER);
                metadata["finalizers"] = json!(list);
            }
            VmEdit::SetScalingMode(mode) => patch["spec"] = json!({"cpuScalingMode": mode}),
        }
        patch["metadata"] = metadata;
        self.actions.push(Action::PatchVm { what, patch });
    }

    /// A VM that is being deleted: its pods first, then the finalizer.
    fn deletion(&mut self) {
        if !has_finalizer(self.vm) {
            return;
        }
        let grace_s = self.vm.spec.termination_grace_period_seconds.max(0);
        let asked = self.vm.metadata.deletion_timestamp.unwrap_or_default();
        let age = self.input.at.wall.0.saturating_sub(asked.0);
        let patience_us = i64::try_from(STUCK_POD_PATIENCE.0).unwrap_or(i64::MAX);
        let patience_us = patience_us.saturating_add(grace_s.saturating_mul(1_000_000));
        let ours: Vec<&Pod> = self
            .input
            .pods
            .values()
            .filter(|pod| self.owns(pod))
            .collect();
        let mut waiting = false;
        for pod in ours {
            waiting = true;
            if pod.metadata.deletion_timestamp.is_none() {
                self.delete_pod(pod);
            }
        }
        if self.input.pod == PodView::Unknown && !self.status.pod_name.is_empty() {
            self.actions.push(Action::ReadPod {
                name: self.status.pod_name.clone(),
            });
            waiting = true;
        }
        if !waiting || age > patience_us {
            self.let_go();
        } else {
            self.wake_when_older(age, patience_us);
        }
    }

    /// The last of a VM: its address first, for whoever comes next.
    fn let_go(&mut self) {
        let settings = self.input.settings;
        let may_hold = settings.overlay.is_some() && self.vm.spec.extra_network.is_some();
        if may_hold && !self.input.address_released {
            let holder = self.holder();
            self.actions.push(Action::ReleaseAddress { holder });
        } else {
            self.edit(VmEdit::DropFinalizer);
        }
    }

    fn holder(&self) -> Holder {
        Holder {
            id: self.vm.metadata.key(),
            uid: self.vm.metadata.uid.clone(),
        }
    }

    /// Whether the VM has its address of the overlay, or needs none.
    pub(super) fn has_address(&mut self) -> bool {
        let gives = self.input.settings.overlay.is_some();
        if !gives || !self.overlay_is_wanted() || !self.status.extra_net_ip.is_empty() {
            return true;
        }
        let Some((address, mask)) = self.input.address else {
            let holder = self.holder();
            self.actions.push(Action::TakeAddress { holder });
            return false;
        };
        self.status.extra_net_ip = address.to_string();
        self.status.extra_net_mask = mask.to_string();
        true
    }

    /// Whether a pod is this VM's. A pod released by [`Action::OrphanPod`] is known by its name.
    pub(super) fn owns(&self, pod: &Pod) -> bool {
        let owners = &pod.metadata.owner_references;
        owners.iter().any(|owner| owner.uid == self.vm.metadata.uid)
            || (owners.is_empty() && pod.metadata.name == self.stored.pod_name)
    }

    pub(super) fn delete_pod(&mut self, pod: &Pod) {
        let grace = self.vm.spec.termination_grace_period_seconds.max(0);
        self.actions.push(Action::DeletePod {
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            grace_s: u32::try_from(grace).unwrap_or(u32::MAX),
        });
    }

    /// What every phase begins with.
    fn prepare(&mut self) {
        if self.status.conditions.is_empty() {
            conditions::set(
                &mut self.status.conditions,
                conditions::AVAILABLE,
                "Unknown",
                "Starting reconciliation",
                self.input.at.wall,
            );
        }
        let name = &self.vm.metadata.name;
        if self.vm.spec.enable_ssh && self.status.ssh_secret_name.is_empty() {
            self.status.ssh_secret_name = format!("ssh-neonvm-{name}");
        }
        if self.vm.spec.tls.is_some() && self.status.tls_secret_name.is_empty() {
            self.status.tls_secret_name = format!("tls-neonvm-{name}");
        }
    }

    /// Goes on with the guest's certificate. What is wrong with `spec.tls` is told, and a VM
    /// without a pod gets none before it is right.
    fn certificate(&mut self) {
        let Some(tls) = &self.vm.spec.tls else {
            return;
        };
        let (state, secret) = (self.input.certificate, &self.status.tls_secret_name);
        let next_step = match state.next_step(self.vm, secret, tls, self.input.at) {
            Ok(next_step) => next_step,
            Err(fault) => {
                self.certified = false;
                return self.problems.push(Problem::Tls { fault });
            }
        };
        self.certified = next_step.ready;
        self.actions.extend(next_step.action);
        let failure = next_step.failure;
        self.problems
            .extend(failure.map(|failure| Problem::Certificate { failure }));
        if let Some(at) = next_step.look_again {
            self.wake_at(at);
        }
    }

    /// What every phase ends with: conditions, revision, and the write of what changed.
    fn conclude(&mut self) {
        self.problems.extend(self.input.failures.values().cloned());
        let wall = self.input.at.wall;
        if !self.problems.is_empty() {
            let text: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
            self.degraded(&text.join("; "));
        } else if matches!(self.status.phase, VmPhase::Running | VmPhase::Scaling) {
            conditions::clear(&mut self.status.conditions, conditions::DEGRADED, wall);
        }
        if let Some(mut change) = merge_difference(&as_json(&self.stored), &as_json(&self.status)) {
            // Zero looks like absent from here, and readers want it there.
            change["restartCount"] = json!(self.status.restart_count);
            self.actions.push(Action::WriteStatus {
                status: Box::new(self.status.clone()),
                notes: std::mem::take(&mut self.notes),
                patch: json!({
                    "metadata": {"resourceVersion": self.vm.metadata.resource_version},
                    "status": change,
                }),
            });
        }
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

    pub(super) fn available(&mut self, is: bool, message: &str) {
        let wall = self.input.at.wall;
        let status = if is { "True" } else { "False" };
        conditions::set(
            &mut self.status.conditions,
            conditions::AVAILABLE,
            status,
            message,
            wall,
        );
    }
}

fn as_json(status: &VmStatus) -> Value {
    serde_json::to_value(status).expect("a status always encodes")
}
