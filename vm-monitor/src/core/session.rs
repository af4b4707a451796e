//! The agent being served, and the limit of texts to it.

use protocol::monitor::Version;
use protocol::monitor_v2::Capabilities;
use serde::Serialize;

use super::event::ConnectionId;

/// Longest text in an answer, bytes: the agent drops a connection on frames past 32 KiB, and people
/// read these.
pub const TEXT_LIMIT_BYTES: usize = 1000;

/// The agent being served.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Session {
    pub(super) connection: ConnectionId,
    pub(super) version: Version,
    pub(super) capabilities: Capabilities,
    pub(super) next_id: u64,
}

/// Cuts a text to [`TEXT_LIMIT_BYTES`], at the end of a character.
pub(super) fn shorten(mut text: String) -> String {
    if text.len() > TEXT_LIMIT_BYTES {
        text.truncate(text.floor_char_boundary(TEXT_LIMIT_BYTES));
    }
    text
}
