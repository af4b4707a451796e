//! `K`: everything the core of one VM needs to go on from here.

use serde::{Deserialize, Serialize};

use super::pack::Block;
use super::policy::Terms;
use super::values::{Issued, Size, Stamped, is_default};
use super::vm_state::{FaultCounts, VmObject, Wished};
use crate::policy::Fault;

/// State of one VM's core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// State of the hold that damps a load which rises and falls.
    #[serde(default, skip_serializing_if = "is_default")]
    pub calm: CalmPart,
    /// Number of broken invariants since the core started.
    #[serde(default, skip_serializing_if = "is_default")]
    pub faults: FaultCounts,
    /// Issue times of the newest revisions, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub issued: Vec<u64>,
    /// Newest metrics of each kind, with the time of their arrival.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Block>,
    /// State towards the monitor.
    #[serde(default, skip_serializing_if = "is_default")]
    pub monitor: MonitorPart,
    /// Key of the VM: `namespace/name`.
    pub name: String,
    /// Number that the next request gets.
    pub next: u64,
    /// VM object as the core holds it.
    pub obj: VmObject,
    /// State towards the VM object.
    #[serde(default, skip_serializing_if = "is_default")]
    pub patch: PatchPart,
    /// State towards the scheduler.
    #[serde(default, skip_serializing_if = "is_default")]
    pub plugin: PluginPart,
    /// State of the policy that decides. Absent without one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub policy: PolicyPart,
    /// Newest revision that the core has issued. 0 if there is none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rev: i64,
    /// Time on the writer's clock, microseconds.
    pub t: u64,
    /// Revision of the newest desired size.
    #[serde(default, skip_serializing_if = "is_default")]
    pub target: Stamped,
    /// Interval of the heartbeat, microseconds.
    pub tick: u64,
    /// Number of the VM within the run of the writer.
    pub vm: u32,
    /// Newest desired size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub want: Option<Size>,
    /// Conditions to record with the next decision, one bit each.
    #[serde(default, skip_serializing_if = "is_default")]
    pub warn: u32,
}

/// Times that damp a load which rises and falls, microseconds on the writer's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CalmPart {
    /// Time since which the goal has been below the size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub below: Option<u64>,
    /// Time of the newest growth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grown: Option<u64>,
    /// Time of the newest shrink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shrunk: Option<u64>,
}

/// State of the policy that decides. Times are microseconds on the writer's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyPart {
    /// Time since which the policy is asked.
    #[serde(skip_serializing_if = "is_default")]
    pub asked: u64,
    /// Credit for shrinks: 60,000,000 are a compute unit.
    #[serde(skip_serializing_if = "is_default")]
    pub credit: u64,
    /// Time up to which `credit` is counted.
    #[serde(skip_serializing_if = "is_default")]
    pub credited: u64,
    /// Whether the built-in goal has taken over.
    #[serde(skip_serializing_if = "is_default")]
    pub fallen: bool,
    /// First fault since the newest answer: its time, and the kind of the newest one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<(u64, Fault)>,
    /// Newest answer without a fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<LastAdvice>,
    /// Limits in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terms: Option<Terms>,
}

/// Newest answer of the policy that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastAdvice {
    /// Time of the answer, microseconds on the writer's clock.
    pub at: u64,
    /// Compute units. `None`: the answer was to hold the size in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cu: Option<u32>,
}

/// State towards the scheduler. Times are microseconds on the writer's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PluginPart {
    /// Time of the newest failed request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<u64>,
    /// Newest request: its time, its size and the revision that it serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<(u64, Size, Stamped)>,
    /// Time at which the scheduler announced a migration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migrating: Option<u64>,
    /// Number of the request in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ongoing: Option<u64>,
    /// Size that the scheduler permits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permit: Option<Size>,
    /// Newest revision that the scheduler has answered.
    #[serde(skip_serializing_if = "is_default")]
    pub rev: Issued,
    /// Whether the newest request got no usable response.
    #[serde(skip_serializing_if = "is_default")]
    pub unanswered: bool,
}

/// State towards the VM object. Times are microseconds on the writer's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PatchPart {
    /// Time of the newest failed patch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<u64>,
    /// Time of the newest patch that succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<u64>,
    /// The guest may be on its way from another size, or was since the VM is watched.
    #[serde(skip_serializing_if = "is_default")]
    pub moved: bool,
    /// Patch in flight: its number and its size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ongoing: Option<(u64, Size)>,
    /// Newest revision that the guest has reached.
    #[serde(skip_serializing_if = "is_default")]
    pub rev: Issued,
    /// The newest state of the object seen while a patch is under way: its version and its size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<(u64, Size)>,
    /// Revision of the newest patch.
    #[serde(skip_serializing_if = "is_default")]
    pub target: Stamped,
    /// The smallest and the largest size the VM may have after answers were lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncertain: Option<(Size, Size)>,
    /// The newest version of the object whose size is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

/// A range of sizes, lowest and highest, that the monitor may rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval(pub Size, pub Size);

/// An upscale request of the monitor: its time, the size at that time, and its details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpscaleRecord(pub u64, pub Size, pub Wished);

/// A refusal of the monitor: its time, the size at that time, and the refused size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial(pub u64, pub Size, pub Size);

/// A request to the monitor in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ongoing {
    /// Number of the request within its core.
    pub id: u64,
    /// Revision of the desired size that the request serves.
    pub rev: Stamped,
    /// Size in the request.
    pub size: Size,
    /// Whether the request is an upscale notification. Else it is a downscale request.
    #[serde(default, skip_serializing_if = "is_default")]
    pub up: bool,
}

/// State towards the monitor. Times are microseconds on the writer's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MonitorPart {
    /// Microseconds after which it would have a size asked again that it refused, where it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub again: Option<u64>,
    /// Range that the monitor has approved. `None` without a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved: Option<Approval>,
    /// Newest refusal of a shrink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied: Option<Denial>,
    /// Whether the monitor may rely on more than the VM has.
    #[serde(skip_serializing_if = "is_default")]
    pub doubt: bool,
    /// Time of the newest downscale request that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_failed: Option<u64>,
    /// The smallest size it would have had when it refused, where it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least: Option<Size>,
    /// Request in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ongoing: Option<Ongoing>,
    /// Newest revision that the monitor has acknowledged.
    #[serde(skip_serializing_if = "is_default")]
    pub rev: Issued,
    /// Time of the newest upscale notification that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_failed: Option<u64>,
    /// Newest upscale request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wish: Option<UpscaleRecord>,
}
