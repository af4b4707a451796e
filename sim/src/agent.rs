//! State of the agents: a task for each VM that an agent manages, with the shipped core.
//!
//! The files of the folder repeat what the agent's shell does between core and wire.

mod actions;
mod scrapes;
pub(crate) mod tasks;
pub(crate) mod times;

use agent::core::Core;
use protocol::permit::NamespacedName;
use protocol::time::Timestamp;

use crate::policy::TaskPolicy;
use crate::recording::TaskRecorder;

/// The task of one VM.
pub struct AgentTask {
    /// Number of this task; events addressed to an earlier task of the VM are dropped.
    pub id: u64,
    /// The node of its agent.
    pub node: usize,
    /// The shipped core.
    pub core: Core,
    /// Runner's pod that the VM's status named when the task began; its permits are for it.
    pub pod: NamespacedName,
    /// Uid of the VM.
    pub uid: String,
    /// Version of the object it began with.
    version: u64,
    /// The connection to the monitor, once it is up.
    pub connection: Option<u64>,
    /// When the newest attempt to connect began.
    pub dialled_at: Timestamp,
    /// When metrics last came.
    pub metrics_at: Option<Timestamp>,
    /// When a permit was last asked for.
    pub asked_at: Option<Timestamp>,
    /// When the task began.
    pub began_at: Timestamp,
    /// When to wake up.
    pub alarm: Option<Timestamp>,
    /// Writes its journal, where one is kept.
    pub(crate) recorder: Option<TaskRecorder>,
    /// Its policy, where it has one.
    pub(crate) policy: TaskPolicy,
    is_started: bool,
}
