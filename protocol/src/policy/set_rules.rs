//! Admission rules of sets that a schema cannot state.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::rules::is_word;
use super::set::{ANNOTATION_SET_VERSION, LABEL_SET, Rates, VmSetSpec, VmTemplate};
use crate::admission::{self, FieldError, FieldErrorKind};
use crate::annotations::{
    ANNOTATION_ADOPTS, ANNOTATION_KEEP_DISK, ANNOTATION_SCALING_UNIT, ANNOTATION_USE_DISK,
    ANNOTATION_VSOCK_CID,
};
use crate::vm::{VirtualMachine, VmSpec};

/// Longest name of a set, bytes. Names of members, pods and secrets are longer.
pub const MAX_SET_NAME: usize = 40;
/// Most members of a set.
pub const MAX_REPLICAS: u32 = 1_000;
/// Largest template as JSON, bytes.
pub const MAX_TEMPLATE_BYTES: usize = 64 << 10;
/// Most values that members read beside the addresses.
pub const MAX_KV: usize = 64;
/// Most versions and most commands that a policy may choose from.
const MAX_CHOICES: usize = 64;
/// Longest key and value, bytes.
const MAX_KV_BYTES: [usize; 2] = [64, 4_096];
/// Highest rate, members per second, and lowest.
const RATES: [f64; 2] = [100.0, 0.001];
/// Labels and annotations that only the parts, or only one VM, may have.
const OWN_KEYS: [&str; 8] = [
    LABEL_SET,
    ANNOTATION_SET_VERSION,
    ANNOTATION_ADOPTS,
    ANNOTATION_KEEP_DISK,
    ANNOTATION_USE_DISK,
    ANNOTATION_VSOCK_CID,
    ANNOTATION_SCALING_UNIT,
    "k8s.v1.cni.cncf.io/networks",
];
/// Begin of annotations that only the scheduler writes.
const INTERNAL: &str = "internal.autoscaling.neon.tech/";
/// Members of a VM's spec that act outside its guest. The controller makes the members of a set by
/// its own rights, so these would be nobody's to check.
const PRIVILEGED: [&str; 4] = [
    "extraInitContainers",
    "initScript",
    "runnerImage",
    "extraNetwork",
];

