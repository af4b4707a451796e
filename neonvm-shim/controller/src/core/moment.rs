//! The time that a core decides by and the time that it writes into objects.

use protocol::time::{Timestamp, WallTime};
use serde::Serialize;

/// One instant on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Moment {
    /// Monotonic time. Deadlines and pauses compare it.
    pub now: Timestamp,
    /// Calendar time. Objects and messages carry it.
    pub wall: WallTime,
}
