//! A request for growth, as the monitor remembers it.

use protocol::time::Timestamp;
use protocol::units::Bytes;
use serde::Serialize;

pub use protocol::monitor_v2::AskReason;

/// A request for growth, with the readings that it rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct GrowthRequest {
    /// Monotonic time of the request; a second request within `upscale_interval` is not sent.
    pub at: Timestamp,
    /// Trigger that caused the request. With `ask_details` agreed, it goes to the agent.
    pub reason: AskReason,
    /// Newest reading of memory use at that time; `None` before the session's first reading.
    pub used: Option<Bytes>,
    /// The threshold then.
    pub threshold: Option<Bytes>,
    /// How fast use climbed, bytes a second.
    pub climb: u64,
}
