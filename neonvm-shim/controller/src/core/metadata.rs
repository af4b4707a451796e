//! Labels and annotations of a runner pod (docs/compatibility/neonvm.md §1.10), and the patch that
//! sets them (§2.5).

use std::collections::BTreeMap;

use protocol::annotations::{
    ANNOTATION_APPROVED, ANNOTATION_REQUESTED, ANNOTATION_SCALING_UNIT, ANNOTATION_VM_OVERCOMMIT,
    ANNOTATION_VM_RESOURCES, ANNOTATION_VM_USAGE, LABEL_VM_NAME, VmResources, VmUsage,
    pointer_escape,
};
use protocol::object::ObjectMeta;
use protocol::quantity::Quantity;
use protocol::units::Resources;
use protocol::vm::VirtualMachine;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::settings::Settings;

/// Label that marks every runner pod.
pub const LABEL_APP: (&str, &str) = ("app.kubernetes.io/name", "NeonVM");
/// Annotation that names the container `kubectl logs` and `exec` take first.
pub const ANNOTATION_DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// Annotation of VMs that `kubectl apply` keeps; of no use on a pod.
pub const ANNOTATION_LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Annotation that asks the network plugin for the overlay interface.
pub const ANNOTATION_NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// Pod annotations of the network plugin that a sync leaves alone.
pub const LEFT_ALONE: [&str; 3] = [
    ANNOTATION_NETWORKS,
    "k8s.v1.cni.cncf.io/network-status",
    "k8s.v1.cni.cncf.io/networks-status",
];

/// The exact labels and annotations a runner pod must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Every label of the pod, those copied from the VM included.
    pub labels: BTreeMap<String, String>,
    /// Every annotation of the pod. A sync removes any other, except those of [`LEFT_ALONE`].
    pub annotations: BTreeMap<String, String>,
}

/// One operation of a JSON patch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum PatchOp {
    /// Sets a member, there or not.
    Add {
        /// JSON pointer to the member, from the root of the object.
        path: String,
        /// Value that the member has afterwards.
        value: Value,
    },
    /// Removes the member at `path`.
    Remove {
        /// JSON pointer to the member, from the root of the object. The patch fails if it is
        /// absent.
        path: String,
    },
    /// Fails the whole patch when the member has another value.
    Test {
        /// JSON pointer to the member, from the root of the object.
        path: String,
        /// Value that the member must have, or else no operation of the patch is applied.
        value: Value,
    },
}

impl PatchOp {
    /// JSON pointer to the member that the operation changes or tests.
    #[must_use]
    pub fn path(&self) -> &str {
        match self {
            Self::Add { path, .. } | Self::Remove { path } | Self::Test { path, .. } => path,
        }
    }
}

/// Metadata of the pod of `vm` once its guest has the size in the spec.
#[must_use]
pub fn expected(vm: &VirtualMachine, settings: &Settings) -> Expected {
    expected_at(vm, settings, vm.spec.guest.in_use())
}

/// Metadata of the pod of `vm` while the pod says that its guest has `size`.
#[must_use]
pub fn expected_at(vm: &VirtualMachine, settings: &Settings, size: Resources) -> Expected {
    let mut labels = vm.metadata.labels.clone();
    labels.insert(LABEL_VM_NAME.into(), vm.metadata.name.clone());
    labels.insert(LABEL_APP.0.into(), LABEL_APP.1.into());

    let mut annotations = vm.metadata.annotations.clone();
    annotations.remove(ANNOTATION_LAST_APPLIED);
    annotations.insert(
        ANNOTATION_DEFAULT_CONTAINER.into(),
        super::container::CONTAINER.into(),
    );
    let usage = VmUsage {
        cpu: Quantity::from_milli(u64::from(size.cpu.0)),
        memory: Quantity::from_bytes(size.mem.0),
    };
    annotations.insert(ANNOTATION_VM_USAGE.into(), text(&usage));
    let guest = &vm.spec.guest;
    let mut resources = VmResources {
        cpus: guest.cpus,
        memory_slots: guest.memory_slots,
        memory_slot_size: guest.memory_slot_size,
    };
    if size != guest.in_use() {
        let slots = size.mem.0.div_ceil(guest.slot_bytes().max(1));
        resources.cpus.r#use = size.cpu;
        resources.memory_slots.r#use = i32::try_from(slots).unwrap_or(i32::MAX);
    }
    annotations.insert(ANNOTATION_VM_RESOURCES.into(), text(&resources));
    if let Some(overcommit) = &vm.spec.overcommit {
        annotations.insert(ANNOTATION_VM_OVERCOMMIT.into(), text(overcommit));
    }
    if let Some(networks) = networks(vm, settings) {
        annotations.insert(ANNOTATION_NETWORKS.into(), networks);
    }
    Expected {
        labels,
        annotations,
    }
}

fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("quantities and integers always encode")
}

/// `<namespace>/<name>@<interface>` of the overlay, when it is enabled and known.
fn networks(vm: &VirtualMachine, settings: &Settings) -> Option<String> {
    let extra = vm.spec.extra_network.as_ref()?;
    if extra.get("enable").and_then(Value::as_bool) != Some(true) {
        return None;
    }
    let member = |name: &str| {
        extra
            .get(name)
            .and_then(Value::as_str)
            .filter(|s| !s.is_empty())
    };
    let network = member("multusNetwork").or(settings.network_attachment.as_deref())?;
    Some(format!(
        "{network}@{}",
        member("interface").unwrap_or("net1")
    ))
}

/// Annotations with sizes, by which others sum up a node. A change of them tests their old values.
/// A patch that arrives late or twice then cannot undo a later one, unless the later one restored
/// these values.
const SIZES: [&str; 2] = [ANNOTATION_VM_USAGE, ANNOTATION_VM_RESOURCES];
/// Annotations by which others count a pod: those that cluster-autoscaler reads, and those that the
/// scheduler reads.
const COUNTED: [&str; 6] = [
    ANNOTATION_VM_USAGE,
    ANNOTATION_VM_RESOURCES,
    ANNOTATION_VM_OVERCOMMIT,
    ANNOTATION_APPROVED,
    ANNOTATION_REQUESTED,
    ANNOTATION_SCALING_UNIT,
];
/// Where labels are.
const LABELS: &str = "/metadata/labels";
/// Where annotations are.
const ANNOTATIONS: &str = "/metadata/annotations";

impl Expected {
    /// The operations that make `found` exactly this; empty when it is.
    #[must_use]
    pub fn patch(&self, found: &ObjectMeta) -> Vec<PatchOp> {
        let mut ops = self.rests_on(found);
        difference(LABELS, &found.labels, &self.labels, &[], &mut ops);
        difference(
            ANNOTATIONS,
            &found.annotations,
            &self.annotations,
            &LEFT_ALONE,
            &mut ops,
        );
        ops
    }

    fn rests_on(&self, found: &ObjectMeta) -> Vec<PatchOp> {
        let changes = |key: &&str| found.annotations.get(*key) != self.annotations.get(*key);
        let tested = |key: &str| {
            let was = found.annotations.get(key)?;
            Some(PatchOp::Test {
                path: annotation(key),
                value: Value::String(was.clone()),
            })
        };
        let all = SIZES.into_iter().filter(changes);
        all.filter_map(tested).collect()
    }
}

fn annotation(key: &str) -> String {
    format!("{ANNOTATIONS}/{}", pointer_escape(key))
}

/// Size in the usage annotation of a pod; `None` if it is missing or malformed.
#[must_use]
pub fn annotated_size(found: &ObjectMeta) -> Option<Resources> {
    let usage: VmUsage = serde_json::from_str(found.annotations.get(ANNOTATION_VM_USAGE)?).ok()?;
    usage.size()
}

