//! The members of Node, Pod and VirtualMachine objects that the scheduler uses.
//!
//! Every object with a name and a uid can be read. A member that does not parse becomes a problem
//! of that object ([`PodProblem`], [`VmProblem`], [`NodeProblem`]) with a safe amount to count. One
//! bad object therefore neither stops a list nor hides resources that it may use
//! (docs/compatibility/scheduler.md §8.5).

mod fast_path;

use protocol::annotations::{
    ANNOTATION_APPROVED, ANNOTATION_REQUESTED, ANNOTATION_SCALING_UNIT, LABEL_ENABLED, VmResources,
};
use protocol::permit::NamespacedName;
use protocol::quantity::Quantity;
use protocol::units::{Bytes, MilliCpu, Resources};
use serde::Serialize;
use serde_json::Value;

pub use super::node_view::{NodeProblem, NodeView};
pub use super::object::Unreadable;
use super::object::{key_of, largest, metadata};
pub use super::pod_problem::PodProblem;
pub use super::pod_requests::{PodRole, PodSize, PodView};

/// Bytes of a memory slot if the object has no size: the default of the VM's schema.
const DEFAULT_SLOT_BYTES: u64 = 1 << 30;

/// Why a VirtualMachine gets no grant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Hash, Serialize)]
pub enum VmProblem {
    /// `metadata.resourceVersion` is not a number, so states have no order.
    #[error("metadata.resourceVersion {0:?} is not a number")]
    Version(String),
    /// `spec.guest` misses CPU or memory, or a member has a wrong type.
    #[error("spec.guest is not readable: {0}")]
    Guest(String),
}

/// The members of a VirtualMachine that the ledger uses. The approved annotation is the durable
/// record of the VM's permit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct VmView {
    /// The VM's name.
    pub key: NamespacedName,
    /// `metadata.uid`. Another VM of the same name has another one.
    pub uid: String,
    /// `metadata.resourceVersion` as a number, larger in later states. 0 if it is no number.
    pub version: u64,
    /// Whether the label `autoscaling.neon.tech/enabled` is `"true"`.
    pub autoscaled: bool,
    /// Whether `metadata.annotations` exists.
    pub has_annotations: bool,
    /// Text of the annotation scaling-unit.
    pub unit_text: Option<String>,
    /// Text of the annotation resources-requested.
    pub requested_text: Option<String>,
    /// Text of the annotation resources-approved.
    pub approved_text: Option<String>,
    /// Value of the annotation resources-approved, cut to `largest`.
    pub approved: AnnotationValue,
    /// Whether resources-approved is above `largest`. The scheduler never writes such a value.
    pub approved_above_max: bool,
    /// The size in use by `spec.guest`, cut to `largest`.
    pub in_use: Resources,
    /// The VM's maximum by `spec.guest`. Zero if it does not parse.
    pub largest: Resources,
    /// The pod of the runner's last report (`status.podName`) and the reported size (`status.cpus`,
    /// `status.memorySize`; 0 without a report).
    pub plugged: (String, Resources),
    /// Whether the report shows that the guest has reached the size in use. Otherwise the guest may
    /// have more than the report says, because the report may be older than the last growth.
    pub reached: bool,
    /// Why the VM gets no grant.
    pub problem: Option<VmProblem>,
}

impl AnnotationValue {
    fn of(text: Option<&String>) -> Self {
        text.map_or(Self::Absent, |text| {
            serde_json::from_str(text).map_or(Self::Malformed, Self::Value)
        })
    }

    fn within(self, largest: Resources) -> Self {
        match self {
            Self::Value(size) => Self::Value(within(size, largest)),
            other => other,
        }
    }
}

/// The value of an annotation with resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AnnotationValue {
    /// There is no such annotation.
    Absent,
    /// The annotation parses.
    Value(Resources),
    /// The annotation does not parse.
    #[serde(rename = "garbled")]
    Malformed,
}

impl VmView {
    /// Reads a VirtualMachine.
    ///
    /// # Errors
    /// [`Unreadable`] if it has no name or no uid.
    pub fn read(object: &Value) -> Result<Self, Unreadable> {
        let meta = metadata(object)?;
        let (guest, mut problem) = match read_guest(object) {
            Ok(guest) => (Some(guest), None),
            Err(why) => (None, Some(why)),
        };
        let version = meta.resource_version.parse().unwrap_or_else(|_| {
            problem = Some(VmProblem::Version(
                meta.resource_version.chars().take(64).collect(),
            ));
            0
        });
        let annotation = |key: &str| meta.annotations.get(key).cloned();
        let in_use = guest.as_ref().map(VmResources::in_use).unwrap_or_default();
        let largest = guest.as_ref().map(largest).unwrap_or_default();
        let approved = AnnotationValue::of(meta.annotations.get(ANNOTATION_APPROVED));
        let plugged = plugged(object);
        Ok(Self {
            key: key_of(&meta),
            version,
            autoscaled: meta.label_is_true(LABEL_ENABLED),
            has_annotations: object
                .pointer("/metadata/annotations")
                .is_some_and(Value::is_object),
            unit_text: annotation(ANNOTATION_SCALING_UNIT),
            requested_text: annotation(ANNOTATION_REQUESTED),
            approved: approved.within(largest),
            approved_above_max: approved.within(largest) != approved,
            approved_text: annotation(ANNOTATION_APPROVED),
            in_use: within(in_use, largest),
            largest,
            reached: plugged.1 == in_use && revision_is_reached(object),
            plugged,
            problem,
            uid: meta.uid,
        })
    }

