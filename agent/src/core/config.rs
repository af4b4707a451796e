//! What the core is configured with. Source: spec/agent.md §3.11, §5.3.

use std::collections::BTreeMap;

use protocol::time::Span;
use protocol::units::Resources;
use serde::{Deserialize, Serialize};

/// Longest series of working-set windows that makes sense, minutes: a week.
const MAX_WINDOW_MINUTES: i64 = 10_080;

/// How metrics become a goal. Defaults are the shipped ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ScalingConfig {
    /// Share of a unit's CPU the load should fill, over 0 and below 2.
    pub load_average_fraction_target: f64,
    /// Share of memory that usage should fill, over 0 and below 1.
    pub memory_usage_fraction_target: f64,
    /// Share of memory that usage and working set together should fill, over 0 and below 1.
    pub memory_total_fraction_target: f64,
    /// Whether the local file cache is asked for metrics.
    #[serde(rename = "enableLFCMetrics")]
    pub enable_lfc_metrics: bool,
    /// Take the last window instead of looking for the plateau.
    pub lfc_use_largest_window: bool,
    /// Share of memory the file cache gets, over 0.
    pub lfc_to_memory_ratio: f64,
    /// Minutes over which the curve's slope is compared, at least 2.
    pub lfc_window_size_minutes: u32,
    /// Minutes of history that must have been quiet, at least the window.
    pub lfc_min_wait_before_downscale_minutes: u32,
    /// Width, as a share of load5, in which load1 is ignored.
    pub cpu_stable_zone_ratio: f64,
    /// Width beyond it in which load1 and load5 are mixed.
    pub cpu_mixed_zone_ratio: f64,
}

impl Default for ScalingConfig {
    fn default() -> Self {
        Self {
            load_average_fraction_target: 0.9,
            memory_usage_fraction_target: 0.75,
            memory_total_fraction_target: 0.9,
            enable_lfc_metrics: false,
            lfc_use_largest_window: false,
            lfc_to_memory_ratio: 0.75,
            lfc_window_size_minutes: 5,
            lfc_min_wait_before_downscale_minutes: 5,
            cpu_stable_zone_ratio: 0.0,
            cpu_mixed_zone_ratio: 0.0,
        }
    }
}

/// A value that breaks a rule: which key, what it is, what it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path of the key.
    pub key: String,
    /// The value as text.
    pub value: String,
    /// What it must be.
    pub rule: &'static str,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} = {}: {}", self.key, self.value, self.rule)
    }
}

/// Content of the annotation `autoscaling.neon.tech/config`: any subset of [`ScalingConfig`]'s keys.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the keys of ScalingConfig, one to one")]
pub struct ScalingOverrides {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_average_fraction_target: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_usage_fraction_target: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_total_fraction_target: Option<f64>,
    #[serde(rename = "enableLFCMetrics", skip_serializing_if = "Option::is_none")]
    pub enable_lfc_metrics: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lfc_use_largest_window: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lfc_to_memory_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lfc_window_size_minutes: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lfc_min_wait_before_downscale_minutes: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_stable_zone_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_mixed_zone_ratio: Option<f64>,
}

