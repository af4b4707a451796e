//! Hardware and main program of the guest: `spec.guest` (docs/compatibility/neonvm.md §1.3).

use serde::{Deserialize, Serialize};

use crate::quantity::Quantity;
use crate::units::{Bytes, MilliCpu, Resources};

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
