//! Labels and annotations of a runner pod: what they must be (spec/neonvm.md §1.10) and the patch that makes them so
//! (§2.5).

use std::collections::BTreeMap;

use protocol::annotations::{
    ANNOTATION_VM_OVERCOMMIT, ANNOTATION_VM_RESOURCES, ANNOTATION_VM_USAGE, LABEL_VM_NAME,
    VmResources, VmUsage, pointer_escape,
};
use protocol::object::ObjectMeta;
use protocol::quantity::Quantity;
use protocol::units::Resources;
use protocol::vm::VirtualMachine;
use serde::{Deserialize, Serialize};
use serde_json::Value;

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
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// One operation of a JSON patch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum PatchOp {
    /// Sets a member, there or not.
    Add {
        /// JSON pointer.
        path: String,
        /// New value.
        value: Value,
    },
    /// Takes a member away.
    Remove {
        /// JSON pointer.
        path: String,
    },
    /// Fails the whole patch when the member has another value.
    Test {
        /// JSON pointer.
        path: String,
        /// Wanted value.
        value: Value,
    },
}

/// What the pod of `vm` must carry now.
#[must_use]
pub fn expected(vm: &VirtualMachine, settings: &Settings) -> Expected {
    let mut labels = vm.metadata.labels.clone();
    labels.insert(LABEL_VM_NAME.into(), vm.metadata.name.clone());
    labels.insert(LABEL_APP.0.into(), LABEL_APP.1.into());

    let mut annotations = vm.metadata.annotations.clone();
    annotations.remove(ANNOTATION_LAST_APPLIED);
    annotations.insert(
        ANNOTATION_DEFAULT_CONTAINER.into(),
        super::pod::CONTAINER.into(),
    );
    let usage = usage_of(vm.spec.guest.in_use());
    annotations.insert(ANNOTATION_VM_USAGE.into(), text(&usage));
    let resources = VmResources {
        cpus: vm.spec.guest.cpus,
        memory_slots: vm.spec.guest.memory_slots,
        memory_slot_size: vm.spec.guest.memory_slot_size,
    };
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

fn usage_of(size: Resources) -> VmUsage {
    VmUsage {
        cpu: Quantity::from_milli(u64::from(size.cpu.0)),
        memory: Quantity::from_bytes(size.mem.0),
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

/// The sizes that others add up a node by. A change of them rests on what they were: one that arrives late, or again, does not undo a later
/// one, unless that has brought back what they were.
const COUNTED: [&str; 2] = [ANNOTATION_VM_USAGE, ANNOTATION_VM_RESOURCES];
/// Where annotations are.
const ANNOTATIONS: &str = "/metadata/annotations";

impl Expected {
    /// The operations that make `found` exactly this; empty when it is.
    #[must_use]
    pub fn patch(&self, found: &ObjectMeta) -> Vec<PatchOp> {
        let mut ops = self.rests_on(found);
        difference(
            "/metadata/labels",
            &found.labels,
            &self.labels,
            &[],
            &mut ops,
        );
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
        let all = COUNTED.into_iter().filter(changes);
        all.filter_map(tested).collect()
    }
}

fn annotation(key: &str) -> String {
    format!("{ANNOTATIONS}/{}", pointer_escape(key))
}

/// Whether a pod with this metadata says less of anything than `size`, or nothing that can be read.
#[must_use]
pub fn says_less(found: &ObjectMeta, size: Resources) -> bool {
    let usage = found.annotations.get(ANNOTATION_VM_USAGE);
    let usage = usage.and_then(|text| serde_json::from_str::<VmUsage>(text).ok());
    let wanted = usage_of(size);
    usage.is_none_or(|said| said.cpu < wanted.cpu || said.memory < wanted.memory)
}

/// Whether the operations rest on other values of what is counted than a pod has. A server refuses those by the same code as what it
/// would never take.
#[must_use]
pub fn rest_on_others(ops: &[PatchOp], found: &ObjectMeta) -> bool {
    COUNTED.iter().any(|key| {
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
        let said = |vm: &VirtualMachine| ObjectMeta {
            labels: expected(vm, &settings).labels,
            annotations: expected(vm, &settings).annotations,
            ..ObjectMeta::default()
        };
        let small = said(&vm);
        vm.spec.guest.memory_slots.r#use = 3;
        let grown = said(&vm);
        let growth = expected(&vm, &settings).patch(&small);
        let tests = |ops: &[PatchOp]| {
            let is_test = |op: &&PatchOp| matches!(op, PatchOp::Test { .. });
            ops.iter().filter(is_test).count()
        };
        assert_eq!(tests(&growth), 2, "{growth:?}");
        assert!(!rest_on_others(&growth, &small));
        assert!(rest_on_others(&growth, &grown), "once it is carried out");
        assert!(rest_on_others(&growth, &ObjectMeta::default()));
        // Of what nobody counts the last word stays, and where nothing was said there is nothing to rest on.
        vm.metadata.labels.insert("a".into(), "b".into());
        let label = expected(&vm, &settings).patch(&grown);
        assert_eq!((label.len(), tests(&label)), (1, 0));
        let first = expected(&vm, &settings).patch(&ObjectMeta::default());
        assert_eq!(tests(&first), 0);
    }

    #[test]
    fn a_pod_says_less_by_either_resource_or_by_nothing() {
        let says = |usage: &str, mcpu, gib: u64| {
            let annotations = [(ANNOTATION_VM_USAGE.to_owned(), usage.to_owned())].into();
            let found = ObjectMeta {
                annotations,
                ..ObjectMeta::default()
            };
            says_less(&found, Resources::new(mcpu, gib << 30))
        };
        let usage = r#"{"cpu":"1500m","memory":"2Gi"}"#;
        assert!(!says(usage, 1500, 2) && !says(usage, 250, 1));
        assert!(says(usage, 1750, 1) && says(usage, 250, 3));
        assert!(says("rubbish", 250, 1));
        assert!(says_less(
            &ObjectMeta::default(),
            Resources::new(250, 1 << 30)
        ));
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
