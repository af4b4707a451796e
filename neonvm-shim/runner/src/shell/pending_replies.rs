//! Replies to accepted orders, and the record and log line that precede them.
//!
//! The driver begins an order first: it writes file and log while QEMU works, so that they do not
//! delay the guest. A runner that dies in between has not replied, and its client repeats the
//! order.

use super::input::ReplySender;

/// Replies that are due at the end of the driver's turn.
#[derive(Debug, Default)]
pub(super) struct PendingReplies {
    /// The record differs from its file.
    pub(super) is_unwritten: bool,
    /// The order is not in the log.
    pub(super) is_unlogged: bool,
    /// Clients that wait for an accepted order.
    pub(super) replies: Vec<ReplySender>,
}