    /// The VM's maximum. `None` if it is unknown.
    #[must_use]
    pub fn most(&self) -> Option<Resources> {
        is_size(self.largest).then_some(self.largest)
    }

    /// The least size that the VM counts at by this object alone: the size in use, and the approved
    /// size of an autoscaled VM. If either does not parse, the maximum.
    #[must_use]
    pub fn floor(&self) -> Resources {
        let used = self.in_use;
        if self.problem.is_some() {
            return used.field_max(self.largest);
        }
        match self.approved {
            AnnotationValue::Value(approved) if self.autoscaled => used.field_max(approved),
            AnnotationValue::Malformed if self.autoscaled => used.field_max(self.largest),
            _ => used,
        }
    }
}

fn plugged(object: &Value) -> (String, Resources) {
    let quantity = |path| {
        object
            .pointer(path)
            .and_then(|raw| Quantity::from_json(raw).ok())
    };
    let cpu = quantity("/status/cpus").and_then(|q| u32::try_from(q.milli_value()).ok());
    let mem = quantity("/status/memorySize").and_then(|q| q.as_u64());
    let pod = object
        .pointer("/status/podName")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let size = Resources {
        cpu: MilliCpu(cpu.unwrap_or(0)),
        mem: Bytes(mem.unwrap_or(0)),
    };
    (pod.to_owned(), size)
}

/// Whether the guest reached the newest revision, and not an older one of the same size.
fn revision_is_reached(object: &Value) -> bool {
    let wanted = object.pointer("/spec/targetRevision/revision");
    wanted.is_none() || wanted == object.pointer("/status/currentRevision/revision")
}

fn read_guest(object: &Value) -> Result<VmResources, VmProblem> {
    let guest = object
        .pointer("/spec/guest")
        .ok_or_else(|| VmProblem::Guest("absent".into()))?;
    let mut guest = guest.clone();
    if let Some(members) = guest.as_object_mut() {
        members
            .entry("memorySlotSize")
            .or_insert_with(|| Value::String(Quantity::from_bytes(DEFAULT_SLOT_BYTES).to_string()));
    }
    serde_json::from_value(guest).map_err(|error| VmProblem::Guest(error.to_string()))
}

/// Cuts a size to the VM's maximum, if it is known.
fn within(size: Resources, largest: Resources) -> Resources {
    if is_size(largest) {
        size.field_min(largest)
    } else {
        size
    }
}

fn is_size(size: Resources) -> bool {
    size.zero_field().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn vm() -> Value {
        json!({"metadata": {"name": "pg", "namespace": "default", "uid": "u1", "resourceVersion": "17",
                "labels": {"autoscaling.neon.tech/enabled": "true"}},
            "spec": {"guest": {"cpus": {"min": "250m", "max": 4, "use": "500m"},
                "memorySlots": {"min": 1, "max": 8, "use": 2}, "memorySlotSize": "1Gi"}}})
    }

    #[test]
    fn vm_members_are_read() {
        let view = VmView::read(&vm()).expect("has a name");
        assert_eq!(view.version, 17);
        assert_eq!(view.in_use, Resources::new(500, 2 << 30));
        assert_eq!(view.largest, Resources::new(4000, 8 << 30));
        assert!(view.autoscaled && !view.has_annotations && view.problem.is_none());
        assert_eq!(view.approved, AnnotationValue::Absent);
        assert_eq!(view.floor(), view.in_use);
    }

    #[test]
    fn vm_with_malformed_approval_counts_at_its_maximum() {
        let mut object = vm();
        object["metadata"]["annotations"] = json!({ANNOTATION_APPROVED: "{"});
        let view = VmView::read(&object).expect("has a name");
        assert_eq!(view.approved, AnnotationValue::Malformed);
        assert_eq!(view.floor(), view.largest);
    }

    #[test]
    fn bad_member_of_a_vm_is_a_problem_of_that_vm() {
        let mut object = vm();
        object["spec"]["guest"]["cpus"] = json!("many");
        object["metadata"]["resourceVersion"] = json!("abc");
        object["metadata"]["annotations"] =
            json!({"a": 7, ANNOTATION_APPROVED: "{\"vCPUs\":1,\"mem\":\"1Gi\"}"});
        let view = VmView::read(&object).expect("has a name");
        assert_eq!(view.problem, Some(VmProblem::Version("abc".into())));
        assert_eq!(
            view.approved,
            AnnotationValue::Value(Resources::new(1000, 1 << 30))
        );
        assert!(VmView::read(&json!({"metadata": {"name": "x"}})).is_err());
        assert!(VmView::read(&json!([])).is_err());
    }
}
