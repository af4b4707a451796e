//! The write of a permit: one JSON patch of a VM's scaling annotations.

use std::hash::{Hash, Hasher};
use std::sync::LazyLock;

use protocol::annotations::{
    ANNOTATION_APPROVED, ANNOTATION_REQUESTED, ANNOTATION_SCALING_UNIT, pointer_escape,
};
use protocol::permit::NamespacedName;
use protocol::units::Resources;
use serde::Serialize;
use serde_json::Value;

use super::ids::CallId;

/// One compare-and-set of a VM's three scaling annotations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VmWrite {
    /// Names the call in the event of its outcome.
    pub id: CallId,
    /// The VM that is patched. The patch tests no uid: `base` settles which object it is.
    pub vm: NamespacedName,
    /// The version it applies to, and to no other.
    pub base: u64,
    /// The approved annotation at that version.
    pub approved_before: Option<String>,
    /// Whether the object has a map of annotations at that version.
    pub has_annotations: bool,
    /// New value of the annotation scaling-unit: JSON of the compute unit.
    pub unit: String,
    /// New value of the annotation resources-requested: JSON of the size that the agent requested.
    pub requested: String,
    /// New value of the annotation resources-approved: JSON of the permit.
    pub approved: String,
}

impl Hash for VmWrite {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        // The id names the call and says nothing of it.
        (&self.vm, self.base, &self.approved_before).hash(hasher);
        (&self.unit, &self.requested, &self.approved).hash(hasher);
        self.has_annotations.hash(hasher);
    }
}

impl VmWrite {
    /// The JSON patch. The test of the version makes it apply once or never, however late it
    /// arrives: without it a write given up as lost could still raise the approved size after the
    /// room was granted to another VM.
    #[must_use]
    pub fn patch(&self) -> Vec<u8> {
        let (version, [unit, requested, approved]) = (self.base.to_string(), &*PATHS);
        let mut operations = Vec::with_capacity(6);
        operations.push(Operation::Test {
            path: "/metadata/resourceVersion",
            value: &version,
        });
        if let Some(before) = &self.approved_before {
            let (path, value) = (approved.as_str(), before.as_str());
            operations.push(Operation::Test { path, value });
        }
        if !self.has_annotations {
            let path = "/metadata/annotations";
            let value = Added::Map {};
            operations.push(Operation::Add { path, value });
        }
        for (path, value) in [
            (unit, &self.unit),
            (requested, &self.requested),
            (approved, &self.approved),
        ] {
            let value = Added::Text(value);
            operations.push(Operation::Add { path, value });
        }
        // Texts alone: there is nothing in it that could fail to encode.
        serde_json::to_vec(&operations).unwrap_or_default()
    }

    /// The same, for whoever carries it out without a wire.
    #[must_use]
    pub fn operations(&self) -> Value {
        serde_json::from_slice(&self.patch()).unwrap_or_default()
    }
}

/// Where the three annotations are, as JSON pointers.
static PATHS: LazyLock<[String; 3]> = LazyLock::new(|| {
    [
        ANNOTATION_SCALING_UNIT,
        ANNOTATION_REQUESTED,
        ANNOTATION_APPROVED,
    ]
    .map(|key| format!("/metadata/annotations/{}", pointer_escape(key)))
});

#[derive(Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Operation<'a> {
    Test { path: &'a str, value: &'a str },
    Add { path: &'a str, value: Added<'a> },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Added<'a> {
    Text(&'a str),
    Map {},
}

/// Resources as they stand in an annotation: `{"vCPUs":"250m","mem":"1Gi"}`.
#[must_use]
pub fn annotation_text(resources: Resources) -> String {
    // Two numbers and two fixed names: there is nothing in it that could fail to encode.
    serde_json::to_string(&resources).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patch_is_one_compare_and_set() {
        let write = VmWrite {
            id: 1,
            vm: NamespacedName {
                namespace: "default".into(),
                name: "pg".into(),
            },
            base: 41,
            approved_before: None,
            has_annotations: false,
            unit: annotation_text(Resources::new(250, 1 << 30)),
            requested: annotation_text(Resources::new(1000, 4 << 30)),
            approved: annotation_text(Resources::new(750, 4 << 30)),
        };
        let notes = concat!(
            r#"{"op":"add","path":"/metadata/annotations/autoscaling.neon.tech~1scaling-unit","#,
            r#""value":"{\"vCPUs\":\"250m\",\"mem\":\"1Gi\"}"},"#,
            r#"{"op":"add","path":"/metadata/annotations/internal.autoscaling.neon.tech~1resources-requested","#,
            r#""value":"{\"vCPUs\":1,\"mem\":\"4Gi\"}"},"#,
            r#"{"op":"add","path":"/metadata/annotations/internal.autoscaling.neon.tech~1resources-approved","#,
            r#""value":"{\"vCPUs\":\"750m\",\"mem\":\"4Gi\"}"}]"#
        );
        let first = concat!(
            r#"[{"op":"test","path":"/metadata/resourceVersion","value":"41"},"#,
            r#"{"op":"add","path":"/metadata/annotations","value":{}},"#
        );
        assert_eq!(write.patch(), format!("{first}{notes}").into_bytes());
        let again = VmWrite {
            approved_before: Some("x".into()),
            has_annotations: true,
            ..write
        };
        let first = concat!(
            r#"[{"op":"test","path":"/metadata/resourceVersion","value":"41"},"#,
            r#"{"op":"test","path":"/metadata/annotations/internal.autoscaling.neon.tech~1resources-approved","value":"x"},"#
        );
        assert_eq!(again.patch(), format!("{first}{notes}").into_bytes());
    }
}
