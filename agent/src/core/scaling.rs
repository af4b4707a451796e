//! Scaling settings: the node's defaults, and the keys that a VM's annotation overrides. Source:
//! docs/compatibility/agent.md §1.3, §5.3.
//!
//! Keys marked as ours are unknown to the deployed agent. All of them are optional. Without them
//! decisions equal the deployed agent's, except for [`ShrinkStep`].

use std::collections::BTreeMap;

use protocol::mode::Mode;
use serde::Serialize;
use serde_json::{Map, Value};

/// Upper bound of the working-set windows, minutes: a week.
const MAX_WINDOW_MINUTES: u32 = 10_080;
/// Upper bound of each stabilization time, seconds: a day.
const MAX_STABILIZATION_SECONDS: u32 = 86_400;
/// Upper bound of the downscale margin, compute units.
const MAX_MARGIN_UNITS: f64 = 64.0;
/// Longest piece of a value shown in a problem, characters.
const SHOWN: usize = 80;

const MINUTES_RULE: &str = "must be from 0 to 10080 minutes";
const SECONDS_RULE: &str = "must be from 0 to 86400 seconds";
const MODE_RULE: &str = "must be \"observe\", \"grow\" or \"full\"";
const STEP_RULE: &str = "must be \"unit\" or \"whole\"";

/// Length of one downscale request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ShrinkStep {
    /// The whole way. After a refusal the next request is for the smallest size that the monitor
    /// named, or else for half of the step. Later the last refused size comes first, so a monitor
    /// that keeps refusing gets one request per cooldown.
    #[default]
    Whole,
    /// One compute unit, as the deployed agent does.
    Unit,
}

impl ShrinkStep {
    fn of(label: &str) -> Option<Self> {
        match label {
            "whole" => Some(Self::Whole),
            "unit" => Some(Self::Unit),
            _ => None,
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Settings from metrics to size. Defaults are those of the shipped configuration.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ScalingConfig {
    /// Share of a unit's CPU that the load should fill, above 0 and below 2.
    pub load_average_fraction_target: f64,
    /// Share of memory that usage should fill, above 0 and below 1.
    pub memory_usage_fraction_target: f64,
    /// Share of memory that usage and working set should fill together, above 0 and below 1.
    pub memory_total_fraction_target: f64,
    /// Whether metrics of the local file cache are scraped.
    #[serde(rename = "enableLFCMetrics")]
    pub enable_lfc_metrics: bool,
    /// Use the last window instead of the plateau.
    pub lfc_use_largest_window: bool,
    /// Share of memory that the file cache gets, above 0.
    pub lfc_to_memory_ratio: f64,
    /// Length of the windows whose slopes are compared, minutes, at least 2.
    pub lfc_window_size_minutes: u32,
    /// Minutes of the curve before the first possible plateau, at least the window.
    pub lfc_min_wait_before_downscale_minutes: u32,
    /// Difference of the averages, as a share of `load5`, up to which `load1` is ignored.
    pub cpu_stable_zone_ratio: f64,
    /// Further difference in which `load1` and `load5` are mixed.
    pub cpu_mixed_zone_ratio: f64,
    /// Ours: length of one downscale request.
    #[serde(skip_serializing_if = "is_default")]
    pub shrink_step: ShrinkStep,
    /// Ours: the VM shrinks only to a size with this margin above every vote, compute units; 0 =
    /// none.
    #[serde(skip_serializing_if = "is_default")]
    pub downscale_margin_units: f64,
    /// Ours: the VM shrinks after the goal was below the size for this time, seconds; 0 = at once.
    #[serde(skip_serializing_if = "is_default")]
    pub downscale_hold_seconds: u32,
    /// Ours: time after a growth without a shrink, seconds.
    #[serde(skip_serializing_if = "is_default")]
    pub downscale_cooldown_seconds: u32,
    /// Ours: time after a shrink without a growth by load alone, seconds. Growth for memory or the
    /// monitor is never delayed.
    #[serde(skip_serializing_if = "is_default")]
    pub upscale_cooldown_seconds: u32,
    /// Ours: whether the monitor's estimate of the working set has a vote (version 2 of the link).
    #[serde(skip_serializing_if = "is_default")]
    pub enable_monitor_estimate: bool,
    /// Ours: the VM does not shrink while tasks wait for memory for more than this share of ten
    /// seconds, percent; 0 = no limit (version 2 of the link).
    #[serde(skip_serializing_if = "is_default")]
    pub memory_pressure_hold_percent: f64,
    /// Ours: which changes of size the agent makes.
    #[serde(skip_serializing_if = "is_default")]
    pub mode: Mode,
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
            shrink_step: ShrinkStep::Whole,
            downscale_margin_units: 0.0,
            downscale_hold_seconds: 0,
            downscale_cooldown_seconds: 0,
            upscale_cooldown_seconds: 0,
            enable_monitor_estimate: false,
            memory_pressure_hold_percent: 0.0,
            mode: Mode::Full,
        }
    }
}

/// A setting that breaks a rule. Displayed as `KEY = VALUE: RULE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path of the key, with dots.
    pub key: String,
    /// The value as JSON text, at most 80 characters.
    pub value: String,
    /// The rule, for example `must be at least 2`.
    pub rule: &'static str,
}