/// Checks a new state of a `VirtualMachineSet` beyond its schema.
///
/// # Errors
/// Every broken rule.
pub(super) fn validate_set(object: &Value) -> Result<(), Vec<FieldError>> {
    let spec = VmSetSpec::deserialize(&object["spec"]);
    let spec =
        spec.map_err(|error| vec![invalid("spec", format!(".spec: {error}"), Value::Null)])?;
    let mut errors = Vec::new();
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    if name.len() > MAX_SET_NAME || name.contains('.') {
        let rule = format!(".metadata.name must have at most {MAX_SET_NAME} characters and no dot");
        errors.push(invalid("metadata.name", rule, name.into()));
    }
    check_numbers(&spec, &mut errors);
    check_kv("spec.kv", &spec.kv, &mut errors);
    check_lists(&spec, &mut errors);
    errors.extend(check_template(&spec.template).err().into_iter().flatten());
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

fn invalid(field: &str, message: String, value: Value) -> FieldError {
    FieldError {
        field: field.to_owned(),
        kind: FieldErrorKind::Invalid,
        message,
        value,
    }
}

fn check_numbers(spec: &VmSetSpec, errors: &mut Vec<FieldError>) {
    if spec.replicas > MAX_REPLICAS {
        let rule = format!(".spec.replicas must be at most {MAX_REPLICAS}");
        errors.push(invalid("spec.replicas", rule, spec.replicas.into()));
    }
    let Rates { grow, decline } = spec.rates;
    for (field, rate) in [("spec.rates.grow", grow), ("spec.rates.decline", decline)] {
        let [most, least] = RATES;
        if !(least..=most).contains(&rate) {
            let rule = format!(".{field} must be {least} to {most} members per second");
            errors.push(invalid(field, rule, rate.into()));
        }
    }
    if spec.version == Some(0) {
        let rule = ".spec.version must be a number of status.versions, from 1".to_owned();
        errors.push(invalid("spec.version", rule, 0.into()));
    }
}

/// What a policy may choose, and what it chose.
fn check_lists(spec: &VmSetSpec, errors: &mut Vec<FieldError>) {
    for (field, length) in [
        ("spec.versions", spec.versions.len()),
        ("spec.commands", spec.commands.len()),
    ] {
        if length > MAX_CHOICES {
            let rule = format!(".{field} must have at most {MAX_CHOICES} entries");
            errors.push(invalid(field, rule, length.into()));
        }
    }
    if spec.versions.contains(&0) {
        let rule = ".spec.versions must have numbers of status.versions, from 1".to_owned();
        errors.push(invalid("spec.versions", rule, 0.into()));
    }
    let chosen = spec.chosen.as_ref();
    let command = chosen.and_then(|chosen| chosen.command.as_ref());
    for name in spec.commands.iter().chain(command) {
        if !is_word(name) {
            let rule = ".spec.commands: a command has 1 to 32 of a-z0-9_".to_owned();
            errors.push(invalid("spec.commands", rule, name.as_str().into()));
        }
    }
    if let Some(chosen) = chosen {
        check_kv("spec.chosen.kv", &chosen.kv, errors);
    }
}

fn check_kv(field: &str, kv: &BTreeMap<String, String>, errors: &mut Vec<FieldError>) {
    let [longest_key, longest_value] = MAX_KV_BYTES;
    if kv.len() > MAX_KV {
        let rule = format!(".{field} must have at most {MAX_KV} members");
        errors.push(invalid(field, rule, kv.len().into()));
    }
    for (key, value) in kv {
        let is_word = key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if key.is_empty() || key.len() > longest_key || !is_word {
            let rule = format!(".{field}: a key has 1 to {longest_key} of a-zA-Z0-9._-");
            errors.push(invalid(field, rule, key.as_str().into()));
        }
        if value.len() > longest_value {
            let rule = format!(".{field}: a value has at most {longest_value} bytes");
            errors.push(invalid(field, rule, key.as_str().into()));
        }
    }
}

/// Checks a template. The controller does so before each member too, for a cluster's webhook may be
/// missing.
///
/// # Errors
/// Every broken rule.
pub fn check_template(template: &VmTemplate) -> Result<(), Vec<FieldError>> {
    let mut errors = Vec::new();
    let bytes = template.spec.to_string().len();
    if bytes > MAX_TEMPLATE_BYTES {
        let rule = format!(".spec.template.spec must have at most {MAX_TEMPLATE_BYTES} bytes");
        return Err(vec![invalid("spec.template.spec", rule, bytes.into())]);
    }
    check_keys(template, &mut errors);
    let mut vm = serde_json::json!({"spec": template.spec});
    let checked = admission::normalise("VirtualMachine", &mut vm)
        .and_then(|()| completed(&vm))
        .and_then(|vm| admission::validate_create("VirtualMachine", &vm));
    for error in checked.err().into_iter().flatten() {
        errors.push(FieldError {
            message: error.message.replacen(".spec.", ".spec.template.spec.", 1),
            field: error.field.replacen("spec", "spec.template.spec", 1),
            ..error
        });
    }
    check_spec(&template.spec, &mut errors);
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

fn check_keys(template: &VmTemplate, errors: &mut Vec<FieldError>) {
    let meta = &template.metadata;
    for key in meta.labels.keys().chain(meta.annotations.keys()) {
        if OWN_KEYS.contains(&key.as_str()) || key.starts_with(INTERNAL) {
            let rule = format!(".spec.template.metadata: {key} is not for members of sets");
            errors.push(invalid("spec.template.metadata", rule, key.as_str().into()));
        }
    }
}

/// The VM with the members that a schema's defaults add.
fn completed(vm: &Value) -> Result<Value, Vec<FieldError>> {
    let refused =
        |error: serde_json::Error| vec![invalid("spec", format!(".spec.: {error}"), Value::Null)];
    if !vm["spec"].is_object() {
        let rule = ".spec. must be the spec of a VirtualMachine".to_owned();
        return Err(vec![invalid("spec", rule, Value::Null)]);
    }
    let spec = VmSpec::deserialize(&vm["spec"]).map_err(refused)?;
    let whole = VirtualMachine {
        spec,
        ..VirtualMachine::default()
    };
    serde_json::to_value(whole).map_err(refused)
}

/// A member is replaced by an upgrade, and its disks with it. A claim has one user.
fn check_spec(spec: &Value, errors: &mut Vec<FieldError>) {
    for member in PRIVILEGED {
        if spec.get(member).is_some_and(|value| !is_void(value)) {
            let field = format!("spec.template.spec.{member}");
            let rule = format!(".{field} must be absent: it acts outside the guest");
            errors.push(invalid(&field, rule, Value::Null));
        }
    }
    for (index, disk) in spec["disks"].as_array().into_iter().flatten().enumerate() {
        let path = disk["mountPath"].as_str().unwrap_or_default();
        if path.split('/').any(|part| part == "..") {
            let field = format!("spec.template.spec.disks[{index}].mountPath");
            let rule = format!(".{field} must not have the part '..'");
            errors.push(invalid(&field, rule, path.into()));
        }
    }
    if spec["guest"]["rootDisk"]["persistent"] == true {
        let field = "spec.template.spec.guest.rootDisk.persistent";
        let rule = format!(".{field} must be false: an upgrade replaces the member and its disk");
        errors.push(invalid(field, rule, true.into()));
    }
    for (index, disk) in spec["disks"].as_array().into_iter().flatten().enumerate() {
        if disk
            .get("persistentVolumeClaim")
            .is_some_and(|it| !it.is_null())
        {
            let field = format!("spec.template.spec.disks[{index}].persistentVolumeClaim");
            let rule = format!(".{field} must be absent: members cannot share a claim");
            errors.push(invalid(&field, rule, Value::Null));
        }
    }
}

/// Whether a value says no more than its absence.
fn is_void(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Sets that the embedded API server and the webhook of a cluster take and refuse alike.
    const TABLE: &str = include_str!("../../testdata/policy/sets.json");

    /// Requirement: V15
    #[test]
    fn v15_set_is_checked_beyond_its_schema() {
        let table: Value = serde_json::from_str(TABLE).expect("a table");
        assert_eq!(validate_set(&table["good"]), Ok(()));
        let cases = table["bad"].as_array().expect("cases").iter();
        let mut bad: Vec<(String, Value)> = cases
            .map(|case| {
                let mut set = table["good"].clone();
                let at = case["at"].as_array().expect("a path").iter();
                let member = at.fold(&mut set, |value, name| {
                    &mut value[name.as_str().expect("a name")]
                });
                *member = case["value"].clone();
                (case["field"].as_str().expect("a field").to_owned(), set)
            })
            .collect();
        let mut long = table["good"].clone();
        long["spec"]["kv"] = json!({"a": "x".repeat(4_097)});
        bad.push(("spec.kv".into(), long));
        for (field, member, value) in [
            ("spec.versions", "versions", json!([0])),
            (
                "spec.versions",
                "versions",
                json!((1..66).collect::<Vec<u32>>()),
            ),
            ("spec.commands", "commands", json!(["rm -rf"])),
            ("spec.commands", "chosen", json!({"command": "/bin/sh"})),
            ("spec.chosen.kv", "chosen", json!({"kv": {"a b": "c"}})),
        ] {
            let mut set = table["good"].clone();
            set["spec"][member] = value;
            bad.push((field.into(), set));
        }
        let mut large = table["good"].clone();
        large["spec"]["template"]["spec"]["qmp"] = json!("x".repeat(65_536));
        bad.push(("spec.template.spec".into(), large));
        for (field, set) in bad {
            let errors = validate_set(&set).expect_err(&field);
            assert!(
                errors.iter().any(|one| one.field == field),
                "{field}: {errors:?}"
            );
        }
    }
}
