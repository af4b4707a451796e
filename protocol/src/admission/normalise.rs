//! The form in which objects are kept: spellings of amounts, and members that always appear.

use serde_json::{Value, json};

use super::field_error::{FieldError, FieldErrorKind};
use super::members::{at, at_mut};
use crate::quantity::Quantity;
use crate::units::MilliCpu;

/// Brings an object of `kind` into the form it is kept in: CPU amounts as whole cores or `"250m"`,
/// quantities in canonical spelling, and the zero-valued members that always appear. Values of a
/// wrong JSON type are left for the schema to refuse.
///
/// # Errors
/// Every amount that is a number or text but no quantity in range.
pub fn normalise(kind: &str, object: &mut Value) -> Result<(), Vec<FieldError>> {
    let mut errors = Vec::new();
    match kind {
        "VirtualMachine" => normalise_vm(object, &mut errors),
        "VirtualMachineMigration" => quantity_at(object, "spec.maxBandwidth", &mut errors),
        _ => {}
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

fn normalise_vm(object: &mut Value, errors: &mut Vec<FieldError>) {
    if let Some(guest) = at_mut(object, "spec.guest").and_then(Value::as_object_mut) {
        // In the reference these are plain structs: an absent one is all zeros and is written as
        // such.
        let zeros = || json!({"min": 0, "max": 0, "use": 0});
        for (name, zero) in [
            ("cpus", zeros()),
            ("memorySlots", zeros()),
            ("rootDisk", json!({"image": ""})),
        ] {
            let member = guest.entry(name).or_insert(Value::Null);
            if member.is_null() {
                *member = zero;
            }
        }
    }
    for name in ["min", "max", "use"] {
        cpu_at(object, &format!("spec.guest.cpus.{name}"), errors);
    }
    cpu_at(object, "status.cpus", errors);
    for path in [
        "spec.guest.memorySlotSize",
        "spec.guest.rootDisk.size",
        "spec.guest.settings.swap",
        "spec.overcommit.cpu",
        "spec.overcommit.memory",
        "status.memorySize",
    ] {
        quantity_at(object, path, errors);
    }
    for list in ["limits", "requests"] {
        let path = format!("spec.podResources.{list}");
        let names: Vec<String> = at(object, &path)
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            let member = at_mut(object, &path).and_then(|map| map.get_mut(&name));
            canonical(member, &format!("{path}.{name}"), errors);
        }
    }
    let disks = at(object, "spec.disks").as_array().map_or(0, Vec::len);
    for index in 0..disks {
        for source in ["emptyDisk", "tmpfs", "persistentVolumeClaim"] {
            let member = at_mut(object, "spec.disks").and_then(|disks| disks.get_mut(index));
            let member = member
                .and_then(|disk| disk.get_mut(source))
                .and_then(|source| source.get_mut("size"));
            canonical(
                member,
                &format!("spec.disks[{index}].{source}.size"),
                errors,
            );
        }
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        status
            .entry("restartCount")
            .or_insert_with(|| Value::from(0));
    }
}

fn cpu_at(object: &mut Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(member) = at_mut(object, path) else {
        return;
    };
    if !member.is_number() && !member.is_string() {
        return;
    }
    match MilliCpu::from_json(member) {
        Ok(cpu) if cpu.0.is_multiple_of(1000) => *member = Value::from(cpu.0 / 1000),
        Ok(cpu) => *member = Value::from(cpu.to_quantity_string()),
        Err(error) => {
            let message =
                format!(".{path} must be an amount of CPU such as 1, 0.25 or \"250m\": {error}");
            errors.push(FieldError::new(
                FieldErrorKind::Invalid,
                path,
                message,
                member,
            ));
        }
    }
}

fn quantity_at(object: &mut Value, path: &str, errors: &mut Vec<FieldError>) {
    canonical(at_mut(object, path), path, errors);
}

fn canonical(member: Option<&mut Value>, path: &str, errors: &mut Vec<FieldError>) {
    let Some(member) = member.filter(|member| member.is_number() || member.is_string()) else {
        return;
    };
    match Quantity::from_json(member) {
        Ok(quantity) => *member = Value::from(quantity.to_string()),
        Err(error) => {
            let message = format!(".{path} must be a quantity such as \"1Gi\": {error}");
            errors.push(FieldError::new(
                FieldErrorKind::Invalid,
                path,
                message,
                member,
            ));
        }
    }
}