impl Problem {
    fn new(key: &str, value: &impl ToString, rule: &'static str) -> Self {
        let (key, value) = (key.to_owned(), value.to_string());
        let value = value.chars().take(SHOWN).collect();
        Self { key, value, rule }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} = {}: {}", self.key, self.value, self.rule)
    }
}

/// Content of the annotation `autoscaling.neon.tech/config`: any subset of [`ScalingConfig`]'s
/// keys.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shrink_step: Option<ShrinkStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub downscale_margin_units: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub downscale_hold_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub downscale_cooldown_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upscale_cooldown_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_monitor_estimate: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_pressure_hold_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}

/// The members of an object, by key; `null` is the same as absent.
struct Members<'a> {
    object: &'a Map<String, Value>,
    problems: Vec<Problem>,
}

impl Members<'_> {
    fn get<T>(
        &mut self,
        key: &str,
        rule: &'static str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.object.get(key).filter(|value| !value.is_null())?;
        let got = read(value);
        if got.is_none() {
            self.problems.push(Problem::new(key, value, rule));
        }
        got
    }

    fn number(&mut self, key: &str) -> Option<f64> {
        self.get(key, "must be a number", Value::as_f64)
    }

    fn whole(&mut self, key: &str) -> Option<i64> {
        self.get(key, "must be a whole number", Value::as_i64)
    }

    fn flag(&mut self, key: &str) -> Option<bool> {
        self.get(key, "must be true or false", Value::as_bool)
    }
}

impl ScalingOverrides {
    /// Names of the members in the configuration, in their order there.
    pub const KEYS: [&'static str; 18] = [
        "loadAverageFractionTarget",
        "memoryUsageFractionTarget",
        "memoryTotalFractionTarget",
        "enableLFCMetrics",
        "lfcUseLargestWindow",
        "lfcToMemoryRatio",
        "lfcWindowSizeMinutes",
        "lfcMinWaitBeforeDownscaleMinutes",
        "cpuStableZoneRatio",
        "cpuMixedZoneRatio",
        "shrinkStep",
        "downscaleMarginUnits",
        "downscaleHoldSeconds",
        "downscaleCooldownSeconds",
        "upscaleCooldownSeconds",
        "enableMonitorEstimate",
        "memoryPressureHoldPercent",
        "mode",
    ];

    /// Reads the known members and returns one problem for each of a wrong type. [`Self::apply`]
    /// checks ranges.
    #[must_use]
    pub fn read(object: &Map<String, Value>) -> (Self, Vec<Problem>) {
        let mut m = Members {
            object,
            problems: Vec::new(),
        };
        let read = Self {
            load_average_fraction_target: m.number("loadAverageFractionTarget"),
            memory_usage_fraction_target: m.number("memoryUsageFractionTarget"),
            memory_total_fraction_target: m.number("memoryTotalFractionTarget"),
            enable_lfc_metrics: m.flag("enableLFCMetrics"),
            lfc_use_largest_window: m.flag("lfcUseLargestWindow"),
            lfc_to_memory_ratio: m.number("lfcToMemoryRatio"),
            lfc_window_size_minutes: m.whole("lfcWindowSizeMinutes"),
            lfc_min_wait_before_downscale_minutes: m.whole("lfcMinWaitBeforeDownscaleMinutes"),
            cpu_stable_zone_ratio: m.number("cpuStableZoneRatio"),
            cpu_mixed_zone_ratio: m.number("cpuMixedZoneRatio"),
            shrink_step: m.get("shrinkStep", STEP_RULE, |value| {
                value.as_str().and_then(ShrinkStep::of)
            }),
            downscale_margin_units: m.number("downscaleMarginUnits"),
            downscale_hold_seconds: m.whole("downscaleHoldSeconds"),
            downscale_cooldown_seconds: m.whole("downscaleCooldownSeconds"),
            upscale_cooldown_seconds: m.whole("upscaleCooldownSeconds"),
            enable_monitor_estimate: m.flag("enableMonitorEstimate"),
            memory_pressure_hold_percent: m.number("memoryPressureHoldPercent"),
            mode: m.get("mode", MODE_RULE, |value| value.as_str().and_then(Mode::of)),
        };
        (read, m.problems)
    }

