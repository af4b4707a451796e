//! Live migrations of VMs: kind VirtualMachineMigration (docs/compatibility/neonvm.md §1.7).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::status::Condition;
use crate::object::ObjectMeta;
use crate::quantity::Quantity;

/// A live migration of one VM (docs/compatibility/neonvm.md §1.7). Its spec never changes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachineMigration {
    /// Always [`super::API_VERSION`]. Decoding does not check it.
    pub api_version: String,
    /// Always `VirtualMachineMigration`. Decoding does not check it.
    pub kind: String,
    /// Name, labels and owner of the migration.
    pub metadata: ObjectMeta,
    /// VM, target and limits of the migration.
    pub spec: MigrationSpec,
    /// Observed progress. The controller writes it; `None` before its first pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<MigrationStatus>,
}

/// Desired migration: the members of `spec` (docs/compatibility/neonvm.md §1.7).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(
    missing_docs,
    reason = "member names are the table of docs/compatibility/neonvm.md §1.7, one to one"
)]
pub struct MigrationSpec {
    pub vm_name: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<Value>,
    pub prevent_migration_to_same_host: bool,
    pub completion_timeout: i32,
    pub incremental: bool,
    pub allow_post_copy: bool,
    pub auto_converge: bool,
    pub max_bandwidth: Quantity,
}

impl Default for MigrationSpec {
    fn default() -> Self {
        Self {
            vm_name: String::new(),
            node_selector: BTreeMap::new(),
            node_affinity: None,
            prevent_migration_to_same_host: true,
            completion_timeout: 3600,
            incremental: true,
            allow_post_copy: false,
            auto_converge: true,
            max_bandwidth: Quantity::from_bytes(1 << 30),
        }
    }
}

/// Observed progress: the members of `status` (docs/compatibility/neonvm.md §1.7).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(
    missing_docs,
    reason = "member names are the table of docs/compatibility/neonvm.md §1.7, one to one"
)]
pub struct MigrationStatus {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub source_pod_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub target_pod_name: String,
    #[serde(rename = "sourcePodIP", skip_serializing_if = "String::is_empty")]
    pub source_pod_ip: String,
    #[serde(rename = "targetPodIP", skip_serializing_if = "String::is_empty")]
    pub target_pod_ip: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub source_node: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub target_node: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub info: Option<Value>,
}
