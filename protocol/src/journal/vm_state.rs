//! State of a VM that both its records and its checkpoint hold.

use serde::{Deserialize, Serialize};

use super::values::{Decimal, Size, Stamped, is_default};
use crate::mode::Mode;
use crate::monitor_v2::AskReason;

/// Scaling settings, by the names of the annotation `autoscaling.neon.tech/config`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(missing_docs, reason = "the keys of the annotation, one to one")]
pub struct Scaling {
    pub load_average_fraction_target: Decimal,
    pub memory_usage_fraction_target: Decimal,
    pub memory_total_fraction_target: Decimal,
    #[serde(rename = "enableLFCMetrics")]
    pub enable_lfc_metrics: bool,
    pub lfc_use_largest_window: bool,
    pub lfc_to_memory_ratio: Decimal,
    pub lfc_window_size_minutes: u32,
    pub lfc_min_wait_before_downscale_minutes: u32,
    pub cpu_stable_zone_ratio: Decimal,
    pub cpu_mixed_zone_ratio: Decimal,
    #[serde(default, skip_serializing_if = "is_default")]
    pub shrink_step: ShrinkStep,
    #[serde(default, skip_serializing_if = "is_default")]
    pub downscale_margin_units: Decimal,
    #[serde(default, skip_serializing_if = "is_default")]
    pub downscale_hold_seconds: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub downscale_cooldown_seconds: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub upscale_cooldown_seconds: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub enable_monitor_estimate: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub memory_pressure_hold_percent: Decimal,
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: Mode,
}

/// How much less a monitor is asked to agree to at once. Journals older than the setting say
/// nothing, and mean one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShrinkStep {
    /// The agent requests one compute unit less at a time.
    #[default]
    Unit,
    /// The agent requests the whole reduction at once.
    Whole,
}

/// Details of a monitor's upscale request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Wished {
    /// Cause that the monitor gave. `None` in protocol v1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<AskReason>,
    /// Memory that would be enough, bytes. `None` if the monitor gave no size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted: Option<u64>,
}

/// The members of a VM object that the core reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmObject {
    /// Size that the controller reports for the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actual: Option<Size>,
    /// Smallest, largest, in use: milli-CPU.
    pub cpu: [u32; 3],
    /// Newest revision on the object.
    #[serde(default, skip_serializing_if = "is_default")]
    pub last: i64,
    /// Smallest, largest, in use: slots.
    pub mem: [u32; 3],
    /// Whether a migration claims the VM.
    #[serde(default, skip_serializing_if = "is_default")]
    pub migrating: bool,
    /// Scaling settings of the VM. `None`: those of the node apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<Scaling>,
    /// Newest revision that the guest has reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<Stamped>,
    /// Size of one memory slot, bytes.
    pub slot: u64,
    /// Resource version of the object. `None` if it is not a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

/// Number of times that each invariant was broken, as the core counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the core's counters, same names")]
pub struct FaultCounts {
    #[serde(skip_serializing_if = "is_default")]
    pub approved_above_use: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub use_above_permit: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub downscale_below_denied: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub desired_out_of_bounds: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub invalid_permit: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub unknown_reply: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub observation_lost: u64,
}
