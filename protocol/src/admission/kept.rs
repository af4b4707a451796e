//! What stays as it is. Two spellings of a member are the same where the deployed webhook, which
//! compares parsed objects, would hold them to be (docs/compatibility/neonvm.md §1.9): by the
//! member's own type, so that what the type leaves out when it is written counts as absent, and a
//! `false` that means something does not.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::field_error::{FieldError, FieldErrorKind};
use super::members::at;
use crate::object::without_nulls;
use crate::vm::{Disk, EnvVar, GuestSettings, MigrationSpec, Port, RootDisk};

/// A member that must stay as it is; with `may_appear` it may be set once. Empty lists and maps
/// count as absent.
pub(super) fn check_kept(
    old: &Value,
    new: &Value,
    path: &str,
    may_appear: bool,
    errors: &mut Vec<FieldError>,
) {
    let (before, after) = (at(old, path), at(new, path));
    if before == after {
        return;
    }
    let was = parsed(path, before);
    if was == parsed(path, after) || (may_appear && was.is_null()) {
        return;
    }
    let message = format!(".{path} is immutable");
    errors.push(FieldError::new(
        FieldErrorKind::Forbidden,
        path,
        message,
        after,
    ));
}

/// A member as its type would write it; null where it is absent. What its type cannot read is what
/// it is.
fn parsed(path: &str, value: &Value) -> Value {
    let value = without_nulls(value.clone());
    let written = match path {
        // The whole of a migration's.
        "spec" => written::<MigrationSpec>(&value),
        "spec.guest.rootDisk" => written::<RootDisk>(&value),
        "spec.guest.env" => written::<Vec<EnvVar>>(&value),
        "spec.guest.ports" => written::<Vec<Port>>(&value),
        "spec.guest.settings" => written::<GuestSettings>(&value),
        "spec.podResources" => written::<PodResources>(&value),
        "spec.disks" => written_disks(&value),
        _ => None,
    };
    let value = written.unwrap_or(value);
    if is_absent(&value) {
        Value::Null
    } else {
        value
    }
}

fn written<T: DeserializeOwned + Serialize>(value: &Value) -> Option<Value> {
    let read = T::deserialize(value).ok()?;
    serde_json::to_value(read).ok()
}

fn written_disks(value: &Value) -> Option<Value> {
    let mut disks = Vec::<Disk>::deserialize(value).ok()?;
    for disk in &mut disks {
        disk.empty_disk = disk.empty_disk.take().map(source::<EmptyDisk>);
        disk.config_map = disk.config_map.take().map(source::<Files>);
        disk.secret = disk.secret.take().map(source::<Files>);
    }
    serde_json::to_value(disks).ok()
}

/// A disk's source. It is there even if it is empty: it says what the disk is.
fn source<T: DeserializeOwned + Serialize>(value: Value) -> Value {
    written::<T>(&value).unwrap_or(value)
}

fn is_absent(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

// The types of what the objects keep as JSON, as far as they leave something out; the rest is as it
// is.

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EmptyDisk {
    #[serde(skip_serializing_if = "is_false")]
    discard: bool,
    #[serde(skip_serializing_if = "is_false")]
    enable_quotas: bool,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// A config map or a secret. Whether it may be missing and the mode of its files are told from a
/// zero there, so they are of the rest.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Files {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    secret_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    items: Vec<Value>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct PodResources {
    #[serde(skip_serializing_if = "Map::is_empty")]
    limits: Map<String, Value>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    requests: Map<String, Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    claims: Vec<Claim>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Claim {
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    request: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(flag: &bool) -> bool {
    !*flag
}
