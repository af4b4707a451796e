//! Content of a VirtualMachine object that the agent uses. Source: docs/compatibility/agent.md §1.

mod placement;
mod read;
#[cfg(test)]
mod tests;

use protocol::annotations::{
    ANNOTATION_BOUNDS, ANNOTATION_CONFIG, LABEL_ALWAYS_MIGRATE, LABEL_AUTO_MIGRATION,
    LABEL_ENABLED, VsockCidError, vsock_cid,
};
use protocol::mode::{KEY_MODE, Mode};
use protocol::revision::RevisionWithTime;
use protocol::units::{Bytes, MilliCpu, Resources};
use protocol::vm::VirtualMachine;
use serde::{Serialize, Serializer};

use super::config::{Problem, ScalingConfig, ScalingOverrides};
pub use placement::{Ownership, Placement, placement};

/// Largest number of slots in a bound: the object's own counts are 16 bits wide.
const MAX_SLOTS: u64 = u16::MAX as u64;
/// Largest version that the journal can hold; larger ones are ignored.
const MAX_VERSION: u64 = protocol::journal::MAX_INTEGER.unsigned_abs();

/// CPU of a VM. JSON: `{"min":…,"max":…,"use":…}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CpuInfo {
    /// Lower bound, from the bounds annotation or else `spec.guest.cpus.min`.
    pub min: MilliCpu,
    /// Upper bound, from the bounds annotation or else `spec.guest.cpus.max`.
    pub max: MilliCpu,
    /// CPU in use, from `spec.guest.cpus.use`.
    pub r#use: MilliCpu,
}

/// Memory of a VM; bounds and use are numbers of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemInfo {
    /// Lower bound, from the bounds annotation or else `spec.guest.memorySlots.min`.
    pub min: u32,
    /// Upper bound, from the bounds annotation or else `spec.guest.memorySlots.max`.
    pub max: u32,
    /// Slots in use, from `spec.guest.memorySlots.use`.
    pub r#use: u32,
    /// Size of a slot, bytes; not zero.
    pub slot_size: Bytes,
}

/// Scaling settings of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VmConfig {
    /// Whether the scheduler may migrate the VM.
    pub auto_migration_enabled: bool,
    /// Whether the scheduler migrates the VM whenever it can; for tests.
    pub always_migrate: bool,
    /// Whether the VM has the label for autoscaling.
    pub scaling_enabled: bool,
    /// Content of the config annotation.
    #[serde(rename = "scalingConfig", skip_serializing_if = "Option::is_none")]
    pub overrides: Option<ScalingOverrides>,
    /// Effective settings. The dump shows only their mode, if it is not `full`.
    #[serde(
        rename = "mode",
        serialize_with = "mode_alone",
        skip_serializing_if = "does_all"
    )]
    pub scaling: ScalingConfig,
    /// Mode by the VM's annotations; it wins over the mode of the namespace.
    #[serde(skip)]
    pub own_mode: Option<Mode>,
}

fn does_all(scaling: &ScalingConfig) -> bool {
    scaling.mode == Mode::Full
}

fn mode_alone<S: Serializer>(scaling: &ScalingConfig, serializer: S) -> Result<S::Ok, S::Error> {
    scaling.mode.serialize(serializer)
}

/// A valid VM object, as the core uses it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VmInfo {
    /// Name of the object.
    pub name: String,
    /// Namespace of the object.
    pub namespace: String,
    /// CPU bounds and CPU in use. The bounds annotation overrides the object's bounds.
    pub cpu: CpuInfo,
    /// Memory bounds and memory in use. The bounds annotation overrides the object's bounds.
    pub mem: MemInfo,
    /// Scaling settings, from the object's labels and annotations over the defaults.
    pub config: VmConfig,
    /// `status.currentRevision`: newest revision that the VM has reached; `None` before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<RevisionWithTime>,
    /// Reported size of the guest: `status.cpus` and `status.memorySize`.
    #[serde(skip)]
    pub actual: Option<Resources>,
    /// Number of `spec.targetRevision`; `None` before the first patch.
    #[serde(skip)]
    pub target_revision: Option<i64>,
    /// Newest revision on the object, targeted or reached. New ones continue after it, so that none
    /// is issued twice.
    #[serde(skip)]
    pub last_revision: i64,
    /// `metadata.resourceVersion`, if it is a number. Later states of the object have larger ones.
    #[serde(skip)]
    pub version: Option<u64>,
}

