//! Records of a core's configuration.

use protocol::journal::{self, CoreSettings, Decimal, Scaling, Waits};
use protocol::time::Span;

use crate::core::config::{CoreConfig, ScalingConfig, ShrinkStep, Timers};

pub(super) fn scaling_record(scaling: &ScalingConfig) -> Scaling {
    let ScalingConfig {
        load_average_fraction_target,
        memory_usage_fraction_target,
        memory_total_fraction_target,
        enable_lfc_metrics,
        lfc_use_largest_window,
        lfc_to_memory_ratio,
        lfc_window_size_minutes,
        lfc_min_wait_before_downscale_minutes,
        cpu_stable_zone_ratio,
        cpu_mixed_zone_ratio,
        shrink_step,
        downscale_margin_units,
        downscale_hold_seconds,
        downscale_cooldown_seconds,
        upscale_cooldown_seconds,
        enable_monitor_estimate,
        memory_pressure_hold_percent,
        mode,
    } = *scaling;
    Scaling {
        load_average_fraction_target: Decimal(load_average_fraction_target),
        memory_usage_fraction_target: Decimal(memory_usage_fraction_target),
        memory_total_fraction_target: Decimal(memory_total_fraction_target),
        enable_lfc_metrics,
        lfc_use_largest_window,
        lfc_to_memory_ratio: Decimal(lfc_to_memory_ratio),
        lfc_window_size_minutes,
        lfc_min_wait_before_downscale_minutes,
        cpu_stable_zone_ratio: Decimal(cpu_stable_zone_ratio),
        cpu_mixed_zone_ratio: Decimal(cpu_mixed_zone_ratio),
        shrink_step: match shrink_step {
            ShrinkStep::Unit => journal::ShrinkStep::Unit,
            ShrinkStep::Whole => journal::ShrinkStep::Whole,
        },
        downscale_margin_units: Decimal(downscale_margin_units),
        downscale_hold_seconds,
        downscale_cooldown_seconds,
        upscale_cooldown_seconds,
        enable_monitor_estimate,
        memory_pressure_hold_percent: Decimal(memory_pressure_hold_percent),
        mode,
    }
}

pub(super) fn scaling_of(record: &Scaling) -> ScalingConfig {
    ScalingConfig {
        load_average_fraction_target: record.load_average_fraction_target.0,
        memory_usage_fraction_target: record.memory_usage_fraction_target.0,
        memory_total_fraction_target: record.memory_total_fraction_target.0,
        enable_lfc_metrics: record.enable_lfc_metrics,
        lfc_use_largest_window: record.lfc_use_largest_window,
        lfc_to_memory_ratio: record.lfc_to_memory_ratio.0,
        lfc_window_size_minutes: record.lfc_window_size_minutes,
        lfc_min_wait_before_downscale_minutes: record.lfc_min_wait_before_downscale_minutes,
        cpu_stable_zone_ratio: record.cpu_stable_zone_ratio.0,
        cpu_mixed_zone_ratio: record.cpu_mixed_zone_ratio.0,
        shrink_step: match record.shrink_step {
            journal::ShrinkStep::Unit => ShrinkStep::Unit,
            journal::ShrinkStep::Whole => ShrinkStep::Whole,
        },
        downscale_margin_units: record.downscale_margin_units.0,
        downscale_hold_seconds: record.downscale_hold_seconds,
        downscale_cooldown_seconds: record.downscale_cooldown_seconds,
        upscale_cooldown_seconds: record.upscale_cooldown_seconds,
        enable_monitor_estimate: record.enable_monitor_estimate,
        memory_pressure_hold_percent: record.memory_pressure_hold_percent.0,
        mode: record.mode,
    }
}

/// Settings shared by all cores that are made with `config`.
#[must_use]
pub fn settings(config: &CoreConfig) -> CoreSettings {
    let Timers {
        permit_request_tick: _,
        permit_retry_wait,
        permit_denied_retry_wait,
        vm_patch_retry_wait,
        monitor_retry_wait,
        monitor_denied_downscale_cooldown,
        monitor_requested_upscale_valid_period,
        migration_hold,
    } = config.timers;
    CoreSettings {
        lfc_age: config.lfc_max_age.map(|age| age.0),
        scaling: scaling_record(&config.default_scaling),
        system_age: config.system_max_age.map(|age| age.0),
        unit: config.compute_unit.into(),
        waits: Waits {
            plugin_retry: permit_retry_wait.0,
            plugin_denied: permit_denied_retry_wait.0,
            neonvm_retry: vm_patch_retry_wait.0,
            monitor_retry: monitor_retry_wait.0,
            monitor_denied: monitor_denied_downscale_cooldown.0,
            monitor_wish: monitor_requested_upscale_valid_period.0,
            migration_hold: migration_hold.0,
        },
    }
}

pub(super) fn config_of(settings: &CoreSettings, tick: u64) -> CoreConfig {
    let waits = settings.waits;
    CoreConfig {
        compute_unit: settings.unit.into(),
        default_scaling: scaling_of(&settings.scaling),
        timers: Timers {
            permit_request_tick: Span(tick),
            permit_retry_wait: Span(waits.plugin_retry),
            permit_denied_retry_wait: Span(waits.plugin_denied),
            vm_patch_retry_wait: Span(waits.neonvm_retry),
            monitor_retry_wait: Span(waits.monitor_retry),
            monitor_denied_downscale_cooldown: Span(waits.monitor_denied),
            monitor_requested_upscale_valid_period: Span(waits.monitor_wish),
            migration_hold: Span(waits.migration_hold),
        },
        system_max_age: settings.system_age.map(Span),
        lfc_max_age: settings.lfc_age.map(Span),
    }
}
