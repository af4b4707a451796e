//! Labels and annotations of a runner pod: what they must be (docs/compatibility/neonvm.md §1.10)
//! and the patch that makes them so (§2.5).

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
/// Annotation by which the network plugin is asked for the overlay interface.
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
    /// What it is about, a JSON pointer.
    #[must_use]
    pub fn path(&self) -> &str {
        match self {
            Self::Add { path, .. } | Self::Remove { path } | Self::Test { path, .. } => path,
        }
    }
}

/// What the pod of `vm` must carry once its guest has what the spec wants.
#[must_use]
pub fn expected(vm: &VirtualMachine, settings: &Settings) -> Expected {
    expected_at(vm, settings, vm.spec.guest.in_use())
}

/// What the pod of `vm` must carry while it is to say that its guest has `size`.
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

/// The sizes that others add up a node by. A change of them rests on what they were: one that
/// arrives late, or again, does not undo a later one, unless that has brought back what they were.
const SIZES: [&str; 2] = [ANNOTATION_VM_USAGE, ANNOTATION_VM_RESOURCES];
/// All by which others know how much to count for a pod: what a cluster-autoscaler reads of its
/// annotations, and what the scheduler does.
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

/// The size that a pod with this metadata says; `None` where it says nothing that can be read.
#[must_use]
pub fn annotated_size(found: &ObjectMeta) -> Option<Resources> {
    let usage: VmUsage = serde_json::from_str(found.annotations.get(ANNOTATION_VM_USAGE)?).ok()?;
    usage.size()
}

/// Of a pod's sync, what others count it by. A guest grows once this is so, whatever becomes of the
/// rest.
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

/// Where a pod has not the labels and annotations that it was to have by these operations, by the
/// answer to them: a server may change in the same request what it was asked for.
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

/// Whether the operations rest on other values of what is counted than a pod has. A server refuses
/// those by the same code as what it would never take.
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
mod tests {
    use super::*;
    use crate::core::testing::sample_vm;
    use serde_json::json;

    #[test]
    fn usage_and_resources_come_from_the_spec() {
        let mut vm = sample_vm();
        vm.metadata
            .annotations
            .insert("autoscaling.neon.tech/bounds".into(), "{}".into());
        vm.metadata
            .annotations
            .insert(ANNOTATION_LAST_APPLIED.into(), "{}".into());
        vm.metadata
            .labels
            .insert("autoscaling.neon.tech/enabled".into(), "true".into());
        vm.spec.overcommit = serde_json::from_value(json!({"cpu": 2, "memory": "1.5"})).ok();
        let expected = expected(&vm, &Settings::one_machine());
        assert_eq!(
            serde_json::to_value(&expected.labels).expect("encodes"),
            json!({"app.kubernetes.io/name": "NeonVM", "vm.neon.tech/name": "example", "autoscaling.neon.tech/enabled": "true"})
        );
        assert_eq!(
            serde_json::to_value(&expected.annotations).expect("encodes"),
            json!({
                "autoscaling.neon.tech/bounds": "{}",
                "kubectl.kubernetes.io/default-container": "neonvm-runner",
                "vm.neon.tech/usage": r#"{"cpu":"250m","memory":"1Gi"}"#,
                "vm.neon.tech/resources": r#"{"cpus":{"min":"250m","max":2,"use":"250m"},"memorySlots":{"min":1,"max":4,"use":1},"memorySlotSize":"1Gi"}"#,
                "vm.neon.tech/overcommit": r#"{"cpu":"2","memory":"1500m"}"#,
            })
        );
    }

