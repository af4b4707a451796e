use super::*;
use crate::core::testing::sample_vm;
use serde_json::json;

#[test]
fn usage_and_resources_come_from_spec() {
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
fn change_of_sizes_tests_their_old_values() {
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
fn counted_annotations_are_sizes_and_those_of_scheduler() {
    let mut vm = sample_vm();
    let settings = Settings::one_machine();
    for key in [ANNOTATION_APPROVED, "note"] {
        vm.metadata.annotations.insert(key.into(), "{}".into());
    }
    let wanted = expected(&vm, &settings);
    let all = counted(&wanted.patch(&ObjectMeta::default()));
    let counted_annotations: BTreeMap<_, _> = [
        ANNOTATION_APPROVED,
        ANNOTATION_VM_RESOURCES,
        ANNOTATION_VM_USAGE,
    ]
    .map(|key| (key, &wanted.annotations[key]))
    .into();
    assert_eq!(all, [add(ANNOTATIONS, &json!(counted_annotations))]);
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
fn response_is_compared_with_patch() {
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
fn lost_label_is_restored_alone() {
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
fn annotated_size_is_read_or_absent() {
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
fn unwanted_size_is_in_both_annotations() {
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
fn overlay_is_requested_when_enabled() {
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
fn patch_leaves_annotations_of_network_plugin_alone() {
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
