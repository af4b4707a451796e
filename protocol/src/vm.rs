//! Objects of group `vm.neon.tech/v1`: VirtualMachine, VirtualMachineMigration, IPPool. Source:
//! docs/compatibility/neonvm.md §1.
//! Members that the components only pass on (affinity, tolerations, …) are kept as JSON.

pub(crate) mod guest;
mod ip_pool;
mod migration;
mod status;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use guest::{ClaimRef, CpuBounds, EnvVar, Guest, GuestSettings, MemorySlots, Port, RootDisk};
pub use ip_pool::{IpAllocation, IpPool, IpPoolSpec};
pub use migration::{MigrationSpec, MigrationStatus, VirtualMachineMigration};
pub use status::{ClaimedBy, Condition, VmPhase, VmStatus};

use crate::annotations::Overcommit;
use crate::object::ObjectMeta;
use crate::revision::RevisionWithTime;

/// API group of the three kinds.
pub const GROUP: &str = "vm.neon.tech";
/// API version of the three kinds.
pub const VERSION: &str = "v1";
/// Value of `apiVersion` in objects of the group.
pub const API_VERSION: &str = "vm.neon.tech/v1";
/// Block size of virtio-mem, bytes: 8 MiB. Each slot size is a multiple of it.
pub const MEMORY_BLOCK_BYTES: u64 = 8 << 20;

/// Desired and observed state of one virtual machine.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachine {
    /// Always [`API_VERSION`]. Decoding does not check it.
    pub api_version: String,
    /// Always `VirtualMachine`. Decoding does not check it.
    pub kind: String,
    /// Name, labels and annotations of the VM.
    pub metadata: ObjectMeta,
    /// Desired state. The user and the agent write it.
    pub spec: VmSpec,
    /// Observed state. The controller writes it; `None` before its first pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<VmStatus>,
}

/// Desired state of a VM: the members of `spec` (docs/compatibility/neonvm.md §1.2).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(
    missing_docs,
    reason = "member names are the table of docs/compatibility/neonvm.md §1.2, one to one"
)]
pub struct VmSpec {
    pub qmp: i32,
    pub qmp_manual: i32,
    pub runner_port: i32,
    pub termination_grace_period_seconds: i64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Value>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub scheduler_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_account_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_resources: Option<Value>,
    pub restart_policy: RestartPolicy,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_architecture: Option<String>,
    pub guest: Guest,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extra_init_containers: Vec<Value>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub init_script: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<Disk>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra_network: Option<Value>,
    #[serde(rename = "service_links", skip_serializing_if = "Option::is_none")]
    pub service_links: Option<bool>,
    pub enable_acceleration: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner_image: Option<String>,
    #[serde(rename = "enableSSH")]
    pub enable_ssh: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overcommit: Option<Overcommit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_revision: Option<RevisionWithTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_scaling_mode: Option<CpuScalingMode>,
    pub enable_network_monitoring: bool,
}

impl Default for VmSpec {
    fn default() -> Self {
        Self {
            qmp: 20183,
            qmp_manual: 20184,
            runner_port: 25183,
            termination_grace_period_seconds: 5,
            node_selector: BTreeMap::new(),
            affinity: None,
            tolerations: Vec::new(),
            scheduler_name: String::new(),
            service_account_name: String::new(),
            pod_resources: None,
            restart_policy: RestartPolicy::Always,
            image_pull_secrets: Vec::new(),
            target_architecture: None,
            guest: Guest::default(),
            extra_init_containers: Vec::new(),
            init_script: String::new(),
            disks: Vec::new(),
            extra_network: None,
            service_links: None,
            enable_acceleration: true,
            runner_image: None,
            enable_ssh: true,
            tls: None,
            overcommit: None,
            target_revision: None,
            cpu_scaling_mode: None,
            enable_network_monitoring: false,
        }
    }
}

/// When the controller replaces a runner pod that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum RestartPolicy {
    /// The controller replaces it after success and after failure.
    #[default]
    Always,
    /// The controller replaces it only after a failure.
    OnFailure,
    /// The controller leaves the VM in its final phase.
    Never,
}

/// How the runner adds CPUs to the guest and removes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CpuScalingMode {
    /// The runner plugs and unplugs CPUs through QMP.
    QmpScaling,
    /// QEMU plugs all CPUs at boot. The guest daemon switches them on and off.
    SysfsScaling,
}

/// One disk of the guest besides its root disk: `spec.disks[]` (docs/compatibility/neonvm.md §1.4).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(
    missing_docs,
    reason = "member names are the table of docs/compatibility/neonvm.md §1.4, one to one"
)]
pub struct Disk {
    pub name: String,
    pub mount_path: String,
    pub read_only: bool,
    pub watch: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty_disk: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tmpfs: Option<Value>,
    /// Extension: `claimName` and `size` of a disk that outlives the pod, in a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<Value>,
}