/// Operations of a sync on the annotations by which others count the pod. A guest grows once these
/// are done, even if the rest of the sync fails.
#[must_use]
pub fn counted(ops: &[PatchOp]) -> Vec<PatchOp> {
    let is_counted = |path: &str| COUNTED.iter().any(|key| annotation(key) == path);
    let part = |op: &PatchOp| match op {
        // All annotations of a pod that has none.
        PatchOp::Add {
            path,
            value: Value::Object(all),
        } if path == ANNOTATIONS => {
            let mut all = all.clone();
            all.retain(|key, _| COUNTED.contains(&key.as_str()));
            let (path, value) = (path.clone(), Value::Object(all));
            Some(PatchOp::Add { path, value })
        }
        op => is_counted(op.path()).then(|| op.clone()),
    };
    ops.iter().filter_map(part).collect()
}

/// First path of the operations that the API server's response does not show as applied. An
/// admission webhook may change a patched value in the same request.
#[must_use]
pub fn unmet<'a>(ops: &'a [PatchOp], found: &ObjectMeta) -> Option<&'a str> {
    let found = json!({"metadata": found});
    let is_met = |op: &PatchOp| {
        let has = found.pointer(op.path());
        match op {
            PatchOp::Add {
                value: Value::Object(all),
                ..
            } => all
                .iter()
                .all(|(key, value)| has.and_then(|has| has.get(key)) == Some(value)),
            PatchOp::Add { value, .. } => has == Some(value),
            PatchOp::Remove { .. } => has.is_none(),
            PatchOp::Test { .. } => true,
        }
    };
    let is_ours = |path: &str| path.starts_with(LABELS) || path.starts_with(ANNOTATIONS);
    let mut paths = ops.iter().filter(|op| !is_met(op)).map(PatchOp::path);
    paths.find(|path| is_ours(path))
}

/// Text that names the metadata which an API server did not store.
#[must_use]
pub fn unmet_text(path: &str) -> String {
    format!("the API server takes the patch and leaves {path} otherwise")
}

/// The operations that give a pod the label by which the watch finds it, and leave all else; empty
/// if it has it.
#[must_use]
pub fn mark(vm: &str, found: &ObjectMeta) -> Vec<PatchOp> {
    let wanted = [(LABEL_VM_NAME.to_owned(), vm.to_owned())].into();
    let others: Vec<&str> = found.labels.keys().map(String::as_str).collect();
    let mut ops = Vec::new();
    difference(LABELS, &found.labels, &wanted, &others, &mut ops);
    ops
}

/// Whether the operations test other sizes than the pod has. An API server refuses such a patch
/// with the same code as one that it would never accept.
#[must_use]
pub fn rest_on_others(ops: &[PatchOp], found: &ObjectMeta) -> bool {
    SIZES.iter().any(|key| {
        let path_of_key = annotation(key);
        let has = found.annotations.get(*key).map(String::as_str);
        ops.iter().any(|op| match op {
            PatchOp::Test { path, value } => *path == path_of_key && value.as_str() != has,
            _ => false,
        })
    })
}

fn difference(
    base: &str,
    found: &BTreeMap<String, String>,
    wanted: &BTreeMap<String, String>,
    left_alone: &[&str],
    ops: &mut Vec<PatchOp>,
) {
    if found.is_empty() && !wanted.is_empty() {
        // A member cannot be added below a parent that is not there.
        let value = serde_json::to_value(wanted).expect("a map of strings always encodes");
        ops.push(PatchOp::Add {
            path: base.into(),
            value,
        });
        return;
    }
    for (key, value) in wanted {
        if found.get(key) != Some(value) {
            let path = format!("{base}/{}", pointer_escape(key));
            ops.push(PatchOp::Add {
                path,
                value: Value::String(value.clone()),
            });
        }
    }
    for key in found.keys() {
        if !wanted.contains_key(key) && !left_alone.contains(&key.as_str()) {
            ops.push(PatchOp::Remove {
                path: format!("{base}/{}", pointer_escape(key)),
            });
        }
    }
}

#[cfg(test)]
mod tests;
