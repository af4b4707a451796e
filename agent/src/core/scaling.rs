//! How metrics become a size: the node's settings, and what a VM's annotation overrides. Source:
//! docs/compatibility/agent.md §1.3, §5.3.
//!
//! Beside the deployed agent's keys there are a few of ours. All of them may be left out, and then
//! decisions are the deployed agent's, but for [`ShrinkStep`].

use std::collections::BTreeMap;

use protocol::mode::Mode;
use serde::Serialize;
use serde_json::{Map, Value};

/// Longest series of working-set windows that makes sense, minutes: a week.
const MAX_WINDOW_MINUTES: u32 = 10_080;
/// Longest time a size may be held for calm, seconds: a day.
const MAX_CALM_SECONDS: u32 = 86_400;
/// Widest dead band, compute units.
const MAX_MARGIN_UNITS: f64 = 64.0;
/// Longest piece of a value shown in a problem, characters.
const SHOWN: usize = 80;

const MINUTES_RULE: &str = "must be from 0 to 10080 minutes";
const SECONDS_RULE: &str = "must be from 0 to 86400 seconds";
const MODE_RULE: &str = "must be \"observe\", \"grow\" or \"full\"";
const STEP_RULE: &str = "must be \"unit\" or \"whole\"";

/// How much less the monitor is asked to agree to at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ShrinkStep {
    /// The whole way; when refused, to the smallest size the monitor names, else half of what was
    /// asked, and so on. Later the last size refused is asked first, so that a monitor that goes on
    /// refusing is asked once per cooldown.
    #[default]
    Whole,
    /// One compute unit, as the deployed agent does.
    Unit,
}

impl ShrinkStep {
    fn of(word: &str) -> Option<Self> {
        match word {
            "whole" => Some(Self::Whole),
            "unit" => Some(Self::Unit),
            _ => None,
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// How metrics become a goal, and how calmly it is followed. Defaults are the shipped ones.
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
    /// Ours: how much the monitor is asked for at once.
    #[serde(skip_serializing_if = "is_default")]
    pub shrink_step: ShrinkStep,
    /// Ours: a size is only left for one that has this much room above every vote, compute units; 0
    /// = none.
    #[serde(skip_serializing_if = "is_default")]
    pub downscale_margin_units: f64,
    /// Ours: how long the goal must have been below the size before it shrinks, seconds; 0 = not at
    /// all.
    #[serde(skip_serializing_if = "is_default")]
    pub downscale_hold_seconds: u32,
    /// Ours: how long after a growth nothing shrinks, seconds.
    #[serde(skip_serializing_if = "is_default")]
    pub downscale_cooldown_seconds: u32,
    /// Ours: how long after a shrink the load alone makes nothing grow, seconds. Memory and the
    /// monitor are never made to wait.
    #[serde(skip_serializing_if = "is_default")]
    pub upscale_cooldown_seconds: u32,
    /// Ours: whether the monitor's estimate of what its guest needs has a vote (pushed over version
    /// 2 of the link).
    #[serde(skip_serializing_if = "is_default")]
    pub enable_monitor_estimate: bool,
    /// Ours: while tasks wait for memory for more than this share of ten seconds nothing shrinks,
    /// percent; 0 = whatever it is (pushed over version 2 of the link).
    #[serde(skip_serializing_if = "is_default")]
    pub memory_pressure_hold_percent: f64,
    /// Ours: how much of what is decided is done.
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
    /// Every key there is.
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

    /// Reads the members it knows, and names every one that is of the wrong kind. Ranges are
    /// [`Self::apply`]'s.
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

    /// `base` with each present key replaced.
    ///
    /// # Errors
    /// Every [`Problem`] of the merged result, keys without a path.
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
            |key, given, base| whole(key, given, base, MAX_CALM_SECONDS, SECONDS_RULE);
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

    /// `base` with those keys replaced that need no conversion.
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
