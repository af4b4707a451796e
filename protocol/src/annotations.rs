//! Labels and annotations by which the parts find and read one another's objects. Source:
//! docs/compatibility/neonvm.md §1.10, docs/compatibility/scheduler.md §2.2,
//! docs/compatibility/agent.md §1.3.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::quantity::Quantity;
use crate::units::{Bytes, MilliCpu, Resources};
use crate::vm::guest::{CpuBounds, MemorySlots};

/// Label, `"true"`: the VM is autoscaled.
pub const LABEL_ENABLED: &str = "autoscaling.neon.tech/enabled";
/// Label, `"true"`: the scheduler may migrate it.
pub const LABEL_AUTO_MIGRATION: &str = "autoscaling.neon.tech/auto-migration-enabled";
/// Label, `"true"`: eligible for migration in tests.
pub const LABEL_ALWAYS_MIGRATE: &str = "autoscaling.neon.tech/testing-only-always-migrate";
/// Label on migrations made by the scheduler; selected by presence.
pub const LABEL_CREATED_BY_SCHEDULER: &str = "autoscaling.neon.tech/created-by-scheduler";
/// Label on runner pods: the VM's name.
pub const LABEL_VM_NAME: &str = "vm.neon.tech/name";
/// Label on nodes, ours: the largest over-commit factor of CPU that counts there.
pub const LABEL_MAX_OVERCOMMIT_CPU: &str = "autoscaling.neon.tech/max-overcommit-cpu";
/// Label on nodes, ours: the largest over-commit factor of memory that counts there.
pub const LABEL_MAX_OVERCOMMIT_MEMORY: &str = "autoscaling.neon.tech/max-overcommit-memory";
/// Label of the endpoint a VM belongs to.
pub const LABEL_ENDPOINT_ID: &str = "neon/endpoint-id";
/// Label of the project a VM belongs to.
pub const LABEL_PROJECT_ID: &str = "neon/project-id";
/// Annotation: bounds that override the VM's own min and max.
pub const ANNOTATION_BOUNDS: &str = "autoscaling.neon.tech/bounds";
/// Annotation on a VM: scaling settings as JSON, which override those of the agent.
pub const ANNOTATION_CONFIG: &str = "autoscaling.neon.tech/config";
/// Annotation on a VM, ours: the number of its vsock device, which the runner gives it and where
/// the agent then dials the monitor.
pub const ANNOTATION_VSOCK_CID: &str = "autoscaling.neon.tech/vsock-cid";
/// Annotation on a VM, ours, on one machine: `POD/UID` of a guest that runs already, whose pod the
/// API's store does not have. The VM's first pod gets that name and takes the guest over.
pub const ANNOTATION_ADOPTS: &str = "autoscaling.neon.tech/adopts";
/// `"true"`: the VM's monitor takes any agent, as Neon's does, and its guest is given no token to
/// ask for.
pub const ANNOTATION_MONITOR_OPEN: &str = "bellows.dev/monitor-open";
/// Annotation on a VM, ours, on one machine: `none` for a guest that opens no connections and only
/// serves its ports.
pub const ANNOTATION_NETWORK: &str = "autoscaling.neon.tech/network";
/// Annotation: turns billing on and names the billed endpoint.
pub const ANNOTATION_BILLING_ENDPOINT: &str = "autoscaling.neon.tech/billing-endpoint-id";
/// Annotation, written by the scheduler: the compute unit of the newest request.
pub const ANNOTATION_SCALING_UNIT: &str = "autoscaling.neon.tech/scaling-unit";
/// Annotation, written by the scheduler: the newest wish.
pub const ANNOTATION_REQUESTED: &str = "internal.autoscaling.neon.tech/resources-requested";
/// Annotation, written by the scheduler: what is granted.
pub const ANNOTATION_APPROVED: &str = "internal.autoscaling.neon.tech/resources-approved";
/// Annotation on runner pods: the VM's bounds and use as [`VmResources`].
pub const ANNOTATION_VM_RESOURCES: &str = "vm.neon.tech/resources";
/// Annotation on runner pods: use as [`VmUsage`].
pub const ANNOTATION_VM_USAGE: &str = "vm.neon.tech/usage";
/// Annotation on runner pods: over-commit factors as [`Overcommit`].
pub const ANNOTATION_VM_OVERCOMMIT: &str = "vm.neon.tech/overcommit";
/// Finalizer of VMs and migrations.
pub const FINALIZER: &str = "vm.neon.tech/finalizer";
/// Finalizer of a VM with a persistent root disk on one machine: the node driver puts the disk away
/// before the VM goes.
pub const FINALIZER_ROOT_DISK: &str = "bellows.dev/root-disk";
/// Annotation on a VM, ours: [`POWER_STOPPED`] keeps it without a pod; its object and its disk
/// stay.
pub const ANNOTATION_POWER_STATE: &str = "bellows.dev/power-state";
/// Value of [`ANNOTATION_POWER_STATE`] that keeps the VM stopped.
pub const POWER_STOPPED: &str = "stopped";
/// Annotation on a VM, `"true"`: its root disk stays when the VM is deleted.
pub const ANNOTATION_KEEP_DISK: &str = "bellows.dev/keep-disk";
/// Annotation on a VM: it takes over the root disk that an earlier VM of its name left, `"true"` or
/// the uid of that VM.
pub const ANNOTATION_USE_DISK: &str = "bellows.dev/use-disk";

