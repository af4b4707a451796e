//! A fast reader of VirtualMachine objects in the form that API servers write.
//!
//! The response to each write is such an object. If every member that counts has its usual form,
//! this reader returns the same view as [`VmView::read`], in one pass and without a tree of values.
//! It leaves every other object to [`VmView::read`], and never reports a problem.

use protocol::annotations::VmResources;
use protocol::permit::NamespacedName;
use protocol::quantity::Quantity;
use protocol::units::{Bytes, MilliCpu, Resources};
use protocol::vm::{CpuBounds, MemorySlots};
use serde::Deserialize;
use serde_json::Value;

use super::{AnnotationValue, DEFAULT_SLOT_BYTES, VmView, within};
use crate::core::object::{Unreadable, largest};

impl VmView {
    /// Reads a VirtualMachine in JSON.
    ///
    /// # Errors
    /// [`Unreadable`] if the text is no JSON, or has no name or no uid.
    pub fn read_text(text: &str) -> Result<Self, Unreadable> {
        read(text.as_bytes()).map_or_else(
            || {
                let object: Result<Value, _> = serde_json::from_str(text);
                Self::read(&object.map_err(|error| Unreadable(error.to_string()))?)
            },
            Ok,
        )
    }
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
    spec: Spec,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    #[serde(default)]
    namespace: String,
    uid: String,
    resource_version: String,
    labels: Option<Labels>,
    annotations: Option<Annotations>,
}

#[derive(Deserialize)]
struct Labels {
    #[serde(rename = "autoscaling.neon.tech/enabled")]
    enabled: Option<String>,
}

