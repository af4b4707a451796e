//! Events of a VM's core, and the results of its actions.

use std::net::Ipv4Addr;

use protocol::object::Pod;
use protocol::runner::RunnerState;
use protocol::vm::VirtualMachine;

use crate::core::certificate::objects::Facts;
use crate::core::kind::Kind;
use crate::core::moment::Moment;
use crate::core::refusal::Refusal;

/// Event for the core: a change that a watch or a runner reports, or the end of an action.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The VM object, from a watch or from a response.
    Vm(Box<VirtualMachine>),
    /// The VM object is gone.
    VmGone {
        /// Uid of the VM that was deleted.
        uid: String,
    },
    /// A pod of the VM was seen.
    Pod(Box<Pod>),
    /// The watch shows a pod of the VM no more: it is gone, or is not marked as the VM's any more.
    PodUnseen {
        /// Name of the pod, in the VM's namespace.
        name: String,
        /// Uid of the pod that the watch showed last, if known.
        uid: Option<String>,
    },
    /// The runner of a pod reported.
    Runner {
        /// Name of the runner's pod.
        pod: String,
        /// State that the runner reported.
        state: Box<RunnerState>,
    },
    /// The runner of a pod does not respond.
    RunnerSilent {
        /// Name of the runner's pod.
        pod: String,
        /// Text of the last error on the link to the runner.
        error: String,
    },
    /// An action has ended, well or badly.
    Done {
        /// Kind of the action that ended.
        kind: Kind,
        /// When it was truly begun, connection made.
        began: Moment,
        /// Result of the action, or the refusal.
        result: Result<ActionResponse, Refusal>,
    },
}

/// Result of an action.
#[derive(Debug, Clone, PartialEq)]
pub enum ActionResponse {
    /// The VM object.
    Vm(Box<VirtualMachine>),
    /// The pod as the API server returned it, after a read, a creation or a patch.
    Pod(Box<Pod>),
    /// The pod of this name is gone.
    PodGone(String),
    /// The uid of the migration of that name, if there is one.
    MigrationClaim(Option<String>),
    /// The secret exists.
    SecretReady,
    /// The VM holds this address of the overlay.
    Address {
        /// Address of the guest on the overlay; it is written into the VM's status.
        address: Ipv4Addr,
        /// Network mask of the overlay.
        mask: Ipv4Addr,
    },
    /// The VM holds no address of the overlay.
    AddressReleased,
    /// The objects of the guest's certificate.
    Certificate(Box<Facts>),
    /// The runner holds the order.
    Runner(Box<RunnerState>),
}
