//! Members that objects of several kinds share.

use std::collections::BTreeMap;

use protocol::annotations::VmResources;
use protocol::object::ObjectMeta;
use protocol::permit::NamespacedName;
use protocol::time::WallTime;
use protocol::units::{Bytes, Resources};
use serde::Deserialize;
use serde_json::Value;

/// An object without a name or a uid. It is skipped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("object has no usable metadata: {0}")]
pub struct Unreadable(pub String);

/// Metadata of an object. A member of a wrong type counts as absent.
pub(super) fn metadata(object: &Value) -> Result<ObjectMeta, Unreadable> {
    let raw = object
        .get("metadata")
        .ok_or_else(|| Unreadable("no metadata".into()))?;
    let meta = ObjectMeta::deserialize(raw).or_else(|_| salvage(raw))?;
    if meta.name.is_empty() || meta.uid.is_empty() {
        return Err(Unreadable("name or uid is empty".into()));
    }
    Ok(meta)
}

/// Reads the members that identify and classify an object, if its metadata does not decode.
fn salvage(raw: &Value) -> Result<ObjectMeta, Unreadable> {
    let text = |key: &str| {
        raw.get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let map = |key: &str| -> BTreeMap<String, String> {
        raw.get(key)
            .and_then(Value::as_object)
            .map_or_else(BTreeMap::new, |members| {
                let pairs = members.iter();
                pairs
                    .filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned())))
                    .collect()
            })
    };
    if !raw.is_object() {
        return Err(Unreadable("metadata is not an object".into()));
    }
    Ok(ObjectMeta {
        name: text("name"),
        namespace: text("namespace"),
        uid: text("uid"),
        resource_version: text("resourceVersion"),
        deletion_timestamp: raw
            .get("deletionTimestamp")
            .and_then(|v| WallTime::deserialize(v).ok()),
        labels: map("labels"),
        annotations: map("annotations"),
        owner_references: raw
            .get("ownerReferences")
            .and_then(|v| Vec::deserialize(v).ok())
            .unwrap_or_default(),
        ..ObjectMeta::default()
    })
}

pub(super) fn key_of(meta: &ObjectMeta) -> NamespacedName {
    NamespacedName {
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
    }
}

/// The VM's maximum by its bounds.
pub(super) fn largest(resources: &VmResources) -> Resources {
    let slots = u64::try_from(resources.memory_slots.max).unwrap_or(0);
    let slot = resources.memory_slot_size.as_u64().unwrap_or(0);
    Resources {
        cpu: resources.cpus.max,
        mem: Bytes(slot.saturating_mul(slots)),
    }
}
