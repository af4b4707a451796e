//! Events of a VM's migrations, and the results of their actions.

use protocol::object::Pod;
use protocol::runner::RunnerState;
use protocol::vm::{VirtualMachine, VirtualMachineMigration};

use super::kind::Kind;
use crate::core::refusal::Refusal;

/// Event for the core: a change that a watch or a runner reports, or the end of an action.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A migration of the VM was seen.
    Migration(Box<VirtualMachineMigration>),
    /// A migration object was deleted.
    MigrationGone {
        /// Name of the migration, in the VM's namespace.
        name: String,
        /// The incarnation that went, if known.
        uid: Option<String>,
    },
    /// A watch or a response showed the VM object.
    Vm(Box<VirtualMachine>),
    /// It is gone, or there never was one.
    VmGone,
    /// A pod of the VM was seen.
    Pod(Box<Pod>),
    /// The watch shows a pod of it no more: it is gone, or is not marked as the VM's any more.
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
        /// Kind of the action that ended. The end of an action that is not under way is ignored.
        kind: Kind,
        /// Result of the action, or the refusal.
        result: Result<ActionResponse, Refusal>,
    },
}

/// Result of an action.
#[derive(Debug, Clone, PartialEq)]
pub enum ActionResponse {
    /// The VM object.
    Vm(Box<VirtualMachine>),
    /// The migration object.
    Migration(Box<VirtualMachineMigration>),
    /// The pod as the API server returned it, after a read, a creation or a patch.
    Pod(Box<Pod>),
    /// The pod of this name is gone.
    PodGone(String),
    /// State of the runner after the order.
    Runner(Box<RunnerState>),
}
