//! Actions that the core of a VM's migrations asks its shell to carry out, one per peer at a time.

use protocol::migration::{IncomingOrder, OutgoingOrder};
use serde::Serialize;
use serde_json::Value;

use super::kind::Kind;
use crate::core::metadata::PatchOp;
use crate::core::vm_event::VmEvent;

/// One thing to do. Writes to objects carry the version they rest on.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Action {
    /// Merge-patch the migration object.
    PatchMigration {
        /// Name of the migration, in the VM's namespace.
        name: String,
        /// The merge patch, version included.
        patch: Value,
    },
    /// Merge-patch its status subresource.
    WriteMigration {
        /// Name of the migration, in the VM's namespace.
        name: String,
        /// Events to publish once the status is written.
        #[serde(rename = "notes")]
        events: Vec<VmEvent>,
        /// The merge patch, version included.
        patch: Value,
    },
    /// Merge-patch the status subresource of the VM.
    WriteVm {
        /// The merge patch, version included.
        patch: Value,
    },
    /// Read the VM object afresh.
    ReadVm,
    /// Read a migration object afresh.
    ReadMigration {
        /// Name of the migration, in the VM's namespace.
        name: String,
    },
    /// Read a pod from the API server, not from the watch.
    ReadPod {
        /// Name of the pod, in the VM's namespace.
        name: String,
    },
    /// Create the target pod.
    CreatePod {
        /// Name of the target pod.
        name: String,
        /// Whole pod object as JSON.
        pod: Value,
        /// Name and owner of the secret with the runner's credentials, if it must exist before the
        /// pod.
        secret: Option<(String, Value)>,
    },
    /// JSON-patch metadata of a pod.
    PatchPod {
        /// Name of the pod, source or target.
        name: String,
        /// Operations of one JSON patch. The API server applies all of them or none.
        ops: Vec<PatchOp>,
    },
    /// Delete a pod.
    DeletePod {
        /// Name of the pod, source or target.
        name: String,
        /// Uid of the pod: a later pod of this name is left alone.
        uid: String,
        /// Seconds it has to end.
        grace_s: u32,
    },
    /// Have the source hold still, or send the guest.
    Send {
        /// Name of the source pod, whose runner gets the order.
        pod: String,
        /// What the runner does with the guest, and for which migration.
        order: OutgoingOrder,
    },
    /// Have the source keep the guest.
    Recall {
        /// Name of the source pod, whose runner gets the order.
        pod: String,
        /// Id of the migration. The runner ignores an order for another one.
        id: String,
    },
    /// Have the source end: the guest runs elsewhere.
    Quit {
        /// Name of the source pod, whose runner gets the order.
        pod: String,
        /// Id of the migration. The runner refuses the order if it holds another one.
        id: String,
    },
    /// Have the target wait for the guest.
    Receive {
        /// Name of the target pod, whose runner gets the order.
        pod: String,
        /// Which migration the runner is to receive, and how.
        order: Box<IncomingOrder>,
    },
    /// Have the target run the guest.
    Begin {
        /// Name of the target pod, whose runner gets the order.
        pod: String,
        /// Id of the migration. The runner refuses the order if it holds another one.
        id: String,
    },
}

impl Action {
    /// Kind of this action, by which errors and back-off are kept.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::PatchMigration { .. } => Kind::PatchMigration,
            Self::WriteMigration { .. } => Kind::WriteMigration,
            Self::WriteVm { .. } => Kind::WriteVm,
            Self::ReadVm => Kind::ReadVm,
            Self::ReadMigration { .. } => Kind::ReadMigration,
            Self::ReadPod { .. } => Kind::ReadPod,
            Self::CreatePod { .. } => Kind::CreatePod,
            Self::PatchPod { .. } => Kind::PatchPod,
            Self::DeletePod { .. } => Kind::DeletePod,
            Self::Send { .. } => Kind::Send,
            Self::Recall { .. } => Kind::Recall,
            Self::Quit { .. } => Kind::Quit,
            Self::Receive { .. } => Kind::Receive,
            Self::Begin { .. } => Kind::Begin,
        }
    }

    /// The migration it is about, if it names it.
    #[must_use]
    pub fn migration(&self) -> Option<&str> {
        match self {
            Self::PatchMigration { name, .. }
            | Self::WriteMigration { name, .. }
            | Self::ReadMigration { name } => Some(name),
            _ => None,
        }
    }
}
