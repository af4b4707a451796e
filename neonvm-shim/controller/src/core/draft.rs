//! A plan in the making, and the steps that all phases share.

use protocol::annotations::FINALIZER;
use protocol::object::Pod;
use protocol::time::{Span, Timestamp};
use protocol::vm::{VirtualMachine, VmPhase, VmStatus};
use serde_json::{Value, json};

use super::action::{Action, VmEdit, merge_difference};
use super::conditions;
use super::overlay::holder::Holder;
use super::problem::Problem;
use super::view::PlanInput;
use super::vm_event::VmEvent;

/// Status to write and actions to carry out.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The status the VM should have.
    pub status: VmStatus,
    /// Actions that may be carried out now, the most urgent first.
    pub actions: Vec<Action>,
    /// When to plan again though nothing happens.
    pub look_again: Option<Timestamp>,
    /// Problems of the VM, for its status and its events.
    pub problems: Vec<Problem>,
}

pub(super) fn has_finalizer(vm: &VirtualMachine) -> bool {
    vm.metadata.finalizers.iter().any(|name| name == FINALIZER)
}

/// A plan in the making.
pub(super) struct Draft<'a> {
    pub(super) input: &'a PlanInput<'a>,
    pub(super) vm: &'a VirtualMachine,
    pub(super) stored: VmStatus,
    pub(super) status: VmStatus,
    pub(super) actions: Vec<Action>,
    pub(super) look_again: Option<Timestamp>,
    pub(super) problems: Vec<Problem>,
    pub(super) events: Vec<VmEvent>,
    /// Whether the guest's certificate is stored, or the spec wants none.
    pub(super) certified: bool,
}

impl<'a> Draft<'a> {
    pub(super) fn new(input: &'a PlanInput<'a>) -> Self {
        let stored = input.vm.status.clone().unwrap_or_default();
        Self {
            input,
            vm: input.vm,
            status: stored.clone(),
            stored,
            actions: Vec::new(),
            look_again: None,
            problems: Vec::new(),
            events: Vec::new(),
            certified: true,
        }
    }

    pub(super) fn done(self) -> Plan {
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

    pub(super) fn edit(&mut self, what: VmEdit) {
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

    pub(super) fn holder(&self) -> Holder {
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

    /// Whether a pod is this VM's. A pod released by [`Action::OrphanPod`] has no owner and is
    /// recognized by its name.
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

    /// First step of every phase: the first condition, and the names of the secrets.
    pub(super) fn prepare(&mut self) {
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

    /// Plans the next step of the guest's certificate. A fault in `spec.tls` is a problem of the
    /// VM. The VM gets no pod until the fault is mended.
    pub(super) fn certificate(&mut self) {
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

    /// Last step of every phase: conditions, and the write of a changed status.
    pub(super) fn conclude(&mut self) {
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
                events: std::mem::take(&mut self.events),
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
