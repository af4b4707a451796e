//! A core's whole state as a record of the journal, and back: what replay goes on from. Every
//! member of the core is named here, so that a new one cannot be forgotten.

use std::collections::VecDeque;

use protocol::journal::{
    self, Approval, Block, CalmPart, Checkpoint, CoreSettings, Decimal, Denial,
    FaultCounts as Counts, LfcSample, MonitorPart, Ongoing as Call, PatchPart, PluginPart, Scaling,
    Size, Stamped, Step, SystemSample, VmObject, Waits, Wish, Wished,
};
use protocol::permit::NamespacedName;
use protocol::revision::RevisionWithTime;
use protocol::time::{Span, Timestamp, WallTime};
use protocol::units::{Bytes, MilliCpu};

use super::actions::RequestId;
use super::calm::Calm;
use super::config::{CoreConfig, ScalingConfig, ShrinkStep, Timers};
use super::desired::Denied;
use super::machine::{Core, Timed};
use super::metrics::{LfcMetrics, Signals, SystemMetrics};
use super::monitor;
use super::monitor::{Approved, DeniedDownscale, Kind, MonitorState, Ongoing, RequestedUpscale};
use super::neonvm::NeonVmState;
use super::plugin::{LastRequest, PluginState};
use super::revision::{RevisionSource, StampedRevision};
use super::vm::{CpuInfo, MemInfo, VmConfig, VmInfo};
use super::warnings::{FaultCounts, Warnings};

pub(super) fn stamped(stamp: StampedRevision) -> Stamped {
    Stamped(stamp.revision.value, stamp.revision.flags, stamp.at.0)
}

pub(super) fn stamp_of(stamped: Stamped) -> StampedRevision {
    StampedRevision {
        revision: protocol::revision::Revision {
            value: stamped.0,
            flags: stamped.1,
        },
        at: Timestamp(stamped.2),
    }
}

fn micros(at: Option<Timestamp>) -> Option<u64> {
    at.map(|at| at.0)
}

fn time(at: Option<u64>) -> Option<Timestamp> {
    at.map(Timestamp)
}

