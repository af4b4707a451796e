//! Revisions: a number the agent puts beside every size it asks for, and the controller copies to
//! the status when the guest has that size. Source: docs/compatibility/agent.md §3.9,
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
    /// The number; 0 is "none yet".
    pub value: i64,
    /// [`FLAG_UPSCALE`] | [`FLAG_DOWNSCALE`].
    pub flags: u64,
}

/// `{"revision":{…},"updatedAt":"2024-01-02T03:04:05Z"}`; both members are required.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct RevisionWithTime {
    /// The revision.
    pub revision: Revision,
    /// When it was set, whole seconds on the wire.
    #[serde(rename = "updatedAt", deserialize_with = "required")]
    pub updated_at: WallTime,
}

/// A time alone takes an absent member for its zero, as it does `null`; here the member must be
/// there.
fn required<'de, D: Deserializer<'de>>(deserializer: D) -> Result<WallTime, D::Error> {
    WallTime::deserialize(deserializer)
}
