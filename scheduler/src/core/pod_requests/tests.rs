//! Sizes of pods against the vectors of docs/compatibility/scheduler.md §7.4.

use super::*;
use serde_json::json;

const USE: &str = r#"{"cpus":{"min":"250m","max":4,"use":1},"memorySlots":{"min":1,"max":8,"use":2},"memorySlotSize":"1Gi"}"#;

fn vm_pod(annotations: Value, labels: Value) -> Value {
    let mut annotations = annotations;
    if annotations.get(ANNOTATION_VM_RESOURCES).is_none() {
        annotations[ANNOTATION_VM_RESOURCES] = json!(USE);
    }
    json!({"metadata": {"name": "pg-abc", "namespace": "default", "uid": "p1", "labels": labels,
            "annotations": annotations,
            "ownerReferences": [{"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": "pg", "uid": "v", "controller": true}]},
        "spec": {"nodeName": "n1", "schedulerName": "autoscale-scheduler", "containers": [{"name": "r"}]}})
}

fn autoscaled(annotations: Value) -> Value {
    vm_pod(annotations, json!({LABEL_ENABLED: "true"}))
}

fn size(object: &Value) -> PodSize {
    PodView::read(object)
        .expect("has a name")
        .size
        .expect("is readable")
}

fn with_owner(object: &Value, vm_controller: bool, migration_controller: bool) -> PodView {
    let mut object = object.clone();
    object["metadata"]["ownerReferences"] = json!([
        {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": "pg", "uid": "v", "controller": vm_controller},
        {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration", "name": "m", "uid": "m", "controller": migration_controller}]);
    PodView::read(&object).expect("has a name")
}

const GIB: u64 = 1 << 30;
const UNIT: &str = r#"{"vCPUs":"500m","mem":"1Gi"}"#;

#[test]
fn plain_pods_and_unscaled_vms_count_as_in_the_vectors() {
    let plain = json!({"metadata": {"name": "a", "namespace": "d", "uid": "1"}, "spec": {
        "initContainers": [{"resources": {"requests": {"cpu": "250m", "memory": "1Gi"}}}],
        "containers": [{"resources": {"requests": {"cpu": "250m", "memory": "256Mi"}}},
            {"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": 9}}}]}});
    let got = size(&plain);
    assert_eq!(got.reserved, Resources::new(750, 1280 << 20));
    assert_eq!(
        (got.requested, got.unit),
        (got.reserved, Resources::default())
    );
    let view = PodView::read(&plain).expect("has a name");
    assert!(!view.migratable && view.vm.is_none() && view.role == PodRole::Settled);

    // The autoscaling annotations of a VM that is not autoscaled are not even parsed.
    let unscaled = vm_pod(json!({ANNOTATION_APPROVED: "garbage"}), json!({}));
    assert_eq!(size(&unscaled).reserved, Resources::new(1000, 2 * GIB));
    let both = vm_pod(
        json!({ANNOTATION_VM_OVERCOMMIT: r#"{"cpu":"2500m","memory":1.5}"#}),
        json!({}),
    );
    assert_eq!(size(&both).overcommit_milli, Both::new(2500, 1500));
    let cpu = vm_pod(
        json!({ANNOTATION_VM_OVERCOMMIT: r#"{"cpu":"2500m"}"#}),
        json!({}),
    );
    assert_eq!(size(&cpu).overcommit_milli, Both::new(2500, 1000));
}

#[test]
fn autoscaled_vms_count_as_in_the_vectors() {
    let asking = autoscaled(json!({ANNOTATION_SCALING_UNIT: UNIT,
        ANNOTATION_REQUESTED: r#"{"vCPUs":"1500m","mem":"3Gi"}"#}));
    let got = size(&asking);
    assert_eq!(got.reserved, Resources::new(1000, 2 * GIB));
    assert_eq!(got.requested, Resources::new(1500, 3 * GIB));
    assert_eq!(got.unit, Resources::new(500, GIB));

    let approved = autoscaled(json!({ANNOTATION_SCALING_UNIT: UNIT,
        ANNOTATION_VM_RESOURCES: USE.replace(r#""use":1}"#, r#""use":"1500m"}"#).replace(r#""use":2}"#, r#""use":3}"#),
        ANNOTATION_REQUESTED: r#"{"vCPUs":1,"mem":"2Gi"}"#, ANNOTATION_APPROVED: r#"{"vCPUs":2,"mem":"4Gi"}"#}));
    let got = size(&approved);
    assert_eq!(
        (got.reserved, got.requested),
        (Resources::new(2000, 4 * GIB), Resources::new(1000, 2 * GIB))
    );

    let mut object = approved.clone();
    object["metadata"]["labels"][LABEL_AUTO_MIGRATION] = json!("true");
    assert!(PodView::read(&object).expect("has a name").migratable);
    let source = with_owner(&object, true, false);
    assert!(source.migratable && source.role == PodRole::Source);
    let target = with_owner(&object, false, true);
    assert!(!target.migratable && target.role == PodRole::Target);
    let finished = with_owner(&object, false, false);
    assert!(finished.migratable && finished.role == PodRole::Source);

    let no_unit = autoscaled(json!({ANNOTATION_REQUESTED: UNIT}));
    let got = PodView::read(&no_unit).expect("has a name").size;
    assert_eq!(got, Err(PodProblem::RequestedWithoutUnit));
}

#[test]
fn pod_that_does_not_parse_counts_at_the_most_that_it_can_be() {
    for (annotations, expected) in [
        (
            json!({ANNOTATION_APPROVED: "{"}),
            Resources::new(4000, 8 * GIB),
        ),
        (
            json!({ANNOTATION_VM_OVERCOMMIT: r#"{"cpu":0}"#}),
            Resources::new(4000, 8 * GIB),
        ),
        (
            json!({ANNOTATION_VM_OVERCOMMIT: r#"{"cpu":-1}"#}),
            Resources::new(4000, 8 * GIB),
        ),
        (json!({ANNOTATION_VM_RESOURCES: "[]"}), Resources::default()),
        (
            json!({ANNOTATION_SCALING_UNIT: r#"{"vCPUs":-1,"mem":1}"#}),
            Resources::new(4000, 8 * GIB),
        ),
    ] {
        let view = PodView::read(&autoscaled(annotations.clone())).expect("has a name");
        assert!(view.size.is_err(), "{annotations}");
        assert_eq!(view.fallback, expected, "{annotations}");
    }
    let mut no_resources = autoscaled(json!({}));
    no_resources["metadata"]["annotations"] = json!({});
    no_resources["spec"]["containers"] =
        json!([{"resources": {"requests": {"cpu": 2, "memory": "1Gi"}}}]);
    let view = PodView::read(&no_resources).expect("has a name");
    assert_eq!(view.size, Err(PodProblem::NoVmResources));
    assert_eq!(view.fallback, Resources::new(2000, GIB));
}

#[test]
fn malformed_requests_are_problems_of_the_pod() {
    for requests in [
        json!({"cpu": -1}),
        json!({"cpu": "x"}),
        json!({"cpu": 5_000_000}),
        json!({"memory": []}),
    ] {
        let pod = json!({"metadata": {"name": "a", "namespace": "d", "uid": "1"},
            "spec": {"containers": [{"resources": {"requests": requests}}]}});
        assert!(
            PodView::read(&pod).expect("has a name").size.is_err(),
            "{pod}"
        );
    }
    for spec in [
        json!({"containers": 7}),
        json!({"containers": [7, null]}),
        json!(null),
        json!("x"),
    ] {
        let pod = json!({"metadata": {"name": "a", "namespace": "d", "uid": "1"}, "spec": spec});
        assert!(PodView::read(&pod).is_ok(), "{pod}");
    }
}

#[test]
fn owner_of_another_group_does_not_make_a_pod_a_vm() {
    let mut object = autoscaled(json!({}));
    object["metadata"]["ownerReferences"][0]["apiVersion"] = json!("example.com/v1");
    assert_eq!(PodView::read(&object).expect("has a name").vm, None);
}

#[test]
fn pod_may_burst_if_a_limit_is_above_its_request() {
    let may_burst = |resources: Value| {
        let pod = json!({"metadata": {"name": "a", "namespace": "d", "uid": "1"},
            "spec": {"containers": [{"name": "x"}, {"resources": resources}]}});
        PodView::read(&pod).expect("has a name").may_burst
    };
    let of = |request: &str, limit: &str| {
        may_burst(json!({"requests": {"cpu": "1", "memory": request},
            "limits": {"cpu": "1000m", "memory": limit}}))
    };
    assert!(of("1Gi", "1025Mi"));
    assert!(!of("1Gi", "1024Mi"), "they are equal");
    assert!(
        !may_burst(json!({"limits": {"cpu": 1}})),
        "its request is the limit"
    );
    assert!(!may_burst(json!({"requests": {"cpu": 1}})));
}
