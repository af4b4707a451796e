//! What the agent reads from a VirtualMachine object, and whether the VM is this node's to scale. Source: spec/agent.md §1.

use protocol::annotations::{
    ANNOTATION_BOUNDS, ANNOTATION_CONFIG, LABEL_ALWAYS_MIGRATE, LABEL_AUTO_MIGRATION,
    LABEL_ENABLED, ScalingBounds,
};
use protocol::quantity::Quantity;
use protocol::revision::RevisionWithTime;
use protocol::units::{Bytes, MilliCpu, Resources};
use protocol::vm::{VirtualMachine, VmPhase};
use serde::Serialize;
use serde_json::Value;

use super::config::{Problem, ScalingConfig, ScalingOverrides};

/// Smallest CPU bound accepted.
const MIN_CPU: MilliCpu = MilliCpu(50);
/// Largest CPU bound accepted.
const MAX_CPU: MilliCpu = MilliCpu(512_000);
/// Most slots a bound may name: the object's own counts are 16 bits wide.
const MAX_SLOTS: u64 = u16::MAX as u64;

/// CPU of a VM: `{"min":…,"max":…,"use":…}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CpuInfo {
    /// Smallest.
    pub min: MilliCpu,
    /// Largest.
    pub max: MilliCpu,
    /// By the object.
    pub r#use: MilliCpu,
}

/// Memory of a VM, in slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemInfo {
    /// Smallest.
    pub min: u32,
    /// Largest.
    pub max: u32,
    /// By the object.
    pub r#use: u32,
    /// Bytes of a slot; not zero.
    pub slot_size: Bytes,
}

/// Scaling settings of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VmConfig {
    /// The scheduler may migrate it.
    pub auto_migration_enabled: bool,
    /// The scheduler migrates it whenever it can, for tests.
    pub always_migrate: bool,
    /// It is autoscaled.
    pub scaling_enabled: bool,
    /// Its own settings, as annotated.
    #[serde(rename = "scalingConfig", skip_serializing_if = "Option::is_none")]
    pub overrides: Option<ScalingOverrides>,
    /// Its settings in force.
    #[serde(skip)]
    pub scaling: ScalingConfig,
}

/// A VM as the core sees it: always valid.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VmInfo {
    /// Name of the object.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// CPU.
    pub cpu: CpuInfo,
    /// Memory.
    pub mem: MemInfo,
    /// Settings.
    pub config: VmConfig,
    /// `status.currentRevision`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<RevisionWithTime>,
    /// What the guest is reported to have: `status.cpus` and `status.memorySize`.
    #[serde(skip)]
    pub actual: Option<Resources>,
}

/// Why an object cannot be scaled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VmError {
    /// The object itself does not read.
    #[error("the object does not decode: {0}")]
    Object(String),
    /// The bounds annotation does not read.
    #[error("annotation {ANNOTATION_BOUNDS} does not decode: {0}")]
    Bounds(String),
    /// A bound is zero, negative, uneven or too large.
    #[error("annotation {ANNOTATION_BOUNDS}: {0}")]
    BoundsValue(String),
    /// The config annotation does not read.
    #[error("annotation {ANNOTATION_CONFIG} does not decode: {0}")]
    Config(String),
    /// A setting breaks a rule.
    #[error("annotation {ANNOTATION_CONFIG}: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    ConfigValue(Vec<Problem>),
    /// A size of the object is out of range.
    #[error("{0}")]
    Size(String),
}

impl VmInfo {
    /// Reads an object. `default` fills what its annotations leave out. A `use` outside the bounds is accepted: bounds may move
    /// first and the size follows.
    ///
    /// # Errors
    /// [`VmError`]: the object cannot be scaled until it changes.
    pub fn from_object(vm: &VirtualMachine, default: &ScalingConfig) -> Result<Self, VmError> {
        let guest = &vm.spec.guest;
        let slot_size = Bytes(guest.slot_bytes());
        if slot_size.0 == 0 {
            return Err(VmError::Size(
                "spec.guest.memorySlotSize must be above zero".into(),
            ));
        }
        let slots = |name: &str, count: i32| {
            u32::try_from(count)
                .ok()
                .filter(|count| u64::from(*count) <= MAX_SLOTS)
                .ok_or_else(|| VmError::Size(format!("spec.guest.memorySlots.{name} = {count}")))
        };
        let mut cpu = CpuInfo {
            min: guest.cpus.min,
            max: guest.cpus.max,
            r#use: guest.cpus.r#use,
        };
        let mut mem = MemInfo {
            min: slots("min", guest.memory_slots.min)?,
            max: slots("max", guest.memory_slots.max)?,
            r#use: slots("use", guest.memory_slots.r#use)?,
            slot_size,
        };
        if let Some(text) = vm.metadata.annotations.get(ANNOTATION_BOUNDS) {
            apply_bounds(text, &mut cpu, &mut mem)?;
        }
        check_sizes(&cpu, &mem)?;
        let overrides: Option<ScalingOverrides> = vm
            .metadata
            .annotations
            .get(ANNOTATION_CONFIG)
            .map(|text| serde_json::from_str(text).map_err(|e| VmError::Config(e.to_string())))
            .transpose()?;
        let scaling = overrides
            .unwrap_or_default()
            .apply(default)
            .map_err(VmError::ConfigValue)?;
        Ok(Self {
            name: vm.metadata.name.clone(),
            namespace: vm.metadata.namespace.clone(),
            cpu,
            mem,
            config: VmConfig {
                auto_migration_enabled: vm.metadata.label_is_true(LABEL_AUTO_MIGRATION),
                always_migrate: vm.metadata.label_is_true(LABEL_ALWAYS_MIGRATE),
                scaling_enabled: vm.metadata.label_is_true(LABEL_ENABLED),
                overrides,
                scaling,
            },
            current_revision: vm
                .status
                .as_ref()
                .and_then(|status| status.current_revision),
            actual: vm.status.as_ref().and_then(|status| {
                let mem = Bytes(status.memory_size?.as_u64()?);
                Some(Resources {
                    cpu: status.cpus?,
                    mem,
                })
            }),
        })
    }

