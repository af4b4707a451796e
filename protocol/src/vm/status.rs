//! Observed state of a VM: its `status` (docs/compatibility/neonvm.md §1.6).

use serde::{Deserialize, Serialize};

use crate::quantity::Quantity;
use crate::revision::RevisionWithTime;
use crate::time::WallTime;
use crate::units::MilliCpu;

/// Position of a VM in its life cycle, as the controller reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "words of docs/compatibility/neonvm.md §1.6")]
pub enum VmPhase {
    #[default]
    #[serde(rename = "")]
    New,
    Pending,
    Running,
    Scaling,
    PreMigrating,
    Migrating,
    Succeeded,
    Failed,
}

impl VmPhase {
    /// Whether the controller expects a running guest in this phase.
    #[must_use]
    pub fn is_alive(self) -> bool {
        matches!(
            self,
            Self::Running | Self::Scaling | Self::PreMigrating | Self::Migrating
        )
    }

    /// The text of the phase on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "",
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Scaling => "Scaling",
            Self::PreMigrating => "PreMigrating",
            Self::Migrating => "Migrating",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// Observed state of a VM: the members of `status` (docs/compatibility/neonvm.md §1.6).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(
    missing_docs,
    reason = "member names are the table of docs/compatibility/neonvm.md §1.6, one to one"
)]
pub struct VmStatus {
    #[serde(skip_serializing_if = "is_new")]
    pub phase: VmPhase,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    pub restart_count: i32,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pod_name: String,
    #[serde(rename = "podIP", skip_serializing_if = "String::is_empty")]
    pub pod_ip: String,
    #[serde(rename = "extraNetIP", skip_serializing_if = "String::is_empty")]
    pub extra_net_ip: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub extra_net_mask: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<MilliCpu>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_size: Option<Quantity>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ssh_secret_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tls_secret_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<RevisionWithTime>,
    /// The migration that claims the VM, in the phases PreMigrating and Migrating.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration: Option<ClaimedBy>,
}

/// Reference to the migration that claims a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimedBy {
    /// Name of the VirtualMachineMigration in the namespace of the VM.
    pub name: String,
    /// Uid of the migration. A later migration may reuse the name and has another uid.
    pub uid: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_new(phase: &VmPhase) -> bool {
    *phase == VmPhase::New
}

/// One condition of an object, in the form of `metav1.Condition`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Type of the condition: `Available` or `Degraded`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Machine-readable cause. The controller writes `Reconciling`.
    pub reason: String,
    /// Cause as a sentence for people. Its text is not fixed.
    pub message: String,
    /// Time at which `status` last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<WallTime>,
    /// Generation of the spec that the controller had read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
