//! Where the time of a resize goes. A resize is named by its VM and the revision the agent gave it;
//! every part stamps the stages it carried out, and whoever wants the whole picture joins the
//! records by [`TraceId`].

use serde::{Deserialize, Serialize};

/// Names one resize: `{"vm":"default/pg","revision":7}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TraceId {
    /// `namespace/name` of the VirtualMachine.
    pub vm: String,
    /// `spec.targetRevision.revision.value`.
    pub revision: i64,
}

/// One stage of a resize, in the order in which a growth passes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Agent: from the input that changed the wish to the decision made.
    Decision,
    /// Agent: the permit request and its answer.
    Permit,
    /// Agent: the patch of the VM object.
    Patch,
    /// Agent and monitor: approval of a shrink.
    MonitorApproval,
    /// Controller: from the watch event to the order given to the runner.
    Controller,
    /// Runner: the QMP commands until QEMU reports the size.
    Qmp,
    /// Runner and neonvmd: from QEMU's report until the guest itself sees the size.
    GuestVisible,
    /// Controller: from the runner's report to the status written.
    Status,
}

/// One stamped stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageRecord {
    /// Which resize.
    #[serde(flatten)]
    pub trace: TraceId,
    /// Which stage.
    pub stage: Stage,
    /// When it began, microseconds since 1970.
    pub start_unix_us: i64,
    /// How long it took, microseconds.
    pub duration_us: u64,
    /// Size before and after as `"250m CPU / 1Gi -> 500m CPU / 2Gi"` where the part knows it, else
    /// empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub change: String,
}
