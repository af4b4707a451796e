//! Rules for disks on PersistentVolumeClaims.

use serde_json::Value;

use super::disks::invalid;
use super::field_error::FieldError;
use super::members::at;
use crate::object::is_label;
use crate::quantity::Quantity;

/// Smallest disk on a claim, in bytes.
pub const MIN_BYTES: u64 = 8 << 20;
/// Longest name of a claim.
const MAX_NAME: usize = 253;
/// What the name of a claim must be.
const NAME_RULE: &str = "must be the name of a PersistentVolumeClaim of the VM's namespace: \
     up to 253 of a-z, 0-9, - and ., with a letter or digit at each end of every part";
/// Sources that a disk cannot have beside a claim.
const OTHER_SOURCES: [&str; 4] = ["emptyDisk", "configMap", "secret", "tmpfs"];

/// Whether a text is a DNS subdomain, as names of claims are.
fn is_name(text: &str) -> bool {
    text.len() <= MAX_NAME && text.split('.').all(|part| is_label(part, MAX_NAME))
}

/// Checks the claims of a new VM.
pub(super) fn check_claims(object: &Value, errors: &mut Vec<FieldError>) {
    check_root(object, errors);
    let disks = at(object, "spec.disks").as_array();
    for (index, disk) in disks.into_iter().flatten().enumerate() {
        check_disk(&format!("spec.disks[{index}]"), disk, errors);
    }
}

fn check_root(object: &Value, errors: &mut Vec<FieldError>) {
    let field = "spec.guest.rootDisk.persistentVolumeClaim";
    let claim = at(object, field);
    if claim.is_null() {
        return;
    }
    check_name(field, claim, errors);
    if at(object, "spec.guest.rootDisk.persistent") != true {
        let message = format!(
            ".{field} takes .spec.guest.rootDisk.persistent: true, for the disk stays on its claim"
        );
        errors.push(invalid(field, message, claim));
    }
}

fn check_disk(path: &str, disk: &Value, errors: &mut Vec<FieldError>) {
    let claim = &disk["persistentVolumeClaim"];
    if claim.is_null() {
        return;
    }
    let field = format!("{path}.persistentVolumeClaim");
    check_name(&field, claim, errors);
    let bytes = Quantity::from_json(&claim["size"]).ok();
    let bytes = bytes.and_then(|size| size.as_u64());
    if bytes.is_none_or(|bytes| bytes < MIN_BYTES) {
        let message = format!(".{field}.size must be a size of at least 8Mi");
        errors.push(invalid(&format!("{field}.size"), message, &claim["size"]));
    }
    if let Some(other) = OTHER_SOURCES.iter().find(|name| !disk[**name].is_null()) {
        let message = format!(".{path} has a claim and {other}: say one");
        errors.push(invalid(&field, message, claim));
    }
    if disk["readOnly"] == true {
        let message = format!(".{path}.readOnly is not for a disk on a claim: leave it out");
        errors.push(invalid(
            &format!("{path}.readOnly"),
            message,
            &disk["readOnly"],
        ));
    }
}

fn check_name(field: &str, claim: &Value, errors: &mut Vec<FieldError>) {
    let name = &claim["claimName"];
    if !name.as_str().is_some_and(is_name) {
        let field = format!("{field}.claimName");
        let message = format!(".{field} {NAME_RULE}");
        errors.push(invalid(&field, message, name));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::admission::{normalise, validate_create, validate_update};

    use super::*;

    fn vm(root: &Value, disk: &Value) -> Value {
        let mut root = root.clone();
        root["image"] = json!("i");
        let mut disk = disk.clone();
        disk["name"] = json!("data");
        disk["mountPath"] = json!("/data");
        json!({"metadata": {"name": "vm"}, "spec": {"disks": [disk], "guest": {"rootDisk": root}}})
    }

    fn refused(root: &Value, disk: &Value) -> Vec<String> {
        let errors = validate_create("VirtualMachine", &vm(root, disk)).err();
        let errors = errors.into_iter().flatten();
        errors.map(|error| error.field).collect()
    }

    fn on_claim(name: &str, size: &str) -> Value {
        json!({"persistentVolumeClaim": {"claimName": name, "size": size}})
    }

    #[test]
    fn claim_needs_a_name_that_a_claim_can_have_and_a_size() {
        let plain = json!({});
        for name in ["a", "data-0", "pg.data-0"] {
            assert_eq!(refused(&plain, &on_claim(name, "8Mi")), [""; 0], "{name}");
        }
        let field = "spec.disks[0].persistentVolumeClaim";
        for name in ["", "A", "-a", "a-", "a..b", "a/b", &"a".repeat(254)] {
            let fields = refused(&plain, &on_claim(name, "8Mi"));
            assert_eq!(fields, [format!("{field}.claimName")], "{name:?}");
        }
        for size in ["", "7Mi", "-1Gi"] {
            let fields = refused(&plain, &on_claim("a", size));
            assert_eq!(fields, [format!("{field}.size")], "{size:?}");
        }
    }

    #[test]
    fn disk_has_one_source_and_one_on_a_claim_is_written() {
        let mut disk = on_claim("a", "8Mi");
        disk["tmpfs"] = json!({"size": "8Mi"});
        let field = "spec.disks[0].persistentVolumeClaim";
        assert_eq!(refused(&json!({}), &disk), [field]);
        let mut disk = on_claim("a", "8Mi");
        disk["readOnly"] = json!(true);
        assert_eq!(refused(&json!({}), &disk), ["spec.disks[0].readOnly"]);
    }

    #[test]
    fn root_disk_on_a_claim_takes_persistent() {
        let claim = json!({"claimName": "root"});
        let disk = json!({"tmpfs": {"size": "8Mi"}});
        let root = json!({"persistent": true, "persistentVolumeClaim": claim});
        assert_eq!(refused(&root, &disk), [""; 0]);
        let root = json!({"persistentVolumeClaim": claim});
        let field = "spec.guest.rootDisk.persistentVolumeClaim";
        assert_eq!(refused(&root, &disk), [field]);
    }

    #[test]
    fn claims_of_a_vm_never_change() {
        let root =
            |name: &str| json!({"persistent": true, "persistentVolumeClaim": {"claimName": name}});
        let old = vm(&root("a"), &on_claim("b", "8Mi"));
        for (new, field) in [
            (vm(&root("c"), &on_claim("b", "8Mi")), "spec.guest.rootDisk"),
            (vm(&root("a"), &on_claim("c", "8Mi")), "spec.disks"),
            (vm(&root("a"), &on_claim("b", "1Gi")), "spec.disks"),
        ] {
            let errors = validate_update("VirtualMachine", &old, &new).unwrap_err();
            let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
            assert_eq!(fields, [field]);
        }
        let mut same = vm(&root("a"), &on_claim("b", "8192Ki"));
        normalise("VirtualMachine", &mut same).unwrap();
        let mut old = old;
        normalise("VirtualMachine", &mut old).unwrap();
        assert!(validate_update("VirtualMachine", &old, &same).is_ok());
    }
}
