//! What the core is configured with. Source: docs/compatibility/agent.md §3.11.

use protocol::time::Span;
use protocol::units::Resources;
use serde::Serialize;

pub use super::scaling::{Problem, ScalingConfig, ScalingOverrides, ShrinkStep};

/// Every wait of the state machine. Defaults are the shipped ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Timers {
    /// Longest time between two permit requests.
    pub plugin_request_tick: Span,
    /// Pause after a permit request that failed.
    pub plugin_retry_wait: Span,
    /// Pause after a permit below what was asked.
    pub plugin_denied_retry_wait: Span,
    /// Pause after a patch that failed.
    pub neonvm_retry_wait: Span,
    /// Pause after a monitor call that failed.
    pub monitor_retry_wait: Span,
    /// How long a refused shrink holds the size.
    pub monitor_denied_downscale_cooldown: Span,
    /// How long the monitor's wish holds the size.
    pub monitor_requested_upscale_valid_period: Span,
    /// How long after a permit that announced a migration an answer without the announcement is not
    /// believed.
    pub migration_hold: Span,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            plugin_request_tick: Span::from_secs(15),
            plugin_retry_wait: Span::from_secs(3),
            plugin_denied_retry_wait: Span::from_secs(2),
            neonvm_retry_wait: Span::from_secs(5),
            monitor_retry_wait: Span::from_secs(3),
            monitor_denied_downscale_cooldown: Span::from_secs(5),
            monitor_requested_upscale_valid_period: Span::from_secs(10),
            migration_hold: Span::from_secs(60),
        }
    }
}

/// What one core is made with.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CoreConfig {
    /// Sizes are whole multiples of it. Neither field is zero.
    pub compute_unit: Resources,
    /// Scaling settings of VMs without their own.
    pub default_scaling: ScalingConfig,
    /// Waits between requests, and how long a monitor's request or refusal holds a size.
    pub timers: Timers,
    /// Age from which system metrics count as missing; `None` = never.
    pub system_max_age: Option<Span>,
    /// Age from which file cache metrics count as missing; `None` = never.
    pub lfc_max_age: Option<Span>,
}
