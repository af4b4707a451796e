//! `K`: everything the core of one VM needs to go on from here.

use serde::{Deserialize, Serialize};

use super::pack::Block;
use super::record::{FaultCounts, Size, VmObject, Wished, is_default};
use crate::revision::Revision;

/// A revision and when it was set, on the writer's clock: `[value, flags, microseconds]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stamped(pub i64, pub u64, pub u64);

/// A revision alone: `[value, flags]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Issued(pub i64, pub u64);

impl From<Revision> for Issued {
    fn from(revision: Revision) -> Self {
        Self(revision.value, revision.flags)
    }
}

impl From<Issued> for Revision {
    fn from(issued: Issued) -> Self {
        Self {
            value: issued.0,
            flags: issued.1,
        }
    }
}

/// State of one VM's core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// What keeps it calm.
    #[serde(default, skip_serializing_if = "is_default")]
    pub calm: CalmPart,
    /// Broken invariants so far.
    #[serde(default, skip_serializing_if = "is_default")]
    pub faults: FaultCounts,
    /// Issue times of the newest revisions, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub issued: Vec<u64>,
    /// The newest metrics of each kind, at the time each came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Block>,
    /// The monitor's side.
    #[serde(default, skip_serializing_if = "is_default")]
    pub monitor: MonitorPart,
    /// `namespace/name` of the VM.
    pub name: String,
    /// Number of the next request.
    pub next: u64,
    /// The VM as the core holds it.
    pub obj: VmObject,
    /// The object's side.
    #[serde(default, skip_serializing_if = "is_default")]
    pub patch: PatchPart,
    /// The scheduler's side.
    #[serde(default, skip_serializing_if = "is_default")]
    pub plugin: PluginPart,
    /// Last revision issued.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rev: i64,
    /// When.
    pub t: u64,
    /// The newest wish.
    #[serde(default, skip_serializing_if = "is_default")]
    pub target: Stamped,
    /// The heartbeat's wait, microseconds.
    pub tick: u64,
    /// The VM's number.
    pub vm: u32,
    /// The size last wished for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub want: Option<Size>,
    /// Conditions to be told with the next decision, a bit each.
    #[serde(default, skip_serializing_if = "is_default")]
    pub warn: u16,
}

/// What keeps a VM calm whose load goes up and down: times on the writer's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CalmPart {
    /// Since when its goal has been below its size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub below: Option<u64>,
    /// When it last grew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grown: Option<u64>,
    /// When it last shrank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shrunk: Option<u64>,
}

/// What is known of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PluginPart {
    /// When the last request failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<u64>,
    /// The newest request: when, what, for which wish.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<(u64, Size, Stamped)>,
    /// Since when a migration is announced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migrating: Option<u64>,
    /// The request under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ongoing: Option<u64>,
    /// The permit held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permit: Option<Size>,
    /// The revision acknowledged.
    #[serde(skip_serializing_if = "is_default")]
    pub rev: Issued,
    /// The newest request got no usable answer.
    #[serde(skip_serializing_if = "is_default")]
    pub unanswered: bool,
}

/// What is known of the VM object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PatchPart {
    /// When the last patch failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<u64>,
    /// When the last patch succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<u64>,
    /// The guest may be on its way from another size, or was since the VM is watched.
    #[serde(skip_serializing_if = "is_default")]
    pub moved: bool,
    /// The patch under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ongoing: Option<(u64, Size)>,
    /// The revision reached.
    #[serde(skip_serializing_if = "is_default")]
    pub rev: Issued,
    /// The newest state of the object seen while a patch is under way: its version and its size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<(u64, Size)>,
    /// The revision of the newest patch.
    #[serde(skip_serializing_if = "is_default")]
    pub target: Stamped,
    /// The smallest and the largest size the VM may have after answers were lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncertain: Option<(Size, Size)>,
    /// The newest version of the object whose size is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

/// A range of sizes the monitor may count on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval(pub Size, pub Size);

/// A wish: when, above what, and what was said with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish(pub u64, pub Size, pub Wished);

/// A refusal: when, what the monitor had, what it refused to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial(pub u64, pub Size, pub Size);

/// A call under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ongoing {
    /// The core's number of it.
    pub id: u64,
    /// The wish it serves.
    pub rev: Stamped,
    /// What is asked or told.
    pub size: Size,
    /// Whether it tells of more.
    #[serde(default, skip_serializing_if = "is_default")]
    pub up: bool,
}

/// What is known of the monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MonitorPart {
    /// Microseconds after which it would have a size asked again that it refused, where it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub again: Option<u64>,
    /// What it agreed to; absent without a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved: Option<Approval>,
    /// The newest refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied: Option<Denial>,
    /// It may count on more than there is.
    #[serde(skip_serializing_if = "is_default")]
    pub doubt: bool,
    /// When a shrink last failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_failed: Option<u64>,
    /// The smallest size it would have had when it refused, where it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least: Option<Size>,
    /// The call under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ongoing: Option<Ongoing>,
    /// The revision acknowledged.
    #[serde(skip_serializing_if = "is_default")]
    pub rev: Issued,
    /// When telling of more last failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_failed: Option<u64>,
    /// The newest wish.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wish: Option<Wish>,
}
