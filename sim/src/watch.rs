//! Watches: each reader gets the changes of a kind in order, sometimes late; a stream that broke
//! begins again with a list.

mod streams;

use protocol::time::{Span, Timestamp};

use crate::store::Object;

/// Shortest and longest pause before a broken watch lists again.
pub(crate) const RELIST_PAUSE: (Span, Span) = (Span::from_millis(500), Span::from_secs(1));

/// A stream of changes.
#[derive(Debug, Clone, Copy, Default)]
pub struct StreamState {
    /// Which one since the beginning; what comes from an older one is not read any more.
    pub epoch: u64,
    /// Whether a list was asked for, so that changes follow it.
    pub live: bool,
    /// Nothing is read before what was sent earlier.
    pub last: Timestamp,
    /// Nothing is read before this time: the stream stands still.
    pub stalled_until: Timestamp,
}

/// The node a VM says it runs on.
#[must_use]
pub(crate) fn node_of(object: &Object) -> Option<usize> {
    number_of(object.value["status"]["node"].as_str()?)
}

/// The number of a node's name.
#[must_use]
pub(crate) fn number_of(node: &str) -> Option<usize> {
    node.strip_prefix("node-")?.parse().ok()
}