    fn of_slots(&self, slots: u32) -> Bytes {
        Bytes(self.mem.slot_size.0.saturating_mul(u64::from(slots)))
    }

    /// The smallest size.
    #[must_use]
    pub fn min(&self) -> Resources {
        Resources {
            cpu: self.cpu.min,
            mem: self.of_slots(self.mem.min),
        }
    }

    /// The largest size.
    #[must_use]
    pub fn max(&self) -> Resources {
        Resources {
            cpu: self.cpu.max,
            mem: self.of_slots(self.mem.max),
        }
    }

    /// What it uses by the object.
    #[must_use]
    pub fn using(&self) -> Resources {
        Resources {
            cpu: self.cpu.r#use,
            mem: self.of_slots(self.mem.r#use),
        }
    }

    /// Sets `use` to a size the VM was given; memory is whole slots already.
    pub fn set_using(&mut self, size: Resources) {
        self.cpu.r#use = size.cpu;
        self.mem.r#use = u32::try_from(size.mem.0 / self.mem.slot_size.0).unwrap_or(u32::MAX);
    }
}

fn apply_bounds(text: &str, cpu: &mut CpuInfo, mem: &mut MemInfo) -> Result<(), VmError> {
    let bounds: ScalingBounds =
        serde_json::from_str(text).map_err(|error| VmError::Bounds(error.to_string()))?;
    let slots = |end: &str, bytes: Quantity| {
        let wrong = |what: &str| Err(VmError::BoundsValue(format!("{end}.mem {what}")));
        if bytes <= Quantity::zero() {
            return wrong("must be above zero");
        }
        let Some(bytes) = bytes.as_u64() else {
            return wrong("is too large");
        };
        if bytes % mem.slot_size.0 != 0 {
            return wrong(&format!(
                "must be a multiple of the slot size {}",
                mem.slot_size
            ));
        }
        let count = bytes / mem.slot_size.0;
        if count > MAX_SLOTS {
            return wrong(&format!("is {count} slots, more than {MAX_SLOTS}"));
        }
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    };
    for (end, leaf) in [("min", bounds.min), ("max", bounds.max)] {
        if leaf.cpu.0 == 0 {
            return Err(VmError::BoundsValue(format!(
                "{end}.cpu must be above zero"
            )));
        }
    }
    (mem.min, mem.max) = (slots("min", bounds.min.mem)?, slots("max", bounds.max.mem)?);
    (cpu.min, cpu.max) = (bounds.min.cpu, bounds.max.cpu);
    Ok(())
}

fn check_sizes(cpu: &CpuInfo, mem: &MemInfo) -> Result<(), VmError> {
    for (end, value) in [("min", cpu.min), ("max", cpu.max)] {
        if value < MIN_CPU || value > MAX_CPU {
            let text = format!("{end} CPU {value} must be from {MIN_CPU} to {MAX_CPU}");
            return Err(VmError::Size(text));
        }
    }
    if cpu.min > cpu.max {
        return Err(VmError::Size(format!(
            "min CPU {} is above max CPU {}",
            cpu.min, cpu.max
        )));
    }
    if mem.min > mem.max {
        let text = format!(
            "min memory of {} slots is above max of {} slots",
            mem.min, mem.max
        );
        return Err(VmError::Size(text));
    }
    Ok(())
}

/// Where a VM is and whether this agent scales it, read from the raw object so that one bad member elsewhere does not hide it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// `status.podName`.
    pub pod_name: String,
    /// `status.podIP`.
    pub pod_ip: String,
}

/// Whose VM to look for.
#[derive(Debug, Clone, Copy)]
pub struct Ownership<'a> {
    /// This node.
    pub node: &'a str,
    /// The scheduler whose VMs are scaled.
    pub scheduler_name: &'a str,
}

/// Where the VM runs, if it is ours: on this node, alive and not migrating, with an address, labelled, and of our scheduler.
#[must_use]
pub fn placement(object: &Value, ours: Ownership<'_>) -> Option<Placement> {
    let text = |pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or("")
    };
    let scaled_phases = [
        VmPhase::Running.as_str(),
        VmPhase::PreMigrating.as_str(),
        VmPhase::Scaling.as_str(),
    ];
    let label = object
        .pointer("/metadata/labels")
        .and_then(|labels| labels.get(LABEL_ENABLED))
        .and_then(Value::as_str);
    let is_ours = text("/status/node") == ours.node
        && scaled_phases.contains(&text("/status/phase"))
        && !text("/status/podIP").is_empty()
        && label == Some("true")
        && text("/spec/schedulerName") == ours.scheduler_name;
    is_ours.then(|| Placement {
        pod_name: text("/status/podName").to_owned(),
        pod_ip: text("/status/podIP").to_owned(),
    })
}
