//! What the scheduler reads from Node, Pod and VirtualMachine objects.
//!
//! Reading never fails for a whole object that has a name: what does not parse becomes a problem
//! *of that object* ([`PodProblem`], [`VmProblem`], [`NodeProblem`]) together with a safe value to
//! count, so that one bad object neither stops a list nor hides what it may be using
//! (docs/compatibility/scheduler.md §8.5).

mod quick;

use std::collections::BTreeMap;

use protocol::annotations::{
    ANNOTATION_APPROVED, ANNOTATION_REQUESTED, ANNOTATION_SCALING_UNIT, LABEL_ENABLED, VmResources,
};
use protocol::object::ObjectMeta;
use protocol::permit::NamespacedName;
use protocol::quantity::Quantity;
use protocol::time::WallTime;
use protocol::units::{Bytes, MilliCpu, Resources};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::amount::Both;
pub use super::extract::{PodProblem, PodRole, PodSize, PodView};
use super::overcommit;

/// Bytes of a memory slot when the object does not say: the default of the VM's schema.
const DEFAULT_SLOT_BYTES: u64 = 1 << 30;

/// An object without so much as a name and a uid; it cannot be told apart from others and is
/// skipped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("object has no usable metadata: {0}")]
pub struct Unreadable(pub String);

/// Metadata of an object. Members that are not of their type are read as absent.
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

/// Keeps what identifies and classifies an object when its metadata does not decode as a whole.
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

/// Why a node cannot take anything.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Hash, Serialize)]
pub enum NodeProblem {
    /// There is no `status.allocatable`: a node that has just been made has not reported yet.
    #[error("it has not reported what it has")]
    NotReported,
    /// `status.allocatable` misses a resource.
    #[error("status.allocatable has no {0}")]
    Missing(&'static str),
    /// `status.allocatable` holds something that is not a quantity of at least 0.
    #[error("status.allocatable.{0} is not a quantity of at least 0")]
    Bad(&'static str),
}

/// A node as the ledger sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Allocatable CPU (thousandths) and memory (bytes); 0 where it is not readable.
    pub total: Both<u64>,
    /// All labels.
    pub labels: BTreeMap<String, String>,
    /// `spec.unschedulable`: nothing new is placed on it.
    pub cordoned: bool,
    /// Its condition Ready is not `True`: nothing new is placed on it. A node that does not say is
    /// ready.
    pub unready: bool,
    /// The largest over-commit factors that count on it by its labels, thousandths.
    pub max_overcommit_milli: Both<u32>,
    /// What is wrong with it.
    pub problem: Option<NodeProblem>,
}

impl NodeView {
    /// Reads a Node.
    ///
    /// # Errors
    /// [`Unreadable`] when it has no name.
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

    /// Whether something new may be placed on it.
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

/// Why a VirtualMachine cannot be granted anything.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Hash, Serialize)]
pub enum VmProblem {
    /// `metadata.resourceVersion` is not a number, so that two states cannot be put in order.
    #[error("metadata.resourceVersion {0:?} is not a number")]
    Version(String),
    /// `spec.guest` misses CPU or memory, or holds other types.
    #[error("spec.guest is not readable: {0}")]
    Guest(String),
}

/// A VirtualMachine as the ledger sees it. The approved annotation of this object is the durable
/// truth of what its agent may use.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct VmView {
    /// Namespace and name.
    pub key: NamespacedName,
    /// Uid.
    pub uid: String,
    /// `metadata.resourceVersion` as a number: later states have larger ones.
    pub version: u64,
    /// Label `autoscaling.neon.tech/enabled` is `"true"`.
    pub autoscaled: bool,
    /// `metadata.annotations` exists.
    pub has_annotations: bool,
    /// Annotation scaling-unit as it stands.
    pub unit_text: Option<String>,
    /// Annotation resources-requested as it stands.
    pub requested_text: Option<String>,
    /// Annotation resources-approved as it stands.
    pub approved_text: Option<String>,
    /// Annotation resources-approved, decoded; no more than `largest`.
    pub approved: Noted,
    /// Annotation resources-approved says more than `largest`: the scheduler did not write it.
    pub approved_above_max: bool,
    /// The size wanted now by `spec.guest`; no more than `largest`.
    pub in_use: Resources,
    /// The largest size by `spec.guest`; zero where that is not readable.
    pub largest: Resources,
    /// The size the runner reported last (`status.cpus`, `status.memorySize`, 0 where it did not),
    /// and the pod it spoke of (`status.podName`).
    pub plugged: (String, Resources),
    /// That report speaks of the size wanted now: the guest has reached it. Otherwise the guest may
    /// have more than is reported, because a report can be older than the last growth.
    pub reached: bool,
    /// What is wrong with it.
    pub problem: Option<VmProblem>,
}

impl Noted {
    fn of(text: Option<&String>) -> Self {
        text.map_or(Self::Absent, |text| {
            serde_json::from_str(text).map_or(Self::Garbled, Self::Value)
        })
    }

