//! A member as its VM object shows it.

use protocol::policy::{ANNOTATION_SET_VERSION, SET_KIND, VmSet, member_ordinal};
use protocol::vm::{RestartPolicy, VirtualMachine, VmPhase};

use crate::core::conditions::{BOOTED, DEGRADED};

/// Restarts within an upgrade from which on the member has failed.
const FAILED_RESTARTS: i32 = 2;

/// State of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MemberState {
    /// It is being deleted.
    Leaving,
    /// Its guest is not up.
    Starting,
    /// Its guest is up.
    Up,
    /// It has ended and does not start again.
    Ended,
}

/// A VM of the set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) ordinal: u32,
    pub(super) name: String,
    pub(super) uid: String,
    /// Version of the template; 0 if the annotation is missing or no number.
    pub(super) version: u32,
    pub(super) state: MemberState,
    pub(super) image: String,
    /// Address of the pod; empty while there is none.
    pub(super) address: String,
    /// Address in the overlay; empty without one.
    pub(super) extra_address: String,
    pub(super) restarts: i32,
    /// Message of condition Degraded, while it is true.
    pub(super) problem: Option<String>,
}

impl Member {
    /// The member that a VM is. `None` for a VM that the set does not own.
    pub(super) fn of(set: &VmSet, vm: &VirtualMachine) -> Option<Self> {
        let meta = &vm.metadata;
        let ordinal = member_ordinal(&set.metadata.name, &meta.name)?;
        let owner = meta.owner_of_kind(SET_KIND)?;
        if owner.name != set.metadata.name {
            return None;
        }
        // The API server deletes members of an earlier set of the name.
        let is_former = owner.uid != set.metadata.uid;
        let version = meta.annotations.get(ANNOTATION_SET_VERSION);
        let status = vm.status.clone().unwrap_or_default();
        let is_true = |kind: &str| {
            let mut all = status.conditions.iter();
            all.find(|one| one.kind == kind && one.status == "True")
        };
        let state = if is_former || meta.deletion_timestamp.is_some() {
            MemberState::Leaving
        } else if has_ended(vm, status.phase) {
            MemberState::Ended
        } else if status.phase.is_alive() && is_true(BOOTED).is_some() {
            MemberState::Up
        } else {
            MemberState::Starting
        };
        Some(Self {
            ordinal,
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            version: version.and_then(|text| text.parse().ok()).unwrap_or(0),
            state,
            image: vm.spec.guest.root_disk.image.clone(),
            address: status.pod_ip.clone(),
            extra_address: status.extra_net_ip.clone(),
            restarts: status.restart_count,
            problem: is_true(DEGRADED).map(|one| one.message.clone()),
        })
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == MemberState::Up
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.state == MemberState::Leaving
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state == MemberState::Ended
    }

    /// Why an upgrade to this member has failed, whatever comes later.
    pub(super) fn failure(&self) -> Option<String> {
        let because = |what: &str| match &self.problem {
            Some(problem) => format!("{} {what}: {problem}", self.name),
            None => format!("{} {what}", self.name),
        };
        match self.state {
            MemberState::Ended => Some(because("has ended")),
            _ if self.restarts >= FAILED_RESTARTS => {
                Some(because(&format!("was restarted {} times", self.restarts)))
            }
            _ => None,
        }
    }
}

/// Whether the VM has ended and its restart policy leaves it so.
fn has_ended(vm: &VirtualMachine, phase: VmPhase) -> bool {
    match vm.spec.restart_policy {
        RestartPolicy::Always => false,
        RestartPolicy::OnFailure => phase == VmPhase::Succeeded,
        RestartPolicy::Never => matches!(phase, VmPhase::Succeeded | VmPhase::Failed),
    }
}
