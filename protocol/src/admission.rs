//! Admission of VM objects: the form they are kept in, and the rules a schema cannot say. Pure
//! functions over JSON.
//!
//! The same functions serve the embedded API server in the request path and a webhook in front of a
//! real one. Source: docs/compatibility/neonvm.md §1.1 (forms) and §1.9 (rules).

pub mod claims;
pub mod disks;
mod kept;
mod ports;
mod size;

use serde_json::{Value, json};

use claims::check_claims;
use disks::check_disks;
use kept::check_kept;
use ports::check_port_names;
pub use ports::warnings;
pub use size::{AGENT_ACCOUNT, AGENT_FIELD_MANAGER, Writer, settle_size};

use crate::quantity::Quantity;
use crate::units::MilliCpu;
use crate::vm::MEMORY_BLOCK_BYTES;

/// Disk names that are the VM's own.
pub const RESERVED_DISK_NAMES: [&str; 9] = [
    "virtualmachineimages",
    "rootdisk",
    "runtime",
    "swapdisk",
    "sysfscgroup",
    "ssh-privatekey",
    "ssh-publickey",
    "ssh-authorized-keys",
    "tls",
];

/// Members of a VirtualMachine's spec that never change. A slot size changed under a running guest
/// would change its memory without a step, so it is fixed here too although the deployed webhook
/// lets it pass.
const IMMUTABLE: [&str; 17] = [
    "guest.cpus.min",
    "guest.cpus.max",
    "guest.memorySlotSize",
    "guest.memorySlots.min",
    "guest.memorySlots.max",
    "guest.rootDisk",
    "guest.command",
    "guest.args",
    "guest.env",
    "guest.ports",
    "guest.settings",
    "podResources",
    "initScript",
    "disks",
    "enableAcceleration",
    "enableSSH",
    "enableNetworkMonitoring",
];
/// Members that may go from absent to a value, never afterwards.
const SET_ONCE: [&str; 2] = ["targetArchitecture", "cpuScalingMode"];

/// Class of a [`FieldError`], which sets its reason and text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// The value is not allowed.
    Invalid,
    /// The value may not be set or changed.
    Forbidden,
    /// The value is too long.
    TooLong,
}

impl FieldErrorKind {
    /// The `reason` of a `details.causes[]` entry of a Kubernetes `Status`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "FieldValueInvalid",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
        }
    }
}

/// One broken rule of one field.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{}", self.to_message())]
pub struct FieldError {
    /// Path of the field without a leading dot: `spec.guest.cpus.use`.
    pub field: String,
    /// Class of the error.
    pub kind: FieldErrorKind,
    /// What is wrong, naming the field by its full path with a leading dot.
    pub message: String,
    /// The value that breaks the rule.
    pub value: Value,
}

impl FieldError {
    fn new(kind: FieldErrorKind, field: &str, message: String, value: &Value) -> Self {
        Self {
            field: field.to_owned(),
            kind,
            message,
            value: value.clone(),
        }
    }

    /// `Invalid value: 5: .spec.guest.cpus.use must not be above .spec.guest.cpus.max (4)`.
    #[must_use]
    pub fn to_message(&self) -> String {
        match self.kind {
            FieldErrorKind::Invalid => {
                let shown = match &self.value {
                    Value::Object(_) | Value::Array(_) => "\"…\"".to_owned(),
                    other => other.to_string(),
                };
                format!("Invalid value: {shown}: {}", self.message)
            }
            FieldErrorKind::Forbidden => format!("Forbidden: {}", self.message),
            FieldErrorKind::TooLong => format!("Too long: {}", self.message),
        }
    }
}

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

/// Checks a new, normalised and defaulted object.
///
/// # Errors
/// Every broken rule, in the order the deployed webhook checks them.
pub fn validate_create(kind: &str, object: &Value) -> Result<(), Vec<FieldError>> {
    let mut errors = Vec::new();
    if kind == "VirtualMachine" {
        check_ranges(object, true, &mut errors);
        check_disks(object, &mut errors);
        check_claims(object, &mut errors);
        check_port_names(object, &mut errors);
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

/// Checks a change between two normalised and defaulted states of an object.
///
/// # Errors
/// Every broken rule, in the order of the checks.
pub fn validate_update(kind: &str, old: &Value, new: &Value) -> Result<(), Vec<FieldError>> {
    let mut errors = Vec::new();
    match kind {
        "VirtualMachine" => {
            let grown = grown_disk(old, new);
            let old = grown.as_ref().unwrap_or(old);
            for member in IMMUTABLE {
                check_kept(old, new, &format!("spec.{member}"), false, &mut errors);
            }
            for member in SET_ONCE {
                check_kept(old, new, &format!("spec.{member}"), true, &mut errors);
            }
            check_ranges(new, false, &mut errors);
        }
        "VirtualMachineMigration" => check_kept(old, new, "spec", false, &mut errors),
        _ => {}
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

/// The old object with the new size of a root disk that stays, where that is a growth: the one
/// change such a disk may see.
fn grown_disk(old: &Value, new: &Value) -> Option<Value> {
    const SIZE: &str = "spec.guest.rootDisk.size";
    let bytes = |object: &Value| Quantity::from_json(at(object, SIZE)).ok()?.as_u64();
    let stays = at(old, "spec.guest.rootDisk.persistent") == true;
    let grows = bytes(new)? > bytes(old).unwrap_or(0);
    if !stays || !grows {
        return None;
    }
    let mut grown = old.clone();
    at_mut(&mut grown, "spec.guest.rootDisk")?["size"] = at(new, SIZE).clone();
    Some(grown)
}

fn at<'a>(object: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(object, |value, name| &value[name])
}

fn at_mut<'a>(object: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.')
        .try_fold(object, |value, name| value.get_mut(name))
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

/// `min <= use <= max` of CPU and memory, and on creation the slot size.
fn check_ranges(object: &Value, is_new: bool, errors: &mut Vec<FieldError>) {
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

/// A name that is the VM's or its pod's own.
fn reserved(field: &str, name: &Value) -> FieldError {
    let message = format!(".{field} {name} is reserved");
    FieldError::new(FieldErrorKind::Invalid, field, message, name)
}

#[cfg(test)]
mod tests;