    fn within(self, largest: Resources) -> Self {
        match self {
            Self::Value(size) => Self::Value(within(size, largest)),
            other => other,
        }
    }
}

/// State of one annotation that holds resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Noted {
    /// Not there.
    Absent,
    /// There and readable.
    Value(Resources),
    /// There and not readable.
    Garbled,
}

impl VmView {
    /// Reads a VirtualMachine in JSON.
    ///
    /// # Errors
    /// [`Unreadable`] when it is no JSON, or has no name.
    pub fn read_text(text: &str) -> Result<Self, Unreadable> {
        quick::read(text.as_bytes()).map_or_else(
            || {
                let object: Result<Value, _> = serde_json::from_str(text);
                Self::read(&object.map_err(|error| Unreadable(error.to_string()))?)
            },
            Ok,
        )
    }

    /// Reads a VirtualMachine.
    ///
    /// # Errors
    /// [`Unreadable`] when it has no name.
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
        let noted = |key: &str| meta.annotations.get(key).cloned();
        let in_use = guest.as_ref().map(VmResources::in_use).unwrap_or_default();
        let largest = guest.as_ref().map(largest).unwrap_or_default();
        let approved = Noted::of(meta.annotations.get(ANNOTATION_APPROVED));
        let plugged = plugged(object);
        Ok(Self {
            key: key_of(&meta),
            version,
            autoscaled: meta.label_is_true(LABEL_ENABLED),
            has_annotations: object
                .pointer("/metadata/annotations")
                .is_some_and(Value::is_object),
            unit_text: noted(ANNOTATION_SCALING_UNIT),
            requested_text: noted(ANNOTATION_REQUESTED),
            approved: approved.within(largest),
            approved_above_max: approved.within(largest) != approved,
            approved_text: noted(ANNOTATION_APPROVED),
            in_use: within(in_use, largest),
            largest,
            reached: plugged.1 == in_use && revision_is_reached(object),
            plugged,
            problem,
            uid: meta.uid,
        })
    }

    /// The VM's own largest size, if that is known.
    #[must_use]
    pub fn most(&self) -> Option<Resources> {
        is_size(self.largest).then_some(self.largest)
    }

    /// The least the VM must be counted at by this object alone: what is approved if it is
    /// autoscaled, what its spec wants, and all it may become when either is not readable.
    #[must_use]
    pub fn floor(&self) -> Resources {
        let used = self.in_use;
        if self.problem.is_some() {
            return used.field_max(self.largest);
        }
        match self.approved {
            Noted::Value(approved) if self.autoscaled => used.field_max(approved),
            Noted::Garbled if self.autoscaled => used.field_max(self.largest),
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

/// Whether the size was reached for the newest wish, not for an older one that happened to be of
/// the same size.
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

/// A size cut to the VM's largest, where that is known.
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

/// The size a VM may reach by its bounds.
pub(super) fn largest(resources: &VmResources) -> Resources {
    let slots = u64::try_from(resources.memory_slots.max).unwrap_or(0);
    let slot = resources.memory_slot_size.as_u64().unwrap_or(0);
    Resources {
        cpu: resources.cpus.max,
        mem: Bytes(slot.saturating_mul(slots)),
    }
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
    fn a_vm_is_read() {
        let view = VmView::read(&vm()).expect("has a name");
        assert_eq!(view.version, 17);
        assert_eq!(view.in_use, Resources::new(500, 2 << 30));
        assert_eq!(view.largest, Resources::new(4000, 8 << 30));
        assert!(view.autoscaled && !view.has_annotations && view.problem.is_none());
        assert_eq!(view.approved, Noted::Absent);
        assert_eq!(view.floor(), view.in_use);
    }

    #[test]
    fn garbled_approval_counts_the_largest_size() {
        let mut object = vm();
        object["metadata"]["annotations"] = json!({ANNOTATION_APPROVED: "{"});
        let view = VmView::read(&object).expect("has a name");
        assert_eq!(view.approved, Noted::Garbled);
        assert_eq!(view.floor(), view.largest);
    }

    #[test]
    fn one_bad_member_of_a_vm_is_a_problem_of_that_vm() {
        let mut object = vm();
        object["spec"]["guest"]["cpus"] = json!("many");
        object["metadata"]["resourceVersion"] = json!("abc");
        object["metadata"]["annotations"] =
            json!({"a": 7, ANNOTATION_APPROVED: "{\"vCPUs\":1,\"mem\":\"1Gi\"}"});
        let view = VmView::read(&object).expect("has a name");
        assert_eq!(view.problem, Some(VmProblem::Version("abc".into())));
        assert_eq!(view.approved, Noted::Value(Resources::new(1000, 1 << 30)));
        assert!(VmView::read(&json!({"metadata": {"name": "x"}})).is_err());
        assert!(VmView::read(&json!([])).is_err());
    }

    #[test]
    fn nodes_are_read_and_bad_totals_are_zero() {
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
