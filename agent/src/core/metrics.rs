//! What is measured in a guest, as the core reads it. Source: docs/compatibility/agent.md §2.2.

use protocol::exposition::{LfcGauges, SystemGauges};
use serde::Serialize;

/// What the guest's kernel holds beside what its own accounting shows, added to memory usage,
/// bytes.
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
    /// What else the guest's monitor says, where it has a vote.
    #[serde(flatten)]
    pub signals: Signals,
}

/// What a guest's page does not show and its monitor pushes. A signal is here only if the VM's
/// settings give it a vote.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Signals {
    /// The working set as the monitor estimates it, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate_bytes: Option<f64>,
    /// Share of the last ten seconds in which some tasks waited for memory, percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure_percent: Option<f64>,
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

impl From<SystemGauges> for SystemMetrics {
    fn from(page: SystemGauges) -> Self {
        let used = (page.memory_total_bytes - page.memory_available_bytes).max(0.0);
        Self {
            load1: page.load1,
            load5: page.load5,
            memory_usage_bytes: used + KERNEL_ALLOWANCE_BYTES,
            memory_cached_bytes: page.memory_cached_bytes,
            signals: Signals::default(),
        }
    }
}

impl From<LfcGauges> for LfcMetrics {
    fn from(page: LfcGauges) -> Self {
        Self {
            hits: page.hits,
            misses: page.misses,
            writes: page.writes,
            working_set_pages: page.working_set_pages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n02_what_is_not_available_is_in_use() {
        let mut page = SystemGauges {
            load1: 1.25,
            load5: 0.75,
            memory_total_bytes: 4_294_967_296.0,
            memory_available_bytes: 3_221_225_472.0,
            memory_cached_bytes: 268_435_456.0,
        };
        let metrics = SystemMetrics {
            load1: 1.25,
            load5: 0.75,
            memory_usage_bytes: 1_073_741_824.0 + 104_857_600.0,
            memory_cached_bytes: 268_435_456.0,
            signals: Signals::default(),
        };
        assert_eq!(SystemMetrics::from(page), metrics);
        page.memory_available_bytes *= 2.0;
        let none = SystemMetrics::from(page).memory_usage_bytes;
        assert!((none - KERNEL_ALLOWANCE_BYTES).abs() < 1.0);
    }
}
