//! Revisions. The agent puts a number beside each size that it requests. The controller copies the
//! number to the status when the guest has that size. Source: docs/compatibility/agent.md §3.9,
//! docs/compatibility/neonvm.md §2.8.

use serde::{Deserialize, Deserializer, Serialize};

use crate::time::WallTime;

/// Flag bit 0: the revision grew something.
pub const FLAG_UPSCALE: u64 = 1;
/// Flag bit 1: the revision shrank something.
pub const FLAG_DOWNSCALE: u64 = 2;

/// `{"value":3,"flags":1}`. Only equality matters to the controller; the agent numbers upwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Revision {
    /// The number, from 1. 0 means that there is no revision.
    pub value: i64,
    /// Bit set of [`FLAG_UPSCALE`] and [`FLAG_DOWNSCALE`].
    pub flags: u64,
}

/// `{"revision":{…},"updatedAt":"2024-01-02T03:04:05Z"}`; both members are required.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct RevisionWithTime {
    /// The number and the flags.
    pub revision: Revision,
    /// Time at which the writer set the revision. The wire has whole seconds.
    #[serde(rename = "updatedAt", deserialize_with = "required")]
    pub updated_at: WallTime,
}

/// Refuses an absent member. A plain [`WallTime`] reads absence as its zero value, like `null`.
fn required<'de, D: Deserializer<'de>>(deserializer: D) -> Result<WallTime, D::Error> {
    WallTime::deserialize(deserializer)
}
