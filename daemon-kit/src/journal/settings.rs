//! Origin and limits of a journal.

use protocol::time::Span;
use protocol::units::Resources;

use super::queue::QueueLimits;
use super::retention::Retention;

/// Origin of a journal; the first line of each segment.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Component that writes: the folder's name.
    pub part: String,
    /// Name of the Kubernetes node.
    pub node: String,
    /// Version of the program that writes.
    pub build: String,
    /// CPU and memory of the compute unit.
    pub compute_unit: Resources,
    /// Start of the program in microseconds since 1970, which identifies its run.
    pub run: u64,
}

/// Limits of segments, syncs, queue and retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Length in bytes at which a segment is ended.
    pub segment_bytes: u64,
    /// Age at which a segment is ended.
    pub segment_age: Span,
    /// Unsynced bytes that trigger a sync.
    pub sync_bytes: u64,
    /// Longest time between two syncs.
    pub sync_every: Span,
    /// Limits of lines that are not written.
    pub queue: QueueLimits,
    /// Limits of segments that are stored.
    pub retention: Retention,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            segment_bytes: 16 << 20,
            segment_age: Span::from_secs(3_600),
            sync_bytes: 64 << 10,
            sync_every: Span::from_secs(1),
            queue: QueueLimits::default(),
            retention: Retention::default(),
        }
    }
}
