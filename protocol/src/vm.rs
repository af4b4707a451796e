//! Objects of group `vm.neon.tech/v1`: VirtualMachine, VirtualMachineMigration, IPPool. Source:
//! docs/compatibility/neonvm.md §1.
//! Members that the components only pass on (affinity, tolerations, …) are kept as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::annotations::Overcommit;
use crate::object::ObjectMeta;
use crate::quantity::Quantity;
use crate::revision::RevisionWithTime;
use crate::units::{Bytes, MilliCpu, Resources};

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
    /// Always [`API_VERSION`].
    pub api_version: String,
    /// Always `VirtualMachine`.
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

/// Hardware and main program of the guest: `spec.guest` (docs/compatibility/neonvm.md §1.3).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(
    missing_docs,
    reason = "member names are the table of docs/compatibility/neonvm.md §1.3, one to one"
)]
pub struct Guest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memhp_auto_movable_ratio: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub append_kernel_cmdline: Option<String>,
    pub cpus: CpuBounds,
    pub memory_slot_size: Quantity,
    pub memory_slots: MemorySlots,
    pub root_disk: RootDisk,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings: Option<GuestSettings>,
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            kernel_image: None,
            memhp_auto_movable_ratio: None,
            append_kernel_cmdline: None,
            cpus: CpuBounds::default(),
            memory_slot_size: Quantity::from_bytes(1 << 30),
            memory_slots: MemorySlots::default(),
            root_disk: RootDisk::default(),
            command: Vec::new(),
            args: Vec::new(),
            env: Vec::new(),
            ports: Vec::new(),
            settings: None,
        }
    }
}

/// CPU bounds and size of a VM: `guest.cpus`, with min ≤ use ≤ max.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CpuBounds {
    /// Lower bound of `use`, milli-CPU.
    pub min: MilliCpu,
    /// Upper bound of `use`, milli-CPU.
    pub max: MilliCpu,
    /// Desired size, milli-CPU. The agent changes it.
    pub r#use: MilliCpu,
}

/// Memory bounds and size of a VM in slots: `guest.memorySlots`, with 1 ≤ min ≤ use ≤ max ≤ 512.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemorySlots {
    /// Lower bound of `use`, slots.
    pub min: i32,
    /// Upper bound of `use`, slots.
    pub max: i32,
    /// Desired size, slots. The agent changes it.
    pub r#use: i32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(
    missing_docs,
    reason = "member names are the table of docs/compatibility/neonvm.md §1.3, one to one"
)]
pub struct RootDisk {
    pub image: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    pub image_pull_policy: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub execute: Vec<String>,
    /// Extension: the disk lives as long as the VM instead of as long as one pod.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub persistent: bool,
    /// Extension: the claim that holds the disk in a cluster. It requires `persistent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<ClaimRef>,
}

/// Reference to a PersistentVolumeClaim in the namespace of the VM.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimRef {
    /// Name of the claim.
    pub claim_name: String,
}

impl Default for RootDisk {
    fn default() -> Self {
        Self {
            image: String::new(),
            size: None,
            image_pull_policy: "IfNotPresent".into(),
            execute: Vec::new(),
            persistent: false,
            persistent_volume_claim: None,
        }
    }
}

/// One environment variable of the guest's main program.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EnvVar {
    /// Name of the variable, as the guest's program reads it.
    pub name: String,
    /// Value of the variable. It may be empty.
    pub value: String,
}

/// A guest port reachable at the pod's address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Port {
    /// Name of the port. May be empty. `qmp` is reserved.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Port number in the guest and at the pod's address, 1 to 65535.
    pub port: i32,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
}

impl Default for Port {
    fn default() -> Self {
        Self {
            name: String::new(),
            port: 0,
            protocol: "TCP".into(),
        }
    }
}

/// Kernel settings and swap of the guest: `guest.settings`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GuestSettings {
    /// Lines in the syntax of `sysctl.conf`: `name = value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sysctl: Vec<String>,
    /// Size of the swap disk. `None` means no swap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<Quantity>,
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
    pub migration: Option<TakenBy>,
}

/// Reference to the migration that claims a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenBy {
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
    /// Human-readable cause.
    pub message: String,
    /// Time at which `status` last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<crate::time::WallTime>,
    /// Generation of the spec that the controller had read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl Guest {
    /// Bytes of one memory slot. 0 if the slot size is negative or too large.
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        self.memory_slot_size.as_u64().unwrap_or(0)
    }

    fn memory(&self, slots: i32) -> Bytes {
        Bytes(
            self.slot_bytes()
                .saturating_mul(u64::try_from(slots).unwrap_or(0)),
        )
    }

    /// Desired size: CPU and memory of `use`.
    #[must_use]
    pub fn in_use(&self) -> Resources {
        Resources {
            cpu: self.cpus.r#use,
            mem: self.memory(self.memory_slots.r#use),
        }
    }

    /// Lower bound of the size: CPU and memory of `min`.
    #[must_use]
    pub fn smallest(&self) -> Resources {
        Resources {
            cpu: self.cpus.min,
            mem: self.memory(self.memory_slots.min),
        }
    }

    /// Upper bound of the size: CPU and memory of `max`.
    #[must_use]
    pub fn largest(&self) -> Resources {
        Resources {
            cpu: self.cpus.max,
            mem: self.memory(self.memory_slots.max),
        }
    }
}

/// A live migration of one VM (docs/compatibility/neonvm.md §1.7). Its spec never changes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachineMigration {
    /// Always [`API_VERSION`].
    pub api_version: String,
    /// Always `VirtualMachineMigration`.
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

/// A pool of IPv4 addresses for the overlay network (docs/compatibility/neonvm.md §1.8).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IpPool {
    /// Always [`API_VERSION`].
    pub api_version: String,
    /// Always `IPPool`.
    pub kind: String,
    /// Name and resource version of the pool.
    pub metadata: ObjectMeta,
    /// Range and allocations. A writer compares the resource version.
    pub spec: IpPoolSpec,
}

/// Range and allocations of an address pool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IpPoolSpec {
    /// Range of the pool in CIDR notation: `10.100.0.0/16`.
    pub range: String,
    /// Owner of each allocated address, by its decimal offset from the first address.
    pub allocations: BTreeMap<String, IpAllocation>,
}

/// Owner of one address.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IpAllocation {
    /// Key of the VM: `namespace/vm`.
    pub id: String,
    /// Not read. Objects of older versions may contain it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub podref: Option<String>,
}
