//! Inputs and actions of a set's core.

use std::collections::BTreeMap;
use std::fmt;

use protocol::policy::VmSet;
use protocol::vm::VirtualMachine;
use serde_json::Value;

use crate::core::Refusal;

/// Something that happened to a set.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A state of the set.
    Set(Box<VmSet>),
    /// The set is gone. The API server deletes its members.
    SetGone,
    /// A state of a VM with the label of the set.
    Vm(Box<VirtualMachine>),
    /// A VM of this name and uid is gone, or has lost the label.
    VmGone {
        /// Name of the VM.
        name: String,
        /// Uid of the VM.
        uid: String,
    },
    /// An action has ended.
    Done {
        /// Kind of the action that has ended.
        kind: Kind,
        /// Response of the API server, or its refusal.
        result: Result<Response, Refusal>,
    },
}

/// Kind of an action. Failures of one kind delay only that kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The status is written.
    Status,
    /// The config map of the members is written.
    Members,
    /// A member is made.
    Create,
    /// A member is deleted.
    Delete,
}

/// Why a member is made or deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The number of members is not the desired one.
    Count {
        /// Desired number of members.
        wanted: u32,
    },
    /// An upgrade replaces the member.
    Upgrade {
        /// Version that the member gets.
        to: u32,
    },
    /// The member's VM has ended.
    Ended,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count { wanted } => write!(f, "{wanted} members are wanted"),
            Self::Upgrade { to } => write!(f, "upgrade to version {to}"),
            Self::Ended => write!(f, "it has ended and is replaced"),
        }
    }
}

/// Request to the API server.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Changes the status of the set, if the set is still the one that was read.
    WriteStatus {
        /// Merge patch with the version of the set.
        patch: Value,
    },
    /// Creates or replaces the config map with the members.
    WriteMembers {
        /// Name of the config map.
        name: String,
        /// Its owner, as in `metadata.ownerReferences`.
        owner: Value,
        /// Files by name.
        data: BTreeMap<String, String>,
    },
    /// Creates a VM. If there is one of the name, the response has it.
    Create {
        /// Name of the VM.
        name: String,
        /// The VM as it is posted.
        vm: Value,
        /// Why it is made.
        why: Reason,
    },
    /// Deletes the VM of this name and uid.
    Delete {
        /// Name of the VM.
        name: String,
        /// Uid of the VM. One of another uid is left alone.
        uid: String,
        /// Why it is deleted.
        why: Reason,
    },
}

impl Action {
    /// Kind of the action.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::WriteStatus { .. } => Kind::Status,
            Self::WriteMembers { .. } => Kind::Members,
            Self::Create { .. } => Kind::Create,
            Self::Delete { .. } => Kind::Delete,
        }
    }
}

/// Result of an action that worked.
#[derive(Debug, Clone, PartialEq)]
pub enum Response {
    /// The set after the write of its status.
    Set(Box<VmSet>),
    /// The config map is written.
    Members,
    /// The VM that was created, or that has the name already.
    Vm(Box<VirtualMachine>),
    /// The deletion of the VM has begun, or the VM is gone.
    Deleted,
}
