//! Reads the parts of a VM object that an annotation or several members decide.

use protocol::annotations::ScalingBounds;
use protocol::mode::Mode;
use protocol::quantity::Quantity;
use protocol::units::MilliCpu;
use protocol::vm::VirtualMachine;
use serde_json::Value;

use super::{CpuInfo, MAX_SLOTS, MemInfo, VmError};
use crate::core::config::ScalingOverrides;

/// Smallest CPU bound accepted.
const MIN_CPU: MilliCpu = MilliCpu(50);
/// Largest CPU bound accepted.
const MAX_CPU: MilliCpu = MilliCpu(512_000);
/// Longest piece of an annotation shown in an error, characters.
const SHOWN: usize = 64;

pub(super) fn last_revision(vm: &VirtualMachine) -> i64 {
    let reached = vm
        .status
        .as_ref()
        .and_then(|status| status.current_revision);
    let values = [vm.spec.target_revision, reached].map(|r| r.map_or(0, |r| r.revision.value));
    values[0].max(values[1])
}

/// Reads the config annotation. It ignores unknown keys, as the deployed agent does.
pub(super) fn overrides(text: &str) -> Result<ScalingOverrides, VmError> {
    let object: serde_json::Map<String, Value> =
        serde_json::from_str(text).map_err(|error| VmError::Config(error.to_string()))?;
    let (overrides, problems) = ScalingOverrides::read(&object);
    if problems.is_empty() {
        Ok(overrides)
    } else {
        Err(VmError::ConfigValue(problems))
    }
}

pub(super) fn mode(text: &str) -> Result<Mode, VmError> {
    Mode::of(text).ok_or_else(|| VmError::Mode(text.chars().take(SHOWN).collect()))
}

pub(super) fn apply_bounds(
    text: &str,
    cpu: &mut CpuInfo,
    mem: &mut MemInfo,
) -> Result<(), VmError> {
    let bounds: ScalingBounds =
        serde_json::from_str(text).map_err(|error| VmError::Bounds(error.to_string()))?;
    let slots = |end: &str, bytes: Quantity| {
        let wrong = |what: &str| Err(VmError::BoundsValue(format!("{end}.mem = {bytes}: {what}")));
        if bytes <= Quantity::zero() {
            return wrong("must be above zero");
        }
        let Some(count) = bytes.as_u64() else {
            return wrong("must be a whole number of bytes below 2^64");
        };
        if count % mem.slot_size.0 != 0 {
            return wrong(&format!(
                "must be a multiple of the slot size {}",
                mem.slot_size
            ));
        }
        let count = count / mem.slot_size.0;
        if count > MAX_SLOTS {
            return wrong(&format!("must be at most {MAX_SLOTS} slots, is {count}"));
        }
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    };
    for (end, leaf) in [("min", bounds.min), ("max", bounds.max)] {
        if leaf.cpu.0 == 0 {
            return Err(VmError::BoundsValue(format!(
                "{end}.cpu = 0: must be above zero"
            )));
        }
    }
    (mem.min, mem.max) = (slots("min", bounds.min.mem)?, slots("max", bounds.max.mem)?);
    (cpu.min, cpu.max) = (bounds.min.cpu, bounds.max.cpu);
    Ok(())
}

pub(super) fn check_sizes(cpu: &CpuInfo, mem: &MemInfo) -> Result<(), VmError> {
    for (end, value) in [("min", cpu.min), ("max", cpu.max)] {
        if value < MIN_CPU || value > MAX_CPU {
            let text = format!("{end} CPU {value} must be from {MIN_CPU} to {MAX_CPU}");
            return Err(VmError::Size(text));
        }
    }
    if cpu.min > cpu.max {
        return Err(VmError::Size(format!(
            "min CPU {} is above max CPU {}",
            cpu.min, cpu.max
        )));
    }
    if mem.min > mem.max {
        let text = format!(
            "min memory of {} slots is above max of {} slots",
            mem.min, mem.max
        );
        return Err(VmError::Size(text));
    }
    Ok(())
}
