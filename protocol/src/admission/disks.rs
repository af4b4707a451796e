//! Rules for disks and images. Node drivers and runners apply the same ones, with the same words,
//! to objects that were stored before the rules.

use serde_json::Value;

use super::field_error::{FieldError, FieldErrorKind, reserved};
use super::members::at;
use crate::object::is_label;

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

/// Most disks of a VM: each drive takes a place on the machine's one bus, which has 31.
pub const MAX_DISKS: usize = 16;
/// Longest name of a disk, in characters.
pub const MAX_DISK_NAME: usize = 32;
/// What a name of a disk must be.
pub const DISK_NAME_RULE: &str =
    "a name is 1 to 32 of a-z, 0-9 and -, with a letter or digit first and last";
/// What a mount path must be.
pub const MOUNT_PATH_RULE: &str =
    "is not an absolute path of letters, digits and /._-+@:~=, without . and .. as parts";
/// What a path in the guest may hold beside letters and digits: it is part of a request's path,
/// too.
const PATH_MARKS: &str = "/._-+@:~=,";

/// Whether a text can be a disk's name: what the kubelet takes as the name of a volume.
#[must_use]
pub fn is_disk_name(name: &str) -> bool {
    is_label(name, MAX_DISK_NAME)
}

/// A mount path without needless slashes; `None` if it is none, or leads out of where it begins.
#[must_use]
pub fn plain_mount_path(path: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || PATH_MARKS.contains(c);
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let is_sound = path.starts_with('/')
        && path.chars().all(is_plain)
        && !parts.is_empty()
        && parts.iter().all(|part| !matches!(*part, "." | ".."));
    is_sound.then(|| format!("/{}", parts.join("/")))
}

/// Checks the disks and the image of a new VM.
pub(super) fn check_disks(object: &Value, errors: &mut Vec<FieldError>) {
    let disks = at(object, "spec.disks").as_array();
    let count = disks.map_or(0, Vec::len);
    if count > MAX_DISKS {
        let message = format!(".spec.disks has {count} disks: {MAX_DISKS} are the most");
        errors.push(invalid("spec.disks", message, &Value::from(count)));
    }
    for (index, disk) in disks.into_iter().flatten().enumerate() {
        check_name(&format!("spec.disks[{index}].name"), &disk["name"], errors);
        let field = format!("spec.disks[{index}].mountPath");
        check_path(&field, &disk["mountPath"], errors);
    }
    check_path(
        "spec.tls.mountPath",
        at(object, "spec.tls.mountPath"),
        errors,
    );
    let field = "spec.guest.rootDisk.image";
    let image = at(object, field);
    if image.as_str().is_none_or(|image| image.trim().is_empty()) {
        let message = format!(".{field} must name an image");
        errors.push(invalid(field, message, image));
    }
}

fn check_name(field: &str, name: &Value, errors: &mut Vec<FieldError>) {
    let Some(text) = name.as_str() else { return };
    if RESERVED_DISK_NAMES.contains(&text) {
        errors.push(reserved(field, name));
    } else if text.chars().count() > MAX_DISK_NAME {
        let message = format!(".{field} may not be more than {MAX_DISK_NAME} characters");
        let kind = FieldErrorKind::TooLong;
        errors.push(FieldError::new(kind, field, message, name));
    } else if !is_disk_name(text) {
        errors.push(invalid(field, format!(".{field}: {DISK_NAME_RULE}"), name));
    }
}

fn check_path(field: &str, path: &Value, errors: &mut Vec<FieldError>) {
    let Some(text) = path.as_str() else { return };
    if plain_mount_path(text).is_none() {
        errors.push(invalid(field, format!(".{field} {MOUNT_PATH_RULE}"), path));
    }
}

pub(super) fn invalid(field: &str, message: String, value: &Value) -> FieldError {
    FieldError::new(FieldErrorKind::Invalid, field, message, value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::{validate_create, validate_update};
    use serde_json::json;

    fn vm(disks: &Value, image: &str) -> Value {
        json!({"metadata": {"name": "vm"}, "spec": {"disks": disks, "guest": {"rootDisk": {"image": image}}}})
    }

    fn fields(vm: &Value) -> Vec<String> {
        let errors = validate_create("VirtualMachine", vm).err();
        let errors = errors.into_iter().flatten();
        errors.map(|error| error.field).collect()
    }

    #[test]
    fn disk_that_no_node_can_make_is_refused_when_its_vm_is_made() {
        let disk = |name: &str, path: &str| json!([{"name": name, "mountPath": path, "emptyDisk": {"size": "1Gi"}}]);
        assert_eq!(fields(&vm(&disk("data", "/data"), "x")), [""; 0]);
        for name in ["", "Data", "a_b", "-a", "a-", "a/b"] {
            let refused = fields(&vm(&disk(name, "/data"), "x"));
            assert_eq!(refused, ["spec.disks[0].name"], "{name:?}");
        }
        for path in ["", "data", "/", "/a/../../etc", "/a/./b", "/a b", "/\u{e4}"] {
            let refused = fields(&vm(&disk("data", path), "x"));
            assert_eq!(refused, ["spec.disks[0].mountPath"], "{path:?}");
        }
        let many = |count: usize| -> Value {
            (0..count)
                .map(|n| json!({"name": format!("d{n}"), "mountPath": format!("/d{n}")}))
                .collect()
        };
        assert_eq!(fields(&vm(&many(MAX_DISKS), "x")), [""; 0]);
        assert_eq!(fields(&vm(&many(MAX_DISKS + 1), "x")), ["spec.disks"]);
    }

    #[test]
    fn vm_without_an_image_is_refused_when_it_is_made() {
        for image in ["", " "] {
            let refused = fields(&vm(&json!([]), image));
            assert_eq!(refused, ["spec.guest.rootDisk.image"], "{image:?}");
        }
    }

    #[test]
    fn vm_that_is_older_than_the_rules_can_still_be_changed() {
        let old = vm(&json!([{"name": "A", "mountPath": "/../x"}]), "");
        let mut new = old.clone();
        new["metadata"]["labels"] = json!({"a": "b"});
        new["spec"]["guest"]["cpus"] = json!({"use": 2});
        assert!(validate_update("VirtualMachine", &old, &new).is_ok());
    }
}