impl ScalingOverrides {
    /// `base` with each present key replaced.
    ///
    /// # Errors
    /// Every [`Problem`] of the merged result, keys without a path.
    pub fn apply(&self, base: &ScalingConfig) -> Result<ScalingConfig, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut minutes = |key: &str, given: Option<i64>, base: u32| match given {
            None => base,
            Some(n) if (0..=MAX_WINDOW_MINUTES).contains(&n) => u32::try_from(n).unwrap_or(base),
            Some(n) => {
                let rule = "must be from 0 to 10080 minutes";
                problems.push(Problem {
                    key: key.into(),
                    value: n.to_string(),
                    rule,
                });
                base
            }
        };
        let merged = ScalingConfig {
            lfc_window_size_minutes: minutes(
                "lfcWindowSizeMinutes",
                self.lfc_window_size_minutes,
                base.lfc_window_size_minutes,
            ),
            lfc_min_wait_before_downscale_minutes: minutes(
                "lfcMinWaitBeforeDownscaleMinutes",
                self.lfc_min_wait_before_downscale_minutes,
                base.lfc_min_wait_before_downscale_minutes,
            ),
            load_average_fraction_target: self
                .load_average_fraction_target
                .unwrap_or(base.load_average_fraction_target),
            memory_usage_fraction_target: self
                .memory_usage_fraction_target
                .unwrap_or(base.memory_usage_fraction_target),
            memory_total_fraction_target: self
                .memory_total_fraction_target
                .unwrap_or(base.memory_total_fraction_target),
            enable_lfc_metrics: self.enable_lfc_metrics.unwrap_or(base.enable_lfc_metrics),
            lfc_use_largest_window: self
                .lfc_use_largest_window
                .unwrap_or(base.lfc_use_largest_window),
            lfc_to_memory_ratio: self.lfc_to_memory_ratio.unwrap_or(base.lfc_to_memory_ratio),
            cpu_stable_zone_ratio: self
                .cpu_stable_zone_ratio
                .unwrap_or(base.cpu_stable_zone_ratio),
            cpu_mixed_zone_ratio: self
                .cpu_mixed_zone_ratio
                .unwrap_or(base.cpu_mixed_zone_ratio),
        };
        if problems.is_empty() {
            problems = merged.problems();
        }
        if problems.is_empty() {
            Ok(merged)
        } else {
            Err(problems)
        }
    }

    /// The keys of `defaultConfig` that must be present and are not.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        let present = BTreeMap::from([
            (
                "loadAverageFractionTarget",
                self.load_average_fraction_target.is_some(),
            ),
            (
                "memoryUsageFractionTarget",
                self.memory_usage_fraction_target.is_some(),
            ),
            (
                "memoryTotalFractionTarget",
                self.memory_total_fraction_target.is_some(),
            ),
            ("enableLFCMetrics", self.enable_lfc_metrics.is_some()),
            ("lfcToMemoryRatio", self.lfc_to_memory_ratio.is_some()),
            (
                "lfcWindowSizeMinutes",
                self.lfc_window_size_minutes.is_some(),
            ),
            (
                "lfcMinWaitBeforeDownscaleMinutes",
                self.lfc_min_wait_before_downscale_minutes.is_some(),
            ),
            ("cpuStableZoneRatio", self.cpu_stable_zone_ratio.is_some()),
            ("cpuMixedZoneRatio", self.cpu_mixed_zone_ratio.is_some()),
        ]);
        present
            .into_iter()
            .filter(|(_, is_present)| !is_present)
            .map(|(key, _)| key)
            .collect()
    }
}

impl ScalingConfig {
    /// Every rule it breaks; empty when it may be used.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let over_0 = |below: f64| move |value: f64| value > 0.0 && value < below;
        let not_negative = |value: f64| value >= 0.0 && value.is_finite();
        let floats: [(&str, f64, bool, &'static str); 6] = [
            (
                "loadAverageFractionTarget",
                self.load_average_fraction_target,
                over_0(2.0)(self.load_average_fraction_target),
                "must be over 0 and below 2",
            ),
            (
                "memoryUsageFractionTarget",
                self.memory_usage_fraction_target,
                over_0(1.0)(self.memory_usage_fraction_target),
                "must be over 0 and below 1",
            ),
            (
                "memoryTotalFractionTarget",
                self.memory_total_fraction_target,
                over_0(1.0)(self.memory_total_fraction_target),
                "must be over 0 and below 1",
            ),
            (
                "lfcToMemoryRatio",
                self.lfc_to_memory_ratio,
                over_0(f64::INFINITY)(self.lfc_to_memory_ratio),
                "must be over 0",
            ),
            (
                "cpuStableZoneRatio",
                self.cpu_stable_zone_ratio,
                not_negative(self.cpu_stable_zone_ratio),
                "must be 0 or more",
            ),
            (
                "cpuMixedZoneRatio",
                self.cpu_mixed_zone_ratio,
                not_negative(self.cpu_mixed_zone_ratio),
                "must be 0 or more",
            ),
        ];
        let mut problems: Vec<Problem> = floats
            .into_iter()
            .filter(|(_, _, is_good, _)| !is_good)
            .map(|(key, value, _, rule)| Problem {
                key: key.into(),
                value: value.to_string(),
                rule,
            })
            .collect();
        let (window, wait) = (
            self.lfc_window_size_minutes,
            self.lfc_min_wait_before_downscale_minutes,
        );
        if window < 2 {
            problems.push(Problem {
                key: "lfcWindowSizeMinutes".into(),
                value: window.to_string(),
                rule: "must be at least 2",
            });
        }
        if wait < window {
            problems.push(Problem {
                key: "lfcMinWaitBeforeDownscaleMinutes".into(),
                value: wait.to_string(),
                rule: "must be at least lfcWindowSizeMinutes",
            });
        }
        problems
    }
}

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
    /// How long after a permit that announced a migration an answer without the announcement is not believed.
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
    /// The waits.
    pub timers: Timers,
    /// Age from which system metrics count as missing; `None` = never.
    pub system_max_age: Option<Span>,
    /// Age from which file cache metrics count as missing; `None` = never.
    pub lfc_max_age: Option<Span>,
}
