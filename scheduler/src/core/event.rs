//! Inputs and outputs of the core. All of it is plain data.

mod action;
mod extender;
mod ids;
mod state_dump;
mod vm_write;

use std::fmt;

use leader_election::core::lease::LeaseSeen;
use protocol::permit::NamespacedName;
pub use protocol::permit::{AgentRequest as PermitRequest, PluginResponse as Permit};

pub use action::{Action, NodeWarning, PermitResponse, RemovalCause};
pub use extender::{ExtenderRequest, ExtenderResponse, NO_ROOM_MESSAGE, Unbound, Unfit};
pub use ids::{CallId, RequestId};
pub use state_dump::StateDump;
pub use vm_write::{VmWrite, annotation_text};

use super::migrate::object::MigrationView;
use super::pod_requests::PodView;
use super::view::{NodeView, VmView};

/// An input of the core.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A consistent list of all nodes. A node that it does not contain is gone.
    NodesListed(Vec<NodeView>),
    /// A node was created or changed.
    NodeApplied(NodeView),
    /// The node of this name is gone.
    NodeDeleted(String),
    /// A consistent list of all pods. A pod that it does not contain is gone.
    PodsListed(Vec<PodView>),
    /// A pod was created or changed.
    PodApplied(PodView),
    /// The pod of this uid is gone.
    PodDeleted(String),
    /// A consistent list of all VMs. A VM that it does not contain is gone.
    VmsListed(Vec<VmView>),
    /// A VM was created or changed.
    VmApplied(VmView),
    /// The VM of this name and uid is gone.
    VmDeleted(NamespacedName, String),
    /// A consistent list of all migrations. A migration that it does not contain is gone.
    MigrationsListed(Vec<MigrationView>),
    /// A migration was created or changed.
    MigrationApplied(MigrationView),
    /// The migration of this name and uid is gone.
    MigrationDeleted(NamespacedName, String),
    /// How far the watch of a kind is. `None`: a resource version was not a number.
    WatchProgress(ObjectKind, Option<WatchProgress>),
    /// An agent requests a permit. Exactly one [`Action::RespondPermit`] follows.
    PermitRequest(RequestId, PermitRequest),
    /// An [`Action::WriteVm`] ended.
    WriteDone(CallId, CallOutcome),
    /// An [`Action::ReadVm`] ended.
    ReadDone(CallId, CallOutcome),
    /// An [`Action::Bind`] ended.
    BindDone(CallId, BindOutcome),
    /// An [`Action::CreateMigration`] or [`Action::DeleteMigration`] ended.
    MigrationDone(CallId, MigrationOutcome),
    /// The newest observation of the Lease.
    Lease(LeaseSeen),
    /// A kube-scheduler's request. Exactly one [`Action::RespondExtender`] follows.
    ExtenderRequest(RequestId, ExtenderRequest),
    /// An [`Action::ReadPod`] ended.
    PodRead(CallId, PodReadOutcome),
}

/// A kind of object that the scheduler lists and watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// Kind `Node`, cluster-wide.
    Nodes,
    /// Kind `Pod`, of all namespaces.
    Pods,
    /// Kind `VirtualMachine`, of all namespaces.
    VirtualMachines,
    /// Kind `VirtualMachineMigration`, of all namespaces.
    Migrations,
}

impl ObjectKind {
    /// Every kind, in the order of declaration.
    pub const ALL: [Self; 4] = [
        Self::Nodes,
        Self::Pods,
        Self::VirtualMachines,
        Self::Migrations,
    ];
}

/// The plural resource name, as in `virtualmachines`.
impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nodes => "nodes",
            Self::Pods => "pods",
            Self::VirtualMachines => "virtualmachines",
            Self::Migrations => "migrations",
        })
    }
}

/// How far the watch of a kind is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchProgress {
    /// The watch has delivered every change up to this resource version.
    pub observed: u64,
    /// Newest resource version among the objects just delivered. Zero if there is none, as after a
    /// deletion.
    pub newest: u64,
}

/// How a read of a pod ended.
#[derive(Debug, Clone, PartialEq)]
pub enum PodReadOutcome {
    /// The pod as the API server has it.
    Pod(Box<PodView>),
    /// There is no pod of that name.
    Gone,
    /// The read failed.
    Unclear(String),
}

/// How a write or a read of a VM object ended.
#[derive(Debug, Clone, PartialEq)]
pub enum CallOutcome {
    /// It succeeded. The object is as after the call.
    Done(Box<VmView>),
    /// A `test` of the patch failed, or the object changed. The write has no effect, now or later.
    Conflict,
    /// There is no such object. The write has no effect, now or later.
    NotFound,
    /// Refused for another reason. The write has no effect, now or later.
    Refused(String),
    /// Time-out, broken connection or failure of the server. The write may have an effect, now or
    /// later.
    Unclear(String),
}

/// How a binding ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindOutcome {
    /// The pod is bound to the node.
    Bound,
    /// The pod changed or was bound before. The watch shows its node.
    Conflict,
    /// Refused. This attempt does not bind the pod, now or later.
    Refused(String),
    /// This attempt may bind the pod, now or later.
    Unclear(String),
}

/// How the creation or deletion of a migration ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MigrationOutcome {
    /// The migration exists, or is gone, as requested. It may have been so before.
    Done,
    /// Refused. This attempt has no effect, now or later.
    Refused(String),
    /// This attempt may have an effect, now or later.
    Unclear(String),
}