    /// Replaces each present key in `base`.
    ///
    /// # Errors
    /// All problems of the result; their keys have no path.
    pub fn apply(&self, base: &ScalingConfig) -> Result<ScalingConfig, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut whole = |key, given: Option<i64>, base, most: u32, rule| {
            let Some(given) = given else { return base };
            u32::try_from(given)
                .ok()
                .filter(|n| *n <= most)
                .unwrap_or_else(|| {
                    problems.push(Problem::new(key, &given, rule));
                    base
                })
        };
        let mut minutes =
            |key, given, base| whole(key, given, base, MAX_WINDOW_MINUTES, MINUTES_RULE);
        let (window, wait) = (
            minutes(
                "lfcWindowSizeMinutes",
                self.lfc_window_size_minutes,
                base.lfc_window_size_minutes,
            ),
            minutes(
                "lfcMinWaitBeforeDownscaleMinutes",
                self.lfc_min_wait_before_downscale_minutes,
                base.lfc_min_wait_before_downscale_minutes,
            ),
        );
        let mut seconds =
            |key, given, base| whole(key, given, base, MAX_STABILIZATION_SECONDS, SECONDS_RULE);
        let merged = ScalingConfig {
            lfc_window_size_minutes: window,
            lfc_min_wait_before_downscale_minutes: wait,
            downscale_hold_seconds: seconds(
                "downscaleHoldSeconds",
                self.downscale_hold_seconds,
                base.downscale_hold_seconds,
            ),
            downscale_cooldown_seconds: seconds(
                "downscaleCooldownSeconds",
                self.downscale_cooldown_seconds,
                base.downscale_cooldown_seconds,
            ),
            upscale_cooldown_seconds: seconds(
                "upscaleCooldownSeconds",
                self.upscale_cooldown_seconds,
                base.upscale_cooldown_seconds,
            ),
            ..self.with_plain_values(base)
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

    /// Replaces in `base` the keys that need no conversion.
    fn with_plain_values(&self, base: &ScalingConfig) -> ScalingConfig {
        ScalingConfig {
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
            shrink_step: self.shrink_step.unwrap_or(base.shrink_step),
            downscale_margin_units: self
                .downscale_margin_units
                .unwrap_or(base.downscale_margin_units),
            enable_monitor_estimate: self
                .enable_monitor_estimate
                .unwrap_or(base.enable_monitor_estimate),
            memory_pressure_hold_percent: self
                .memory_pressure_hold_percent
                .unwrap_or(base.memory_pressure_hold_percent),
            mode: self.mode.unwrap_or(base.mode),
            ..*base
        }
    }

    /// Required keys of `defaultConfig` that are absent.
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
    /// All problems of the values; empty if they are valid.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let target = |value: f64, below: f64| value > 0.0 && value < below;
        let zone = |value: f64| value >= 0.0 && value.is_finite();
        let is_margin = (0.0..=MAX_MARGIN_UNITS).contains(&self.downscale_margin_units);
        let is_percent = (0.0..=100.0).contains(&self.memory_pressure_hold_percent);
        let values: [(&str, f64, bool, &'static str); 8] = [
            (
                "loadAverageFractionTarget",
                self.load_average_fraction_target,
                target(self.load_average_fraction_target, 2.0),
                "must be over 0 and below 2",
            ),
            (
                "memoryUsageFractionTarget",
                self.memory_usage_fraction_target,
                target(self.memory_usage_fraction_target, 1.0),
                "must be over 0 and below 1",
            ),
            (
                "memoryTotalFractionTarget",
                self.memory_total_fraction_target,
                target(self.memory_total_fraction_target, 1.0),
                "must be over 0 and below 1",
            ),
            (
                "lfcToMemoryRatio",
                self.lfc_to_memory_ratio,
                target(self.lfc_to_memory_ratio, f64::INFINITY),
                "must be over 0",
            ),
            (
                "cpuStableZoneRatio",
                self.cpu_stable_zone_ratio,
                zone(self.cpu_stable_zone_ratio),
                "must be 0 or more",
            ),
            (
                "cpuMixedZoneRatio",
                self.cpu_mixed_zone_ratio,
                zone(self.cpu_mixed_zone_ratio),
                "must be 0 or more",
            ),
            (
                "downscaleMarginUnits",
                self.downscale_margin_units,
                is_margin,
                "must be from 0 to 64 compute units",
            ),
            (
                "memoryPressureHoldPercent",
                self.memory_pressure_hold_percent,
                is_percent,
                "must be from 0 to 100 percent",
            ),
        ];
        let mut problems: Vec<Problem> = values
            .into_iter()
            .filter(|(_, _, is_good, _)| !is_good)
            .map(|(key, value, _, rule)| Problem::new(key, &value, rule))
            .collect();
        let (window, wait) = (
            self.lfc_window_size_minutes,
            self.lfc_min_wait_before_downscale_minutes,
        );
        if window < 2 {
            problems.push(Problem::new(
                "lfcWindowSizeMinutes",
                &window,
                "must be at least 2",
            ));
        }
        if wait < window {
            problems.push(Problem::new(
                "lfcMinWaitBeforeDownscaleMinutes",
                &wait,
                "must be at least lfcWindowSizeMinutes",
            ));
        }
        problems
    }
}
