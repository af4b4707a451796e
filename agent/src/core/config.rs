//! Configuration of a core. Source: docs/compatibility/agent.md §3.11.

use protocol::time::Span;
use protocol::units::Resources;

pub use super::scaling::{Problem, ScalingConfig, ScalingOverrides, ShrinkStep};

/// Waits of the state machine. Defaults are those of the shipped configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timers {
    /// Longest time between two permit requests: the heartbeat.
    pub permit_request_tick: Span,
    /// Pause after a permit request that failed.
    pub permit_retry_wait: Span,
    /// Pause after a permit below the requested size.
    pub permit_denied_retry_wait: Span,
    /// Pause after a patch that failed.
    pub vm_patch_retry_wait: Span,
    /// Pause after a monitor request that failed.
    pub monitor_retry_wait: Span,
    /// How long a refused shrink holds the size.
    pub monitor_denied_downscale_cooldown: Span,
    /// How long a monitor's upscale request holds the size.
    pub monitor_requested_upscale_valid_period: Span,
    /// How long an announced migration holds the size, even if a later permit does not announce it.
    pub migration_hold: Span,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            permit_request_tick: Span::from_secs(15),
            permit_retry_wait: Span::from_secs(3),
            permit_denied_retry_wait: Span::from_secs(2),
            vm_patch_retry_wait: Span::from_secs(5),
            monitor_retry_wait: Span::from_secs(3),
            monitor_denied_downscale_cooldown: Span::from_secs(5),
            monitor_requested_upscale_valid_period: Span::from_secs(10),
            migration_hold: Span::from_secs(60),
        }
    }
}

/// Configuration of one VM's core.
#[derive(Debug, Clone, Copy, PartialEq)]
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