    #[test]
    fn a_change_of_what_is_counted_rests_on_what_was_said_before() {
        let mut vm = sample_vm();
        let settings = Settings::one_machine();
        let carried = |vm: &VirtualMachine| ObjectMeta {
            labels: expected(vm, &settings).labels,
            annotations: expected(vm, &settings).annotations,
            ..ObjectMeta::default()
        };
        let small = carried(&vm);
        vm.spec.guest.memory_slots.r#use = 3;
        let grown = carried(&vm);
        let growth = expected(&vm, &settings).patch(&small);
        let tests = |ops: &[PatchOp]| {
            let is_test = |op: &&PatchOp| matches!(op, PatchOp::Test { .. });
            ops.iter().filter(is_test).count()
        };
        assert_eq!(tests(&growth), 2, "{growth:?}");
        assert!(!rest_on_others(&growth, &small));
        assert!(rest_on_others(&growth, &grown), "once it is carried out");
        assert!(rest_on_others(&growth, &ObjectMeta::default()));
        // Of what nobody counts the last word stays, and where nothing was said there is nothing to
        // rest on.
        vm.metadata.labels.insert("a".into(), "b".into());
        let label = expected(&vm, &settings).patch(&grown);
        assert_eq!((label.len(), tests(&label)), (1, 0));
        let first = expected(&vm, &settings).patch(&ObjectMeta::default());
        assert_eq!(tests(&first), 0);
    }

    fn add(path: &str, value: &Value) -> PatchOp {
        let (path, value) = (path.to_owned(), value.clone());
        PatchOp::Add { path, value }
    }

    #[test]
    fn what_is_counted_is_the_sizes_and_what_the_scheduler_reads() {
        let mut vm = sample_vm();
        let settings = Settings::one_machine();
        for key in [ANNOTATION_APPROVED, "note"] {
            vm.metadata.annotations.insert(key.into(), "{}".into());
        }
        let wanted = expected(&vm, &settings);
        let all = counted(&wanted.patch(&ObjectMeta::default()));
        let keys = [
            ANNOTATION_APPROVED,
            ANNOTATION_VM_RESOURCES,
            ANNOTATION_VM_USAGE,
        ];
        let keys = keys.map(|key| (key, &wanted.annotations[key]));
        let keys: BTreeMap<_, _> = keys.into();
        assert_eq!(all, [add(ANNOTATIONS, &json!(keys))]);
        let mut found = ObjectMeta {
            annotations: wanted.annotations.clone(),
            ..ObjectMeta::default()
        };
        found.annotations.insert("foreign".into(), "x".into());
        found
            .annotations
            .insert(ANNOTATION_VM_USAGE.into(), "{}".into());
        found.annotations.remove("note");
        let (path, value) = (annotation(ANNOTATION_VM_USAGE), json!("{}"));
        let usage = json!(wanted.annotations[ANNOTATION_VM_USAGE]);
        let part = [
            PatchOp::Test {
                path: path.clone(),
                value,
            },
            add(&path, &usage),
        ];
        assert_eq!(
            counted(&wanted.patch(&found)),
            part,
            "with what it rests on"
        );
    }

    #[test]
    fn an_answer_is_held_against_what_was_asked() {
        let gone = PatchOp::Remove {
            path: "/metadata/labels/a~1b".into(),
        };
        let set = add("/metadata/annotations/x~0y", &json!("1"));
        let owners = add("/metadata/ownerReferences", &json!([{"kind": "x"}]));
        let ops = [owners, gone, set];
        let mut found = ObjectMeta::default();
        found.annotations.insert("x~y".into(), "1".into());
        assert_eq!(unmet(&ops, &found), None);
        found.annotations.insert("x~y".into(), "2".into());
        assert_eq!(unmet(&ops, &found), Some("/metadata/annotations/x~0y"));
        found.labels.insert("a/b".into(), String::new());
        assert_eq!(unmet(&ops, &found), Some("/metadata/labels/a~1b"));
        let all = [add(LABELS, &json!({"a/b": ""}))];
        assert_eq!(unmet(&all, &found), None);
        assert_eq!(unmet(&all, &ObjectMeta::default()), Some(LABELS));
    }

    #[test]
    fn the_label_by_which_a_pod_is_found_is_put_back_alone() {
        let label = "/metadata/labels/vm.neon.tech~1name";
        let mut found = ObjectMeta::default();
        let whole = json!({ LABEL_VM_NAME: "vm" });
        assert_eq!(mark("vm", &found), [add(LABELS, &whole)]);
        found.labels.insert("foreign".into(), "x".into());
        assert_eq!(mark("vm", &found), [add(label, &json!("vm"))]);
        found.labels.insert(LABEL_VM_NAME.into(), "other".into());
        assert_eq!(mark("vm", &found), [add(label, &json!("vm"))]);
        found.labels.insert(LABEL_VM_NAME.into(), "vm".into());
        assert!(mark("vm", &found).is_empty());
    }