/// A key as it stands in a JSON pointer (`~` and `/` escaped).
#[must_use]
pub fn pointer_escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Bounds and size of a VM on its runner pod: content of [`ANNOTATION_VM_RESOURCES`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VmResources {
    /// CPU bounds and size, milli-CPU.
    pub cpus: CpuBounds,
    /// Memory bounds and size, in slots.
    pub memory_slots: MemorySlots,
    /// Size of one memory slot, bytes.
    pub memory_slot_size: Quantity,
}

impl VmResources {
    /// Size of the VM by its spec. A negative number of slots counts as 0.
    #[must_use]
    pub fn in_use(&self) -> Resources {
        let slots = u64::try_from(self.memory_slots.r#use).unwrap_or(0);
        Resources {
            cpu: self.cpus.r#use,
            mem: Bytes(
                self.memory_slot_size
                    .as_u64()
                    .unwrap_or(0)
                    .saturating_mul(slots),
            ),
        }
    }
}

/// CPU and memory of a VM on its runner pod: content of [`ANNOTATION_VM_USAGE`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmUsage {
    /// CPU of the VM's spec, cores.
    pub cpu: Quantity,
    /// Memory of the VM's spec, bytes.
    pub memory: Quantity,
}

impl VmUsage {
    /// Both as a size. `None` if one is negative or above the range of its unit.
    #[must_use]
    pub fn size(&self) -> Option<Resources> {
        Some(Resources {
            cpu: MilliCpu(u32::try_from(self.cpu.milli_value()).ok()?),
            mem: Bytes(self.memory.as_u64()?),
        })
    }
}

/// Content of [`ANNOTATION_VM_OVERCOMMIT`] and of `spec.overcommit`: a missing factor is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Overcommit {
    /// Factor for CPU, above 0. `None` means 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Quantity>,
    /// Factor for memory, above 0. `None` means 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
}

/// Content of [`ANNOTATION_BOUNDS`]:
/// `{"min":{"cpu":0.25,"mem":"1Gi"},"max":{"cpu":"2","mem":"8Gi"}}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalingBounds {
    /// Lower bound. It replaces the `min` of the VM's spec.
    pub min: BoundsLeaf,
    /// Upper bound. It replaces the `max` of the VM's spec.
    pub max: BoundsLeaf,
}

/// Lower or upper end of [`ScalingBounds`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundsLeaf {
    /// CPU in milli-CPU, as a quantity: `0.25` or `"250m"`.
    pub cpu: MilliCpu,
    /// Memory, bytes. A signed quantity, so that a negative value gets its own error.
    pub mem: Quantity,
}

/// A text that is no number of a vsock device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "annotation {ANNOTATION_VSOCK_CID} = {0:?}: must be a number from 3 to 4294967294 that no other VM of the node has"
)]
pub struct VsockCidError(pub String);

/// Reads the number of the VM's vsock device from [`ANNOTATION_VSOCK_CID`]. `None` if it is absent.
///
/// # Errors
/// [`VsockCidError`] if the text is not a number from 3 to 2^32-2.
pub fn vsock_cid(annotations: &BTreeMap<String, String>) -> Result<Option<u32>, VsockCidError> {
    let Some(text) = annotations.get(ANNOTATION_VSOCK_CID) else {
        return Ok(None);
    };
    // Smaller ones are the hypervisor's, the machine's own and the host's; the largest means any.
    let cid = text.parse().ok().filter(|cid| (3..u32::MAX).contains(cid));
    let bad = || VsockCidError(text.chars().take(64).collect());
    cid.map(Some).ok_or_else(bad)
}

/// A text that is no network of a guest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "annotation {ANNOTATION_NETWORK} = {0:?}: must be \"none\", for a guest that only serves its ports, or left out"
)]
pub struct NetworkError(pub String);

/// Reads [`ANNOTATION_NETWORK`]: whether the guest may open connections.
///
/// # Errors
/// [`NetworkError`] for any text but `none`.
pub fn has_outside(annotations: &BTreeMap<String, String>) -> Result<bool, NetworkError> {
    match annotations.get(ANNOTATION_NETWORK).map(String::as_str) {
        None => Ok(true),
        Some("none") => Ok(false),
        Some(other) => Err(NetworkError(other.chars().take(64).collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_a_size_unless_a_field_is_negative_or_too_large() {
        let size = |cpu: &str, memory: &str| {
            let text = serde_json::json!({"cpu": cpu, "memory": memory});
            serde_json::from_value::<VmUsage>(text)
                .expect("reads")
                .size()
        };
        assert_eq!(size("1250m", "1Gi"), Some(Resources::new(1250, 1 << 30)));
        for (cpu, memory) in [("-1", "1Gi"), ("5M", "1Gi"), ("1", "-1")] {
            assert_eq!(size(cpu, memory), None, "{cpu} {memory}");
        }
    }

    #[test]
    fn only_none_takes_a_guests_outside_away() {
        let read = |text: &str| {
            has_outside(&BTreeMap::from([(
                ANNOTATION_NETWORK.to_owned(),
                text.to_owned(),
            )]))
        };
        assert_eq!(has_outside(&BTreeMap::new()), Ok(true));
        assert_eq!(read("none"), Ok(false));
        for bad in ["", "None", "host"] {
            assert_eq!(read(bad), Err(NetworkError(bad.to_owned())));
        }
    }

    #[test]
    fn only_numbers_that_a_guest_can_have_are_taken() {
        let read = |text: &str| {
            vsock_cid(&BTreeMap::from([(
                ANNOTATION_VSOCK_CID.to_owned(),
                text.to_owned(),
            )]))
        };
        assert_eq!(vsock_cid(&BTreeMap::new()), Ok(None));
        assert_eq!(read("3"), Ok(Some(3)));
        assert_eq!(read("4294967294"), Ok(Some(4_294_967_294)));
        for bad in ["", "2", "-1", "4294967295", "0x10", "3 "] {
            assert_eq!(read(bad), Err(VsockCidError(bad.to_owned())));
        }
    }
}