fn scaling_record(scaling: &ScalingConfig) -> Scaling {
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

fn scaling_of(record: &Scaling) -> ScalingConfig {
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

/// What all cores made with `config` share.
#[must_use]
pub fn settings(config: &CoreConfig) -> CoreSettings {
    let Timers {
        plugin_request_tick: _,
        plugin_retry_wait,
        plugin_denied_retry_wait,
        neonvm_retry_wait,
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
            plugin_retry: plugin_retry_wait.0,
            plugin_denied: plugin_denied_retry_wait.0,
            neonvm_retry: neonvm_retry_wait.0,
            monitor_retry: monitor_retry_wait.0,
            monitor_denied: monitor_denied_downscale_cooldown.0,
            monitor_wish: monitor_requested_upscale_valid_period.0,
            migration_hold: migration_hold.0,
        },
    }
}

fn config_of(settings: &CoreSettings, tick: u64) -> CoreConfig {
    let waits = settings.waits;
    CoreConfig {
        compute_unit: settings.unit.into(),
        default_scaling: scaling_of(&settings.scaling),
        timers: Timers {
            plugin_request_tick: Span(tick),
            plugin_retry_wait: Span(waits.plugin_retry),
            plugin_denied_retry_wait: Span(waits.plugin_denied),
            neonvm_retry_wait: Span(waits.neonvm_retry),
            monitor_retry_wait: Span(waits.monitor_retry),
            monitor_denied_downscale_cooldown: Span(waits.monitor_denied),
            monitor_requested_upscale_valid_period: Span(waits.monitor_wish),
            migration_hold: Span(waits.migration_hold),
        },
        system_max_age: settings.system_age.map(Span),
        lfc_max_age: settings.lfc_age.map(Span),
    }
}

/// The revision an object says it reached. Decisions rest on its number; when it was reached is
/// only measured.
fn reached_by(info: &VmInfo) -> Option<StampedRevision> {
    info.current_revision.map(|reached| StampedRevision {
        revision: reached.revision,
        at: Timestamp::default(),
    })
}

/// What decisions rest on in a VM object.
pub(super) fn object_record(
    info: &VmInfo,
    default: &ScalingConfig,
    reached: Option<StampedRevision>,
    is_migrating: bool,
) -> VmObject {
    let VmInfo {
        cpu,
        mem,
        config,
        last_revision,
        actual,
        version,
        // Reached: in what the caller says of it.
        current_revision: _,
        name: _,
        namespace: _,
    } = info;
    VmObject {
        actual: actual.map(Size::from),
        cpu: [cpu.min.0, cpu.max.0, cpu.r#use.0],
        last: *last_revision,
        mem: [mem.min, mem.max, mem.r#use],
        migrating: is_migrating,
        own: (config.scaling != *default).then(|| scaling_record(&config.scaling)),
        reached: reached.map(stamped),
        slot: mem.slot_size.0,
        version: *version,
    }
}

/// A VM from a record; what decisions do not rest on is empty.
pub(super) fn info_of(object: &VmObject, name: &str, default: &ScalingConfig) -> VmInfo {
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    let ([cpu_min, cpu_max, cpu_use], [mem_min, mem_max, mem_use]) = (object.cpu, object.mem);
    VmInfo {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        cpu: CpuInfo {
            min: MilliCpu(cpu_min),
            max: MilliCpu(cpu_max),
            r#use: MilliCpu(cpu_use),
        },
        mem: MemInfo {
            min: mem_min,
            max: mem_max,
            r#use: mem_use,
            slot_size: Bytes(object.slot.max(1)),
        },
        config: VmConfig {
            auto_migration_enabled: false,
            always_migrate: false,
            scaling_enabled: true,
            overrides: None,
            scaling: object.own.as_ref().map_or(*default, scaling_of),
            own_mode: None,
        },
        current_revision: object.reached.map(|reached| RevisionWithTime {
            revision: stamp_of(reached).revision,
            updated_at: WallTime::default(),
        }),
        actual: object.actual.map(Into::into),
        last_revision: object.last,
        version: object.version,
    }
}

pub(super) fn system_record(metrics: &SystemMetrics) -> SystemSample {
    let SystemMetrics {
        load1,
        load5,
        memory_usage_bytes,
        memory_cached_bytes,
        signals,
    } = *metrics;
    let Signals {
        estimate_bytes,
        pressure_percent,
    } = signals;
    SystemSample {
        load1,
        load5,
        usage: memory_usage_bytes,
        cached: memory_cached_bytes,
        estimate: estimate_bytes,
        pressure: pressure_percent,
    }
}

pub(super) fn system_of(sample: &SystemSample) -> SystemMetrics {
    SystemMetrics {
        load1: sample.load1,
        load5: sample.load5,
        memory_usage_bytes: sample.usage,
        memory_cached_bytes: sample.cached,
        signals: Signals {
            estimate_bytes: sample.estimate,
            pressure_percent: sample.pressure,
        },
    }
}

pub(super) fn lfc_record(metrics: &LfcMetrics) -> LfcSample {
    let LfcMetrics {
        hits,
        misses,
        writes,
        working_set_pages,
    } = metrics;
    LfcSample {
        hits: *hits,
        misses: *misses,
        writes: *writes,
        pages: working_set_pages.clone(),
    }
}

pub(super) fn lfc_of(sample: &LfcSample) -> LfcMetrics {
    LfcMetrics {
        hits: sample.hits,
        misses: sample.misses,
        writes: sample.writes,
        working_set_pages: sample.pages.clone(),
    }
}

impl Core {
    /// The whole state, for VM number `vm` at `now`.
    #[must_use]
    pub fn checkpoint(&self, vm: u32, now: Timestamp) -> Checkpoint {
        let Self {
            config,
            vm: info,
            plugin,
            monitor,
            neonvm,
            system,
            lfc,
            revisions,
            target_revision,
            last_desired,
            faults,
            calm,
            was_pre_migrating,
            pending_warnings,
            next_id,
            // Taken by the shell after each step.
            observations: _,
            // A counter for a metric, and the newest answer: neither is read by a decision.
            computations: _,
            last: _,
        } = self;
        let name = NamespacedName {
            namespace: info.namespace.clone(),
            name: info.name.clone(),
        };
        let system = system
            .as_ref()
            .map(|m| (m.at.0, Step::System(system_record(&m.value))));
        let lfc = lfc
            .as_ref()
            .map(|m| (m.at.0, Step::Lfc(lfc_record(&m.value))));
        let mut metrics: Vec<(u64, Step)> = system.into_iter().chain(lfc).collect();
        metrics.sort_by_key(|(at, _)| *at);
        Checkpoint {
            calm: calm_record(calm),
            faults: counts_record(faults),
            issued: revisions.issued_at.iter().map(|at| at.0).collect(),
            metrics: (!metrics.is_empty()).then_some(Block(metrics)),
            monitor: monitor_record(monitor),
            name: name.to_string(),
            next: *next_id,
            obj: object_record(
                info,
                &config.default_scaling,
                reached_by(info),
                *was_pre_migrating,
            ),
            patch: patch_record(neonvm),
            plugin: plugin_record(plugin),
            rev: revisions.last,
            t: now.0,
            target: stamped(*target_revision),
            tick: config.timers.plugin_request_tick.0,
            vm,
            want: last_desired.map(Size::from),
            warn: pending_warnings.0,
        }
    }

    /// The core a checkpoint was made of.
    #[must_use]
    pub fn restore(settings: &CoreSettings, from: &Checkpoint) -> Self {
        let config = config_of(settings, from.tick);
        let mut core = Self::new(
            config,
            info_of(&from.obj, &from.name, &config.default_scaling),
        );
        core.plugin = plugin_of(&from.plugin);
        core.monitor = monitor_of(&from.monitor);
        core.neonvm = patch_of(&from.patch);
        for (at, step) in from.metrics.iter().flat_map(|block| &block.0) {
            let at = Timestamp(*at);
            match step {
                Step::System(sample) => {
                    core.system = Some(Timed {
                        at,
                        value: system_of(sample),
                    })
                }
                Step::Lfc(sample) => {
                    core.lfc = Some(Timed {
                        at,
                        value: lfc_of(sample),
                    })
                }
                Step::Tick | Step::Renewed | Step::Again(_) => {}
            }
        }
        core.revisions = RevisionSource {
            last: from.rev,
            issued_at: from
                .issued
                .iter()
                .copied()
                .map(Timestamp)
                .collect::<VecDeque<_>>(),
        };
        core.target_revision = stamp_of(from.target);
        core.last_desired = from.want.map(Into::into);
        core.calm = calm_of(&from.calm);
        core.faults = counts_of(&from.faults);
        core.was_pre_migrating = from.obj.migrating;
        core.pending_warnings = Warnings(from.warn);
        core.next_id = from.next;
        core
    }
}

fn calm_record(calm: &Calm) -> CalmPart {
    let Calm {
        grown_at,
        shrunk_at,
        below_since,
    } = *calm;
    CalmPart {
        below: micros(below_since),
        grown: micros(grown_at),
        shrunk: micros(shrunk_at),
    }
}

fn calm_of(part: &CalmPart) -> Calm {
    Calm {
        grown_at: time(part.grown),
        shrunk_at: time(part.shrunk),
        below_since: time(part.below),
    }
}

fn counts_record(faults: &FaultCounts) -> Counts {
    let FaultCounts {
        approved_above_use,
        use_above_permit,
        downscale_below_denied,
        desired_out_of_bounds,
        invalid_permit,
        unknown_reply,
        observation_lost,
    } = *faults;
    Counts {
        approved_above_use,
        use_above_permit,
        downscale_below_denied,
        desired_out_of_bounds,
        invalid_permit,
        unknown_reply,
        observation_lost,
    }
}

fn counts_of(counts: &Counts) -> FaultCounts {
    FaultCounts {
        approved_above_use: counts.approved_above_use,
        use_above_permit: counts.use_above_permit,
        downscale_below_denied: counts.downscale_below_denied,
        desired_out_of_bounds: counts.desired_out_of_bounds,
        invalid_permit: counts.invalid_permit,
        unknown_reply: counts.unknown_reply,
        observation_lost: counts.observation_lost,
    }
}

fn plugin_record(state: &PluginState) -> PluginPart {
    let PluginState {
        ongoing,
        last_request,
        last_failure_at,
        permit,
        current_revision,
        is_unanswered,
        migrating_since,
    } = state;
    PluginPart {
        failed: micros(*last_failure_at),
        last: last_request.map(|last| (last.at.0, last.resources.into(), stamped(last.revision))),
        migrating: micros(*migrating_since),
        ongoing: ongoing.map(|id| id.0),
        permit: permit.map(Size::from),
        rev: (*current_revision).into(),
        unanswered: *is_unanswered,
    }
}

fn plugin_of(part: &PluginPart) -> PluginState {
    PluginState {
        ongoing: part.ongoing.map(RequestId),
        last_request: part.last.map(|(at, size, revision)| LastRequest {
            at: Timestamp(at),
            resources: size.into(),
            revision: stamp_of(revision),
        }),
        last_failure_at: time(part.failed),
        permit: part.permit.map(Into::into),
        current_revision: part.rev.into(),
        is_unanswered: part.unanswered,
        migrating_since: time(part.migrating),
    }
}

fn patch_record(state: &NeonVmState) -> PatchPart {
    let NeonVmState {
        ongoing,
        request_failed_at,
        last_success,
        uncertain,
        was_on_the_way,
        version,
        unjudged,
        target_revision,
        current_revision,
    } = state;
    PatchPart {
        failed: micros(*request_failed_at),
        last: micros(*last_success),
        moved: *was_on_the_way,
        ongoing: ongoing.map(|(id, size)| (id.0, size.into())),
        rev: (*current_revision).into(),
        seen: unjudged.map(|(version, size)| (version, size.into())),
        target: stamped(*target_revision),
        uncertain: uncertain.map(|(low, high)| (low.into(), high.into())),
        version: *version,
    }
}

fn patch_of(part: &PatchPart) -> NeonVmState {
    NeonVmState {
        ongoing: part.ongoing.map(|(id, size)| (RequestId(id), size.into())),
        request_failed_at: time(part.failed),
        last_success: time(part.last),
        uncertain: part.uncertain.map(|(low, high)| (low.into(), high.into())),
        was_on_the_way: part.moved,
        version: part.version,
        unjudged: part.seen.map(|(version, size)| (version, size.into())),
        target_revision: stamp_of(part.target),
        current_revision: part.rev.into(),
    }
}

fn monitor_record(state: &MonitorState) -> MonitorPart {
    let MonitorState {
        ongoing,
        requested_upscale,
        denied_downscale,
        approved,
        is_in_doubt,
        downscale_failure_at,
        upscale_failure_at,
        current_revision,
    } = state;
    MonitorPart {
        again: denied_downscale
            .and_then(|denial| denial.again)
            .map(|again| again.0),
        approved: approved.map(|range| Approval(range.low.into(), range.high.into())),
        denied: denied_downscale.map(|denial| {
            let Denied {
                current,
                requested,
                smallest: _,
            } = denial.denied;
            Denial(denial.at.0, current.into(), requested.into())
        }),
        doubt: *is_in_doubt,
        down_failed: micros(*downscale_failure_at),
        least: denied_downscale
            .and_then(|denial| denial.denied.smallest)
            .map(Size::from),
        ongoing: ongoing.map(|call| Call {
            id: call.id.0,
            rev: stamped(call.revision),
            size: call.resources.into(),
            up: call.kind == Kind::Upscale,
        }),
        rev: (*current_revision).into(),
        up_failed: micros(*upscale_failure_at),
        wish: requested_upscale
            .map(|asked| Wish(asked.at.0, asked.base.into(), wished_record(asked.wish))),
    }
}

pub(super) fn wished_record(wish: monitor::Wish) -> Wished {
    let monitor::Wish { reason, wanted } = wish;
    Wished {
        reason,
        wanted: wanted.map(|bytes| bytes.0),
    }
}

pub(super) fn wished_of(said: Wished) -> monitor::Wish {
    monitor::Wish {
        reason: said.reason,
        wanted: said.wanted.map(Bytes),
    }
}

fn monitor_of(part: &MonitorPart) -> MonitorState {
    MonitorState {
        ongoing: part.ongoing.map(|call| Ongoing {
            id: RequestId(call.id),
            kind: if call.up {
                Kind::Upscale
            } else {
                Kind::Downscale
            },
            resources: call.size.into(),
            revision: stamp_of(call.rev),
        }),
        requested_upscale: part.wish.map(|Wish(at, base, said)| RequestedUpscale {
            at: Timestamp(at),
            base: base.into(),
            wish: wished_of(said),
        }),
        denied_downscale: part
            .denied
            .map(|Denial(at, current, requested)| DeniedDownscale {
                at: Timestamp(at),
                denied: Denied {
                    current: current.into(),
                    requested: requested.into(),
                    smallest: part.least.map(Into::into),
                },
                again: part.again.map(Span),
            }),
        approved: part.approved.map(|Approval(low, high)| Approved {
            low: low.into(),
            high: high.into(),
        }),
        is_in_doubt: part.doubt,
        downscale_failure_at: time(part.down_failed),
        upscale_failure_at: time(part.up_failed),
        current_revision: part.rev.into(),
    }
}
