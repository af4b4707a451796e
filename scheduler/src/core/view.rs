//! The members of Node, Pod and VirtualMachine objects that the scheduler uses.
//!
//! Every object with a name and a uid can be read. A member that does not parse becomes a problem
//! of that object ([`PodProblem`], [`VmProblem`], [`NodeProblem`]) with a safe amount to count. One
//! bad object therefore neither stops a list nor hides resources that it may use
//! (docs/compatibility/scheduler.md §8.5).

mod fast_path;

use std::collections::BTreeMap;

use protocol::annotations::{
    ANNOTATION_APPROVED, ANNOTATION_REQUESTED, ANNOTATION_SCALING_UNIT, LABEL_ENABLED, VmResources,
};
use protocol::permit::NamespacedName;
use protocol::quantity::Quantity;
use protocol::units::{Bytes, MilliCpu, Resources};
use serde::Serialize;
use serde_json::Value;

use super::amount::Both;
pub use super::object::Unreadable;
use super::object::{key_of, largest, metadata};
use super::overcommit;
pub use super::pod_requests::{PodProblem, PodRole, PodSize, PodView};

/// Bytes of a memory slot if the object has no size: the default of the VM's schema.
const DEFAULT_SLOT_BYTES: u64 = 1 << 30;

/// Why no pod may be placed on a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Hash, Serialize)]
pub enum NodeProblem {
    /// There is no `status.allocatable`, as before the first report of a new node.
    #[error("it has not reported what it has")]
    NotReported,
    /// `status.allocatable` misses a resource.
    #[error("status.allocatable has no {0}")]
    Missing(&'static str),
    /// A member of `status.allocatable` is not a quantity of at least 0.
    #[error("status.allocatable.{0} is not a quantity of at least 0")]
    Bad(&'static str),
}

/// The members of a Node that the ledger uses.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct NodeView {
    /// `metadata.name`.
    pub name: String,
    /// Allocatable CPU in thousandths and memory in bytes. 0 if it does not parse.
    pub total: Both<u64>,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `spec.unschedulable`: no new pod is placed on the node.
    pub cordoned: bool,
    /// The condition Ready is not `True`: no new pod is placed on the node. A node without the
    /// condition is ready.
    pub unready: bool,
    /// Bounds of over-commit factors from the labels, in thousandths.
    pub max_overcommit_milli: Both<u32>,
    /// Why no pod may be placed on the node.
    pub problem: Option<NodeProblem>,
}

impl NodeView {
    /// Reads a Node.
    ///
    /// # Errors
    /// [`Unreadable`] if it has no name or no uid.
    pub fn read(object: &Value) -> Result<Self, Unreadable> {
        let meta = metadata(object)?;
        let mut problem = None;
        let allocatable = object.pointer("/status/allocatable");
        let mut read = |name: &'static str, value: fn(&Quantity) -> i128| {
            let found = allocatable
                .and_then(|map| map.get(name))
                .ok_or(NodeProblem::Missing(name));
            let amount = found.and_then(|raw| {
                let quantity = Quantity::from_json(raw).map_err(|_| NodeProblem::Bad(name))?;
                u64::try_from(value(&quantity)).map_err(|_| NodeProblem::Bad(name))
            });
            amount.unwrap_or_else(|why| {
                problem = Some(why);
                0
            })
        };
        let total = Both::new(
            read("cpu", Quantity::milli_value),
            read("memory", Quantity::value),
        );
        if allocatable.is_none() {
            problem = Some(NodeProblem::NotReported);
        }
        Ok(Self {
            name: meta.name,
            total,
            max_overcommit_milli: overcommit::of_node(&meta.labels),
            labels: meta.labels,
            cordoned: object
                .pointer("/spec/unschedulable")
                .and_then(Value::as_bool)
                .unwrap_or(false),
            unready: is_unready(object),
            problem,
        })
    }

    /// Whether a new pod may be placed on the node.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.cordoned && !self.unready && self.problem.is_none()
    }
}

fn is_unready(object: &Value) -> bool {
    let conditions = object
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready");
    ready.is_some_and(|condition| condition["status"] != "True")
}

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
    /// `metadata.uid`.
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

    #[test]
    fn node_members_are_read_and_bad_totals_are_zero() {
        let node = json!({"metadata": {"name": "n", "uid": "1", "labels": {"zone": "a"}},
            "spec": {"unschedulable": true},
            "status": {"allocatable": {"cpu": "3800m", "memory": "16Gi"}}});
        let view = NodeView::read(&node).expect("has a name");
        assert_eq!(view.total, Both::new(3800, 16 << 30));
        assert!(view.cordoned && !view.unready && view.problem.is_none());
        let mut unready = node.clone();
        for (status, is_unready) in [("True", false), ("False", true), ("Unknown", true)] {
            unready["status"]["conditions"] = json!([{"type": "DiskPressure", "status": "True"}, {"type": "Ready", "status": status}]);
            unready["spec"]["unschedulable"] = json!(false);
            let view = NodeView::read(&unready).expect("has a name");
            assert_eq!((view.unready, view.is_open()), (is_unready, !is_unready));
        }
        for bad in [
            json!({"cpu": "x", "memory": "1Gi"}),
            json!({"cpu": -1, "memory": "1Gi"}),
            json!({"memory": "1Gi"}),
        ] {
            let mut object = node.clone();
            object["status"]["allocatable"] = bad;
            let view = NodeView::read(&object).expect("has a name");
            assert_eq!(view.total, Both::new(0, 1 << 30));
            assert!(matches!(
                view.problem,
                Some(NodeProblem::Bad("cpu") | NodeProblem::Missing("cpu"))
            ));
        }
        let mut new = node;
        new["status"] = json!({});
        let view = NodeView::read(&new).expect("has a name");
        assert_eq!(view.total, Both::default());
        assert_eq!(view.problem, Some(NodeProblem::NotReported));
    }
}
