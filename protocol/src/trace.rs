//! Where the time of a resize goes. The VM and the agent's revision name a resize. Each component
//! stamps the stages that it carries out. A reader joins the records by [`TraceId`].

use serde::{Deserialize, Serialize};

/// Identifier of one resize: `{"vm":"default/pg","revision":7}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TraceId {
    /// Key of the VirtualMachine: `namespace/name`.
    pub vm: String,
    /// Value of `spec.targetRevision.revision.value` in the VirtualMachine.
    pub revision: i64,
}

/// One stage of a resize, in the order in which a growth passes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Agent: from the input that changed the desired size to the decision.
    Decision,
    /// Agent: the permit request and its response.
    Permit,
    /// Agent: the patch of the VM object.
    Patch,
    /// Agent and monitor: approval of a shrink.
    MonitorApproval,
    /// Controller: from the watch event to the order that the runner accepts.
    Controller,
    /// Runner: the QMP commands until QEMU reports the size.
    Qmp,
    /// Runner and neonvmd: from QEMU's report until the guest itself sees the size.
    GuestVisible,
    /// Controller: from the runner's report to the status written.
    Status,
}

/// Begin and length of one stage, as the component that carried it out measured them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageRecord {
    /// The resize that the stage belongs to.
    #[serde(flatten)]
    pub trace: TraceId,
    /// The stage that this record measures.
    pub stage: Stage,
    /// Begin of the stage, microseconds since 1970.
    pub start_unix_us: i64,
    /// Length of the stage, microseconds.
    pub duration_us: u64,
    /// Size before and after, as `"250m CPU / 1Gi -> 500m CPU / 2Gi"`. Empty if the component has
    /// no sizes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub change: String,
}
