//! What is measured in a guest, as the core reads it. Source: spec/agent.md §2.2.

use serde::Serialize;

/// What the guest's kernel holds beside what its own accounting shows, added to memory usage, bytes.
pub const KERNEL_ALLOWANCE_BYTES: f64 = 104_857_600.0;

/// One sample of the system metrics.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct SystemMetrics {
    /// Load average over one minute.
    pub load1: f64,
    /// Load average over five minutes.
    pub load5: f64,
    /// Bytes in use: total − available + [`KERNEL_ALLOWANCE_BYTES`].
    pub memory_usage_bytes: f64,
    /// Bytes of page cache.
    pub memory_cached_bytes: f64,
}

/// One sample of the local file cache's metrics.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct LfcMetrics {
    /// Hits since start.
    pub hits: f64,
    /// Misses since start.
    pub misses: f64,
    /// Writes since start.
    pub writes: f64,
    /// `[i]` = pages (8 KiB) touched over the last `i + 1` minutes.
    pub working_set_pages: Vec<f64>,
}
