//! Metrics of a guest in the form that the core uses. Source: docs/compatibility/agent.md §2.2.

use protocol::exposition::{LfcGauges, SystemGauges};

/// Memory of the guest's kernel that its accounting leaves out, bytes. It counts as usage.
pub const KERNEL_ALLOWANCE_BYTES: f64 = 104_857_600.0;

/// One sample of the guest's system metrics.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SystemMetrics {
    /// Load average over one minute.
    pub load1: f64,
    /// Load average over five minutes.
    pub load5: f64,
    /// Memory in use, bytes: total − available + [`KERNEL_ALLOWANCE_BYTES`].
    pub memory_usage_bytes: f64,
    /// Page cache, bytes.
    pub memory_cached_bytes: f64,
    /// Signals that the guest's monitor pushes.
    pub signals: Signals,
}

/// Signals that a monitor pushes beside the metrics of the guest's page. A signal is present only
/// if the VM's settings give it a vote.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Signals {
    /// Monitor's estimate of the working set, bytes.
    pub estimate_bytes: Option<f64>,
    /// Share of the last ten seconds in which some tasks waited for memory, percent.
    pub pressure_percent: Option<f64>,
}

/// One sample of the local file cache's metrics.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LfcMetrics {
    /// Cache hits since the start of the server.
    pub hits: f64,
    /// Cache misses since the start of the server.
    pub misses: f64,
    /// Cache writes since the start of the server.
    pub writes: f64,
    /// Pages (8 KiB) touched in the last `i + 1` minutes, by index `i`.
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

    /// Requirement: N02
    #[test]
    fn memory_that_is_not_available_counts_as_used() {
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