/// Why an object cannot be scaled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VmError {
    /// The object is not a VirtualMachine.
    #[error("the object does not decode: {0}")]
    Object(String),
    /// The bounds annotation is malformed.
    #[error("annotation {ANNOTATION_BOUNDS} does not decode: {0}")]
    Bounds(String),
    /// A bound is zero, negative, uneven or too large.
    #[error("annotation {ANNOTATION_BOUNDS}: {0}")]
    BoundsValue(String),
    /// The config annotation is not a JSON object.
    #[error("annotation {ANNOTATION_CONFIG} does not decode: {0}")]
    Config(String),
    /// Settings in the config annotation have a wrong type or are out of range.
    #[error("annotation {ANNOTATION_CONFIG}: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    ConfigValue(Vec<Problem>),
    /// The mode annotation has another value than the three modes.
    #[error("annotation {KEY_MODE} = {0:?}: must be \"observe\", \"grow\" or \"full\"")]
    Mode(String),
    /// The vsock annotation is not the number of a device.
    #[error(transparent)]
    Vsock(#[from] VsockCidError),
    /// A size in the object is out of range.
    #[error("{0}")]
    Size(String),
}

impl VmInfo {
    /// Reads an object. `default` gives the settings that its annotations leave out. A `use`
    /// outside the bounds is accepted, because a change of bounds comes before the resize.
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
                .ok_or_else(|| {
                    VmError::Size(format!(
                        "spec.guest.memorySlots.{name} = {count}: must be from 0 to {MAX_SLOTS}"
                    ))
                })
        };
        vsock_cid(&vm.metadata.annotations)?;
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
            read::apply_bounds(text, &mut cpu, &mut mem)?;
        }
        read::check_sizes(&cpu, &mem)?;
        let annotation = |key: &str| vm.metadata.annotations.get(key).map(String::as_str);
        let overrides = annotation(ANNOTATION_CONFIG)
            .map(read::overrides)
            .transpose()?;
        let annotated_mode = annotation(KEY_MODE).map(read::mode).transpose()?;
        let own_mode = annotated_mode.or(overrides.and_then(|own| own.mode));
        let own = ScalingOverrides {
            mode: own_mode,
            ..overrides.unwrap_or_default()
        };
        let scaling = own.apply(default).map_err(VmError::ConfigValue)?;
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
                own_mode,
            },
            current_revision: vm
                .status
                .as_ref()
                .and_then(|status| status.current_revision),
            target_revision: vm.spec.target_revision.map(|target| target.revision.value),
            last_revision: read::last_revision(vm),
            version: version_of(&vm.metadata.resource_version),
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

    /// Lower bound of the size.
    #[must_use]
    pub fn min(&self) -> Resources {
        Resources {
            cpu: self.cpu.min,
            mem: self.of_slots(self.mem.min),
        }
    }

    /// Upper bound of the size.
    #[must_use]
    pub fn max(&self) -> Resources {
        Resources {
            cpu: self.cpu.max,
            mem: self.of_slots(self.mem.max),
        }
    }

    /// Whether the reported size equals `use`. A VM without a report counts as arrived.
    #[must_use]
    pub fn has_arrived(&self) -> bool {
        let reached = self
            .current_revision
            .map_or(0, |current| current.revision.value);
        self.actual.is_none_or(|actual| actual == self.using()) && reached >= self.last_revision
    }

    /// `use` of the object as one size.
    #[must_use]
    pub fn using(&self) -> Resources {
        Resources {
            cpu: self.cpu.r#use,
            mem: self.of_slots(self.mem.r#use),
        }
    }

    /// Sets `use`. A part of a slot in `size` is dropped.
    pub fn set_using(&mut self, size: Resources) {
        self.cpu.r#use = size.cpu;
        self.mem.r#use = u32::try_from(size.mem.0 / self.mem.slot_size.0).unwrap_or(u32::MAX);
    }
}

/// The number in a `metadata.resourceVersion`; `None` if it is no number or too large for the
/// journal.
#[must_use]
pub fn version_of(text: &str) -> Option<u64> {
    let version = text.parse().ok()?;
    (version <= MAX_VERSION).then_some(version)
}