#[derive(Deserialize)]
struct Annotations {
    #[serde(rename = "autoscaling.neon.tech/scaling-unit")]
    unit: Option<String>,
    #[serde(rename = "internal.autoscaling.neon.tech/resources-requested")]
    requested: Option<String>,
    #[serde(rename = "internal.autoscaling.neon.tech/resources-approved")]
    approved: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    guest: Guest,
    target_revision: Option<Revised>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Guest {
    cpus: CpuBounds,
    memory_slots: MemorySlots,
    #[serde(default = "default_slot")]
    memory_slot_size: Quantity,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Status {
    pod_name: Option<String>,
    cpus: Option<Quantity>,
    memory_size: Option<Quantity>,
    current_revision: Option<Revised>,
}

/// An object without a revision, or with `null` for it, is left to the full reader.
#[derive(Deserialize)]
struct Revised {
    revision: Revision,
}

#[derive(Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Revision {
    value: i64,
    flags: u64,
}

fn default_slot() -> Quantity {
    Quantity::from_bytes(DEFAULT_SLOT_BYTES)
}

/// The VM. `None` if the object is not of the usual form.
fn read(text: &[u8]) -> Option<VmView> {
    let Object {
        metadata,
        spec,
        status,
    } = serde_json::from_slice(text).ok()?;
    if metadata.name.is_empty() || metadata.uid.is_empty() {
        return None;
    }
    let guest = VmResources {
        cpus: spec.guest.cpus,
        memory_slots: spec.guest.memory_slots,
        memory_slot_size: spec.guest.memory_slot_size,
    };
    let status = status.unwrap_or_default();
    let enabled = metadata.labels.and_then(|labels| labels.enabled);
    let (in_use, largest) = (guest.in_use(), largest(&guest));
    let cpu = status
        .cpus
        .and_then(|cpus| u32::try_from(cpus.milli_value()).ok());
    let mem = status.memory_size.and_then(|size| size.as_u64());
    let plugged = Resources {
        cpu: MilliCpu(cpu.unwrap_or(0)),
        mem: Bytes(mem.unwrap_or(0)),
    };
    let wanted = spec.target_revision.map(|it| it.revision);
    let reached = status.current_revision.map(|it| it.revision);
    let has_annotations = metadata.annotations.is_some();
    let annotations = metadata.annotations.unwrap_or(Annotations {
        unit: None,
        requested: None,
        approved: None,
    });
    let approved = AnnotationValue::of(annotations.approved.as_ref());
    Some(VmView {
        key: NamespacedName {
            namespace: metadata.namespace,
            name: metadata.name,
        },
        uid: metadata.uid,
        version: metadata.resource_version.parse().ok()?,
        autoscaled: enabled.as_deref() == Some("true"),
        has_annotations,
        unit_text: annotations.unit,
        requested_text: annotations.requested,
        approved: approved.within(largest),
        approved_above_max: approved.within(largest) != approved,
        approved_text: annotations.approved,
        in_use: within(in_use, largest),
        largest,
        reached: plugged == in_use && (wanted.is_none() || wanted == reached),
        plugged: (status.pod_name.unwrap_or_default(), plugged),
        problem: None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn usual() -> Value {
        let approved = r#"{"vCPUs":1,"mem":"4Gi"}"#;
        json!({"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
            "metadata": {"name": "pg", "namespace": "default", "uid": "u1", "resourceVersion": "17", "generation": 3,
                "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{"manager": "x"}],
                "labels": {"autoscaling.neon.tech/enabled": "true", "more": "x"},
                "annotations": {"autoscaling.neon.tech/scaling-unit": r#"{"vCPUs":"250m","mem":"1Gi"}"#,
                    "internal.autoscaling.neon.tech/resources-requested": approved,
                    "internal.autoscaling.neon.tech/resources-approved": approved, "more": "x"}},
            "spec": {"guest": {"cpus": {"min": "250m", "max": 4, "use": 1}, "memorySlotSize": "1Gi",
                    "memorySlots": {"min": 1, "max": 8, "use": 4}, "ports": [{"port": 5432}]},
                "targetRevision": {"revision": {"value": 7, "flags": 0}, "updatedAt": "2026-01-01T00:00:00Z"}},
            "status": {"podName": "pg-x", "cpus": 1, "memorySize": "4Gi",
                "currentRevision": {"revision": {"value": 7, "flags": 0}}}})
    }

    #[test]
    fn usual_vm_takes_the_fast_path() {
        let object = usual();
        let view = read(object.to_string().as_bytes()).expect("is usual");
        assert_eq!(Ok(&view), VmView::read(&object).as_ref());
        assert!(view.reached && view.autoscaled && view.has_annotations);
        assert_eq!(view.plugged.0, "pg-x");
        let mut bare = usual();
        for (path, member) in [
            ("", "status"),
            ("/metadata", "annotations"),
            ("/metadata", "labels"),
            ("/spec/guest", "memorySlotSize"),
        ] {
            let parent = bare.pointer_mut(path).and_then(Value::as_object_mut);
            parent.expect("is there").remove(member);
            let view = read(bare.to_string().as_bytes()).expect("is usual yet");
            assert_eq!(Ok(view), VmView::read(&bare));
        }
    }

    /// Every path of the usual VM.
    fn paths(value: &Value, at: &str, all: &mut Vec<String>) {
        let Some(members) = value.as_object() else {
            return;
        };
        for (key, member) in members {
            let key = key.replace('~', "~0").replace('/', "~1");
            let path = format!("{at}/{key}");
            paths(member, &path, all);
            all.push(path);
        }
    }

    fn other() -> impl Strategy<Value = Value> {
        let values = [
            json!(null),
            json!(true),
            json!(""),
            json!("x"),
            json!("8"),
            json!("8Gi"),
            json!("{"),
            json!("true"),
            json!(-1),
            json!(0),
            json!(3),
            json!(2.5),
            json!(u64::MAX),
            json!([]),
            json!(["x"]),
            json!({}),
            json!({"revision": null}),
            json!({"value": 7}),
            json!({"value": 7, "flags": 0, "more": 1}),
            json!(r#"{"vCPUs":2,"mem":"8Gi"}"#),
        ];
        prop::sample::select(values.to_vec())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn fast_path_reads_what_the_full_reader_reads(
            changes in prop::collection::vec((any::<prop::sample::Index>(), prop::option::of(other())), 1..4),
        ) {
            let mut object = usual();
            let mut all = Vec::new();
            paths(&object, "", &mut all);
            for (index, change) in changes {
                let path = index.get(&all);
                let (parent, member) = path.rsplit_once('/').expect("a path");
                let member = member.replace("~1", "/").replace("~0", "~");
                if let Some(parent) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
                    match change {
                        Some(value) => parent.insert(member, value),
                        None => parent.remove(&member),
                    };
                }
            }
            if let Some(view) = read(object.to_string().as_bytes()) {
                prop_assert_eq!(Ok(view), VmView::read(&object));
            }
        }
    }
}
