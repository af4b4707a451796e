//! Sizes in compute units. No field of a unit is zero.

use protocol::units::{Bytes, MilliCpu, Resources};

/// Smallest number of units with at least this much of both resources.
pub(super) fn units_covering(size: Resources, unit: Resources) -> u32 {
    let cpu = size.cpu.0.div_ceil(unit.cpu.0.max(1));
    let mem = size.mem.0.div_ceil(unit.mem.0.max(1));
    cpu.max(u32::try_from(mem).unwrap_or(u32::MAX))
}

/// Units of the larger resource; not a whole number for every size.
#[must_use]
pub fn units_in(size: Resources, unit: Resources) -> f64 {
    let cpu = f64::from(size.cpu.0) / f64::from(unit.cpu.0.max(1));
    let mem = size.mem.0 as f64 / unit.mem.0.max(1) as f64;
    cpu.max(mem)
}

/// Each resource rounded up to whole units.
pub(super) fn whole_units(size: Resources, unit: Resources) -> Resources {
    let cpu = size.cpu.0.div_ceil(unit.cpu.0.max(1));
    let mem = size.mem.0.div_ceil(unit.mem.0.max(1));
    Resources {
        cpu: MilliCpu(unit.cpu.0.saturating_mul(cpu)),
        mem: Bytes(unit.mem.0.saturating_mul(mem)),
    }
}

/// `size` and `more` units.
pub(super) fn plus_units(size: Resources, unit: Resources, more: u32) -> Resources {
    let more = unit.saturating_mul(more);
    Resources {
        cpu: MilliCpu(size.cpu.0.saturating_add(more.cpu.0)),
        mem: Bytes(size.mem.0.saturating_add(more.mem.0)),
    }
}
