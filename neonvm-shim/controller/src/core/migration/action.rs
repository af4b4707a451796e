//! What the core of a VM's migrations asks its shell to do, one thing per peer at a time.

use std::fmt;

use protocol::migration::{IncomingOrder, OutgoingOrder};
use serde::Serialize;
use serde_json::Value;

use crate::core::metadata::PatchOp;
use crate::core::vm_event::VmEvent;

/// Whom an action talks to. At most one action per peer is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Peer {
    /// The Kubernetes API server.
    Api,
    /// The runner the guest leaves.
    Source,
    /// The runner it goes to.
    Target,
}

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
        /// What is to be told once it is written.
        notes: Vec<VmEvent>,
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
        /// The secret that its runner is known by, and whose it is, where there must be one before.
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
        /// What the runner is to do with the guest, and for which migration.
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

/// The kind of an action: what errors and back-off are kept by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the variants of `Action`, one to one")]
pub enum Kind {
    PatchMigration,
    WriteMigration,
    WriteVm,
    ReadVm,
    ReadMigration,
    ReadPod,
    CreatePod,
    PatchPod,
    DeletePod,
    Send,
    Recall,
    Quit,
    Receive,
    Begin,
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

impl Kind {
    /// Peer that carries out the action. Each peer has at most one action under way.
    #[must_use]
    pub fn peer(self) -> Peer {
        match self {
            Self::Send | Self::Recall | Self::Quit => Peer::Source,
            Self::Receive | Self::Begin => Peer::Target,
            _ => Peer::Api,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PatchMigration => "edit the migration object",
            Self::WriteMigration => "write the migration's status",
            Self::WriteVm => "write the VM's status",
            Self::ReadVm => "read the VM object",
            Self::ReadMigration => "read the migration object",
            Self::ReadPod => "read a pod",
            Self::CreatePod => "create the target pod",
            Self::PatchPod => "edit a pod's owners, labels and annotations",
            Self::DeletePod => "delete a pod",
            Self::Send => "have the guest sent",
            Self::Recall => "have the guest kept",
            Self::Quit => "end the QEMU that was left",
            Self::Receive => "have the target wait for the guest",
            Self::Begin => "have the guest run at the target",
        })
    }
}