    #[test]
    fn a_pod_says_a_size_or_nothing() {
        let says = |usage: &str| {
            let annotations = [(ANNOTATION_VM_USAGE.to_owned(), usage.to_owned())].into();
            annotated_size(&ObjectMeta {
                annotations,
                ..ObjectMeta::default()
            })
        };
        let usage = r#"{"cpu":"1500m","memory":"2Gi"}"#;
        assert_eq!(says(usage), Some(Resources::new(1500, 2 << 30)));
        for wrong in ["rubbish", r#"{"cpu":"-1","memory":"2Gi"}"#] {
            assert_eq!(says(wrong), None, "{wrong}");
        }
        assert_eq!(annotated_size(&ObjectMeta::default()), None);
    }

    #[test]
    fn a_size_that_is_not_the_wanted_one_is_said_in_both_annotations() {
        let vm = sample_vm();
        let size = Resources::new(1750, 3 << 30);
        let expected = expected_at(&vm, &Settings::one_machine(), size);
        let found = ObjectMeta {
            annotations: expected.annotations,
            ..ObjectMeta::default()
        };
        assert_eq!(annotated_size(&found), Some(size));
        let resources = &found.annotations[ANNOTATION_VM_RESOURCES];
        let resources: VmResources = serde_json::from_str(resources).expect("what we wrote");
        assert_eq!(resources.in_use(), size);
        assert_eq!(resources.cpus.max, vm.spec.guest.cpus.max);
    }

    #[test]
    fn the_overlay_is_asked_for_when_enabled() {
        let mut vm = sample_vm();
        vm.spec.extra_network = Some(json!({"enable": true}));
        let mut settings = Settings::one_machine();
        assert_eq!(networks(&vm, &settings), None);
        settings.network_attachment = Some("neonvm-system/runner".into());
        assert_eq!(
            networks(&vm, &settings).as_deref(),
            Some("neonvm-system/runner@net1")
        );
        vm.spec.extra_network =
            Some(json!({"enable": true, "interface": "net7", "multusNetwork": "a/b"}));
        assert_eq!(networks(&vm, &settings).as_deref(), Some("a/b@net7"));
        vm.spec.extra_network = Some(json!({"enable": false}));
        assert_eq!(networks(&vm, &settings), None);
    }

    #[test]
    fn the_patch_adds_changes_and_removes_but_leaves_the_network_plugin_alone() {
        let wanted = Expected {
            labels: [("a/b".to_owned(), "1".to_owned())].into(),
            annotations: [("k~x".to_owned(), "new".to_owned())].into(),
        };
        let found = ObjectMeta {
            labels: [
                ("a/b".to_owned(), "1".to_owned()),
                ("foreign".to_owned(), "x".to_owned()),
            ]
            .into(),
            annotations: [
                ("k~x".to_owned(), "old".to_owned()),
                ("stray".to_owned(), "x".to_owned()),
                (
                    "k8s.v1.cni.cncf.io/network-status".to_owned(),
                    "[]".to_owned(),
                ),
            ]
            .into(),
            ..ObjectMeta::default()
        };
        assert_eq!(
            serde_json::to_value(wanted.patch(&found)).expect("encodes"),
            json!([
                {"op": "remove", "path": "/metadata/labels/foreign"},
                {"op": "add", "path": "/metadata/annotations/k~0x", "value": "new"},
                {"op": "remove", "path": "/metadata/annotations/stray"},
            ])
        );
        let bare = wanted.patch(&ObjectMeta::default());
        assert_eq!(
            serde_json::to_value(bare).expect("encodes")[0],
            json!({"op": "add", "path": "/metadata/labels", "value": {"a/b": "1"}})
        );
        let exact = ObjectMeta {
            labels: wanted.labels.clone(),
            annotations: wanted.annotations.clone(),
            ..ObjectMeta::default()
        };
        assert!(wanted.patch(&exact).is_empty());
    }
}
