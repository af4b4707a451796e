//! Namespace and name of a watched object.

use std::collections::BTreeSet;

use kube::ResourceExt;
use kube::core::DynamicObject;

/// Namespace and name of a VM, a pod or a migration.
pub(super) type ObjectKey = (String, String);

pub(super) fn key_of(object: &DynamicObject) -> ObjectKey {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Keys of `known` that a complete list lacks. Empties the list for the next one.
pub(super) fn unlisted<'a>(
    known: impl Iterator<Item = &'a ObjectKey>,
    listed: &mut BTreeSet<ObjectKey>,
) -> Vec<ObjectKey> {
    let listed = std::mem::take(listed);
    known
        .filter(|key| !listed.contains(*key))
        .cloned()
        .collect()
}

pub(super) fn text_of(key: &ObjectKey) -> String {
    format!("{}/{}", key.0, key.1)
}
