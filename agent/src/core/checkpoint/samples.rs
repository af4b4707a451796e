//! Records of VM objects and metrics.

use protocol::journal::{LfcSample, Size, SystemSample, VmObject};
use protocol::revision::RevisionWithTime;
use protocol::time::{Timestamp, WallTime};
use protocol::units::{Bytes, MilliCpu};

use super::settings::{scaling_of, scaling_record};
use super::stamps::{stamp_of, stamped};
use crate::core::config::ScalingConfig;
use crate::core::metrics::{LfcMetrics, Signals, SystemMetrics};
use crate::core::revision::StampedRevision;
use crate::core::vm::{CpuInfo, MemInfo, VmConfig, VmInfo};

/// The revision that an object has reached. Decisions use its number; its time is only measured.
pub(super) fn reached_by(info: &VmInfo) -> Option<StampedRevision> {
    info.current_revision.map(|reached| StampedRevision {
        revision: reached.revision,
        at: Timestamp::default(),
    })
}

/// The members of a VM object that decisions use.
pub(in crate::core) fn object_record(
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
        // The caller passes it as `reached`.
        current_revision: _,
        // A condition of patches, which decisions do not read.
        target_revision: _,
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

/// A VM object from a record. Members that decisions do not use are empty.
pub(in crate::core) fn info_of(object: &VmObject, name: &str, default: &ScalingConfig) -> VmInfo {
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
        target_revision: None,
        last_revision: object.last,
        version: object.version,
    }
}

pub(in crate::core) fn system_record(metrics: &SystemMetrics) -> SystemSample {
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

pub(in crate::core) fn system_of(sample: &SystemSample) -> SystemMetrics {
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

pub(in crate::core) fn lfc_record(metrics: &LfcMetrics) -> LfcSample {
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

pub(in crate::core) fn lfc_of(sample: &LfcSample) -> LfcMetrics {
    LfcMetrics {
        hits: sample.hits,
        misses: sample.misses,
        writes: sample.writes,
        working_set_pages: sample.pages.clone(),
    }
}
