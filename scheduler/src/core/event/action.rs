//! What the core asks the shell to do.

use protocol::permit::{NamespacedName, PermitRefusal, PluginResponse as Permit};
use serde::Serialize;

use super::extender::ExtenderResponse;
use super::ids::{CallId, RequestId};
use super::vm_write::VmWrite;
use crate::core::amount::Both;
use crate::core::decision::PermitDecision;
use crate::core::migrate::choose::{Choice, Picked};
use crate::core::migrate::object::NewMigration;
use crate::core::pod_warnings::PodWarning;
use crate::core::pressure::Pressure;

/// Why the scheduler deletes a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RemovalCause {
    /// It ended, and the VM runs on the target.
    Succeeded,
    /// It ended, and the VM runs on the source.
    Failed,
    /// It makes no progress.
    Stuck,
}

impl RemovalCause {
    /// Value of metric labels and log fields.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Stuck => "stuck",
        }
    }
}

/// A warning about a node, for operators.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeWarning {
    /// The amount reserved beyond the node's total.
    OverBudget(Both<u128>),
    /// No choice of VMs relieves the pressure. The choice names what remains.
    Unrelieved(Box<Choice>),
}

/// Work for the shell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Action {
    /// Respond to a permit request.
    RespondPermit(PermitResponse),
    /// Patch a VM object. Exactly one [`Event::WriteDone`](super::Event::WriteDone) must follow.
    WriteVm(VmWrite),
    /// Read a VM object. Exactly one [`Event::ReadDone`](super::Event::ReadDone) must follow.
    ReadVm {
        /// Names the call.
        id: CallId,
        /// The VM to read.
        vm: NamespacedName,
    },
    /// Bind a pod to a node. Exactly one [`Event::BindDone`](super::Event::BindDone) must follow.
    Bind {
        /// Names the call.
        id: CallId,
        /// The pod to bind.
        pod: NamespacedName,
        /// Precondition: a pod of another uid must not be bound.
        uid: String,
        /// The node to bind to.
        node: String,
    },
    /// Read a pod. Exactly one [`Event::PodRead`](super::Event::PodRead) must follow.
    ReadPod {
        /// Names the call.
        id: CallId,
        /// The pod to read.
        pod: NamespacedName,
    },
    /// Respond to a kube-scheduler.
    RespondExtender {
        /// The request to respond to.
        request_id: RequestId,
        /// What to send.
        response: ExtenderResponse,
    },
    /// List every kind again, by reads that begin after this action. A term begins, or a time as
    /// standby. The lists and later watch events follow.
    List,
    /// Report on a pod that no node has headroom for it. No event follows.
    Unschedulable {
        /// The pod that fits nowhere.
        pod: NamespacedName,
        /// The pod's uid.
        uid: String,
        /// The reason, as text.
        message: String,
    },
    /// Change an unbound pod's status, so that kube-scheduler tries it again. No event follows.
    RoomAppeared {
        /// The unbound pod.
        pod: NamespacedName,
        /// The pod's uid.
        uid: String,
        /// A node that has headroom for the pod.
        node: String,
    },
    /// Report a warning on a pod. No event follows.
    WarnOnPod {
        /// The pod that the warning is about.
        pod: NamespacedName,
        /// The pod's uid.
        uid: String,
        /// What to report.
        warning: PodWarning,
    },
    /// Report on a VM that an increase was not granted in full. No event follows.
    ScaleUpDenied {
        /// The VM's uid.
        uid: String,
        /// The decision that limits the increase.
        decision: Box<PermitDecision>,
    },
    /// Create a migration. Exactly one [`Event::MigrationDone`](super::Event::MigrationDone) must
    /// follow.
    CreateMigration {
        /// Names the call.
        id: CallId,
        /// The migration to create.
        migration: NewMigration,
    },
    /// Delete a migration. Exactly one [`Event::MigrationDone`](super::Event::MigrationDone) must
    /// follow.
    DeleteMigration {
        /// Names the call.
        id: CallId,
        /// The migration to delete.
        migration: NamespacedName,
        /// Precondition: a migration of another uid must not be deleted.
        uid: String,
        /// The reason, for metrics and logs.
        cause: RemovalCause,
    },
    /// Report on a VM that it is being migrated, and why. No event follows.
    MigrationTriggered {
        /// The VM's uid, if the ledger has the VM.
        vm_uid: Option<String>,
        /// The node that the VM leaves.
        node: String,
        /// The pressure on that node.
        pressure: Pressure,
        /// The VM that leaves.
        picked: Box<Picked>,
    },
    /// Report a warning about a node. No event follows.
    WarnOnNode {
        /// The node that the warning is about.
        node: String,
        /// What to report.
        warning: NodeWarning,
    },
}

impl Action {
    /// Whether this reads or changes an object that decisions rest on.
    #[must_use]
    pub const fn is_call(&self) -> bool {
        matches!(
            self,
            Self::WriteVm(_)
                | Self::ReadVm { .. }
                | Self::Bind { .. }
                | Self::ReadPod { .. }
                | Self::CreateMigration { .. }
                | Self::DeleteMigration { .. }
        )
    }
}

/// The response to one permit request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PermitResponse {
    /// The request to respond to.
    pub request_id: RequestId,
    /// The pod's node, if the ledger has it.
    pub node: Option<String>,
    /// The permit to send, or why there is none.
    #[serde(serialize_with = "serialize_result")]
    pub result: Result<Permit, PermitRefusal>,
    /// The decision, unless the request was refused before one.
    pub decision: Option<Box<PermitDecision>>,
    /// Whether the log shows it: a change of the permit, or a denial not reported lately.
    pub is_notable: bool,
}

fn serialize_result<S: serde::Serializer>(
    result: &Result<Permit, PermitRefusal>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match result {
        Ok(permit) => permit.serialize(serializer),
        Err(refusal) => serializer.collect_str(refusal),
    }
}
