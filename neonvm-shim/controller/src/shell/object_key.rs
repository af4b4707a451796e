//! Namespace and name of a watched object.

use kube::ResourceExt;
use kube::core::DynamicObject;

/// Namespace and name of a VM, a pod or a migration.
pub(super) type ObjectKey = (String, String);

pub(super) fn key_of(object: &DynamicObject) -> ObjectKey {
    (object.namespace().unwrap_or_default(), object.name_any())
}

pub(super) fn text_of(key: &ObjectKey) -> String {
    format!("{}/{}", key.0, key.1)
}
