//! Rules for amounts: `min <= use <= max`, and the size of a memory slot.

use serde_json::Value;

use super::field_error::{FieldError, FieldErrorKind};
use super::members::at;
use crate::quantity::Quantity;
use crate::units::MilliCpu;
use crate::vm::MEMORY_BLOCK_BYTES;

/// `min <= use <= max` of CPU and memory, and on creation the slot size.
pub(super) fn check_ranges(object: &Value, is_new: bool, errors: &mut Vec<FieldError>) {
    let cpu = |path: &str| {
        MilliCpu::from_json(at(object, path))
            .ok()
            .map(|cpu| u64::from(cpu.0))
    };
    check_range(object, "spec.guest.cpus", cpu, errors);
    if is_new {
        check_slot_size(object, errors);
    }
    let slots = |path: &str| at(object, path).as_u64();
    check_range(object, "spec.guest.memorySlots", slots, errors);
}

fn check_range(
    object: &Value,
    path: &str,
    amount: impl Fn(&str) -> Option<u64>,
    errors: &mut Vec<FieldError>,
) {
    let (low, high, used) = (
        format!("{path}.min"),
        format!("{path}.max"),
        format!("{path}.use"),
    );
    let (Some(min), Some(max)) = (amount(&low), amount(&high)) else {
        return;
    };
    if at(object, &used).is_null() {
        // `settle_size` sets it. The schema does not ask for it.
        let message = format!(".{used} must be set where nothing sets it at admission");
        let kind = FieldErrorKind::Invalid;
        errors.push(FieldError::new(kind, &used, message, &Value::Null));
        return;
    }
    let Some(wanted) = amount(&used) else {
        return;
    };
    let mut refuse = |why: &str, bound: &str| {
        let message = format!(".{used} must not be {why} .{bound} ({})", at(object, bound));
        errors.push(FieldError::new(
            FieldErrorKind::Invalid,
            &used,
            message,
            at(object, &used),
        ));
    };
    if wanted < min {
        refuse("below", &low);
    }
    if wanted > max {
        refuse("above", &high);
    }
}

fn check_slot_size(object: &Value, errors: &mut Vec<FieldError>) {
    const PATH: &str = "spec.guest.memorySlotSize";
    let value = at(object, PATH);
    let Ok(size) = Quantity::from_json(value) else {
        return;
    };
    if !size
        .as_u64()
        .is_some_and(|bytes| bytes > 0 && bytes.is_multiple_of(MEMORY_BLOCK_BYTES))
    {
        let message = format!(".{PATH} must be a positive multiple of 8Mi");
        errors.push(FieldError::new(
            FieldErrorKind::Invalid,
            PATH,
            message,
            value,
        ));
    }
}
