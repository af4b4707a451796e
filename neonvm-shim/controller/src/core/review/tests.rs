//! Reviews of VMs, migrations and sets, good and bad.

use proptest::prelude::*;

use super::*;

fn vm(cpu: Value) -> Value {
    json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "metadata": {"name": "pg", "namespace": "prod", "uid": "u-vm"},
        "spec": {"guest": {
            "cpus": {"min": "250m", "use": cpu, "max": 4},
            "memorySlotSize": "1Gi",
            "memorySlots": {"min": 1, "use": 2, "max": 8},
            "rootDisk": {"image": "pg:16"},
        }},
    })
}

fn review(operation: &str, object: &Value, old: Option<&Value>) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "kind": {"group": "vm.neon.tech", "version": "v1", "kind": "VirtualMachine"},
            "name": "pg", "namespace": "prod", "operation": operation, "object": object, "oldObject": old,
        },
    })
}

fn validate(
    operation: &str,
    object: &Value,
    old: Option<&Value>,
    excused: &Excused,
) -> ReviewResponse {
    respond(Task::Validate, &review(operation, object, old), excused).expect("a review")
}

fn is_allowed(reviewed: &ReviewResponse) -> bool {
    let response = &reviewed.review["response"];
    assert_eq!(response["uid"], "u-1");
    response["allowed"].as_bool().expect("an answer")
}

/// A size was stored that nobody could read, where it had not been brought into form first.
#[test]
fn malformed_amount_is_refused_by_validation_too() {
    let (none, old) = (Excused::default(), vm(json!(1)));
    for wrong in [json!(-1), json!("much"), json!(1_000_000_000_000_u64)] {
        let new = vm(wrong);
        assert!(!is_allowed(&validate("CREATE", &new, None, &none)));
        let reviewed = validate("UPDATE", &new, Some(&old), &none);
        assert!(!is_allowed(&reviewed));
        let message = reviewed.review["response"]["status"]["message"].to_string();
        assert!(
            message.contains(".spec.guest.cpus.use must be"),
            "{message}"
        );
        // What is stored may lose its finalizer.
        assert!(is_allowed(&validate("UPDATE", &new, Some(&new), &none)));
    }
}

#[test]
fn amounts_are_normalised() {
    let review = review("CREATE", &vm(json!(0.5)), None);
    let reviewed = respond(Task::Mutate, &review, &Excused::default()).expect("a review");
    assert!(is_allowed(&reviewed));
    let response = &reviewed.review["response"];
    assert_eq!(response["patchType"], "JSONPatch");
    let patch = STANDARD.decode(response["patch"].as_str().expect("a patch"));
    let patch: Value = serde_json::from_slice(&patch.expect("base64")).expect("JSON");
    let found = patch.as_array().expect("operations").iter();
    let spec = found
        .clone()
        .find(|one| one["path"] == "/spec")
        .expect("one");
    assert_eq!(spec["value"]["guest"]["cpus"]["use"], "500m");
    assert!(
        found.clone().all(|one| one["path"] != "/metadata"),
        "{patch}"
    );
}

/// The spec that a review's object gets.
fn mutated_spec(review: &Value) -> (Value, Value) {
    let reviewed = respond(Task::Mutate, review, &Excused::default()).expect("a review");
    assert!(is_allowed(&reviewed));
    let response = reviewed.review["response"].clone();
    let Some(patch) = response["patch"].as_str() else {
        return (review["request"]["object"]["spec"].clone(), response);
    };
    let patch = STANDARD.decode(patch).expect("base64");
    let patch: Vec<Value> = serde_json::from_slice(&patch).expect("operations");
    let spec = patch.iter().find(|one| one["path"] == "/spec");
    (spec.expect("a spec")["value"].clone(), response)
}

#[test]
fn missing_size_is_filled_in() {
    let mut new = vm(json!(3));
    new["spec"]["guest"]["cpus"]
        .as_object_mut()
        .expect("it")
        .remove("use");
    new["spec"]["guest"]["memorySlots"]["use"] = Value::Null;
    let (spec, _) = mutated_spec(&review("CREATE", &new, None));
    assert_eq!(spec["guest"]["cpus"]["use"], "250m");
    assert_eq!(spec["guest"]["memorySlots"]["use"], 1);
    // The stored form need not be the kept one.
    let old = vm(json!(0.5));
    let (spec, _) = mutated_spec(&review("UPDATE", &new, Some(&old)));
    assert_eq!(spec["guest"]["cpus"]["use"], "500m");
    assert_eq!(spec["guest"]["memorySlots"]["use"], 2);
}

#[test]
fn autoscaled_vm_is_not_shrunk_by_manifest() {
    let autoscaled = |cpu: u32| {
        let mut vm = vm(json!(cpu));
        vm["metadata"]["labels"] = json!({"autoscaling.neon.tech/enabled": "true"});
        vm
    };
    let mut review = review("UPDATE", &autoscaled(1), Some(&autoscaled(3)));
    review["request"]["userInfo"] = json!({"username": "ann"});
    review["request"]["options"] = json!({"fieldManager": "kubectl-client-side-apply"});
    let (spec, response) = mutated_spec(&review);
    assert_eq!(spec["guest"]["cpus"]["use"], 3);
    let warning = response["warnings"][0].as_str().unwrap_or_default();
    assert!(
        warning.contains(".spec.guest.cpus.use stays 3"),
        "{response}"
    );
    for (member, value) in [
        (
            "userInfo",
            json!({"username": "system:serviceaccount:kube-system:autoscaler-agent"}),
        ),
        ("options", json!({"fieldManager": "autoscaler-agent"})),
    ] {
        let mut review = review.clone();
        review["request"][member] = value;
        let (spec, response) = mutated_spec(&review);
        assert_eq!(spec["guest"]["cpus"]["use"], 1, "{member}");
        assert_eq!(response.get("warnings"), None, "{member}");
    }
}

#[test]
fn normalised_object_is_left_alone() {
    let mut kept = vm(json!("500m"));
    admission::normalise("VirtualMachine", &mut kept).expect("is good");
    let review = review("UPDATE", &kept, Some(&kept));
    let reviewed = respond(Task::Mutate, &review, &Excused::default()).expect("a review");
    assert!(is_allowed(&reviewed));
    assert_eq!(reviewed.review["response"].get("patch"), None);
}

#[test]
fn new_vm_out_of_range_is_refused_by_field() {
    let reviewed = validate("CREATE", &vm(json!(5)), None, &Excused::default());
    assert!(!is_allowed(&reviewed));
    let status = &reviewed.review["response"]["status"];
    assert_eq!(
        (&status["code"], &status["reason"]),
        (&json!(422), &json!("Invalid"))
    );
    assert_eq!(
        status["details"]["causes"][0]["field"],
        "spec.guest.cpus.use"
    );
    let message = status["message"].as_str().expect("text");
    assert!(message.contains(".spec.guest.cpus.use"), "{message}");
}

#[test]
fn only_mutable_members_may_change() {
    let (old, mut other) = (vm(json!(1)), vm(json!(2)));
    assert!(is_allowed(&validate(
        "UPDATE",
        &other,
        Some(&old),
        &Excused::default()
    )));
    other["spec"]["guest"]["rootDisk"]["image"] = json!("other");
    let reviewed = validate("UPDATE", &other, Some(&old), &Excused::default());
    assert!(!is_allowed(&reviewed) && reviewed.skipped.is_none());
}

#[test]
fn spellings_of_one_amount_are_equal() {
    let (old, mut new) = (vm(json!(1)), vm(json!("1000m")));
    new["spec"]["guest"]["cpus"]["min"] = json!(0.25);
    new["spec"]["guest"]["memorySlotSize"] = json!("1024Mi");
    assert!(is_allowed(&validate(
        "UPDATE",
        &new,
        Some(&old),
        &Excused::default()
    )));
}

/// It was stored before there were rules, and its finalizer must go.
#[test]
fn an_object_that_breaks_a_rule_may_still_lose_its_finalizer() {
    let old = vm(json!(9));
    let mut new = old.clone();
    new["metadata"]["finalizers"] = json!([]);
    assert!(is_allowed(&validate(
        "UPDATE",
        &new,
        Some(&old),
        &Excused::default()
    )));
}

#[test]
fn unlikely_value_passes_with_warning() {
    let with_port = |cpu| {
        let mut vm = vm(json!(cpu));
        vm["spec"]["guest"]["ports"] = json!([{"port": 20188, "protocol": "TCP"}]);
        vm
    };
    let (old, new) = (with_port(1), with_port(2));
    let reviewed = validate("CREATE", &old, None, &Excused::default());
    let response = &reviewed.review["response"];
    let warning = response["warnings"][0].as_str().unwrap_or_default();
    assert!(
        is_allowed(&reviewed) && warning.contains("20188"),
        "{response}"
    );
    // Who resizes it later is not told again.
    let reviewed = validate("UPDATE", &new, Some(&old), &Excused::default());
    let response = &reviewed.review["response"];
    assert!(
        is_allowed(&reviewed) && response.get("warnings").is_none(),
        "{response}"
    );
}

#[test]
fn excused_vm_passes_with_warning() {
    let (old, new) = (vm(json!(1)), vm(json!(9)));
    let excused = Excused::of("prod/pg, other".split(','));
    let reviewed = validate("UPDATE", &new, Some(&old), &excused);
    assert!(is_allowed(&reviewed));
    assert!(reviewed.review["response"]["warnings"][0].is_string());
    let skipped = reviewed.skipped.expect("is told of");
    assert_eq!(
        (skipped.key.to_string(), &*skipped.uid),
        ("prod/pg".into(), "u-vm")
    );
    // Nothing is written for a dry run.
    let mut dry = review("UPDATE", &new, Some(&old));
    dry["request"]["dryRun"] = json!(true);
    let reviewed = super::respond(Task::Validate, &dry, &excused).expect("a review");
    assert!(is_allowed(&reviewed) && reviewed.skipped.is_none());
    // A new one is not excused, and neither is one of another namespace.
    assert!(!is_allowed(&validate("CREATE", &new, None, &excused)));
    let excused = Excused::of(["pg"]);
    assert!(!is_allowed(&validate("UPDATE", &new, Some(&old), &excused)));
    assert_eq!(excused, Excused::of(["default/pg"]));
}

#[test]
fn malformed_review_gets_no_response() {
    let ask = |review: Value| respond(Task::Validate, &review, &Excused::default()).map(drop);
    assert_eq!(ask(json!({})), Err(NoReview::OtherKind));
    let mut old = review("CREATE", &vm(json!(1)), None);
    old["apiVersion"] = json!("admission.k8s.io/v1beta1");
    assert_eq!(ask(old), Err(NoReview::OtherKind));
    for member in ["uid", "kind", "object"] {
        let mut lacks = review("CREATE", &vm(json!(1)), None);
        lacks["request"][member] = Value::Null;
        assert_eq!(ask(lacks), Err(NoReview::Incomplete), "{member}");
    }
}

fn review_of_set(operation: &str, object: &Value, old: Option<&Value>) -> ReviewResponse {
    let mut review = review(operation, object, old);
    review["request"]["kind"]["kind"] = json!("VirtualMachineSet");
    review["request"]["name"] = json!("web");
    let excused = Excused::of(["prod/web"]);
    respond(Task::Validate, &review, &excused).expect("a review")
}

/// Requirement: V15. The table is the one that the embedded API server's rules are tested with.
#[test]
fn v15_webhook_refuses_the_bad_sets_that_the_embedded_server_refuses() {
    let table = include_str!("../../../../../protocol/testdata/policy/sets.json");
    let table: Value = serde_json::from_str(table).expect("a table");
    let good = &table["good"];
    assert!(is_allowed(&review_of_set("CREATE", good, None)));
    for case in table["bad"].as_array().expect("cases") {
        let mut set = good.clone();
        let at = case["at"].as_array().expect("a path").iter();
        let member = at.fold(&mut set, |value, name| {
            &mut value[name.as_str().expect("a name")]
        });
        *member = case["value"].clone();
        let is_name = set["metadata"]["name"] != "web";
        let reviews = [
            review_of_set("CREATE", &set, None),
            review_of_set("UPDATE", &set, Some(good)),
        ];
        // Names never change, so an update of the same spec passes.
        let reviews = &reviews[..if is_name { 1 } else { 2 }];
        for reviewed in reviews {
            assert!(!is_allowed(reviewed), "{case}");
            let causes = &reviewed.review["response"]["status"]["details"]["causes"];
            let mut causes = causes.as_array().expect("causes").iter();
            assert!(causes.any(|one| one["field"] == case["field"]), "{case}");
        }
        // What is stored may lose its finalizer.
        assert!(is_allowed(&review_of_set("UPDATE", &set, Some(&set))));
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop_oneof![Just("1Gi".to_owned()), Just("250m".to_owned()), ".{0,8}"]
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(
                prop_oneof![
                    Just("guest".to_owned()),
                    Just("cpus".to_owned()),
                    "[a-z]{1,4}"
                ],
                inner,
                0..4
            )
            .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Whatever is in an object, there is an answer to its review.
    #[test]
    fn every_object_gets_response(spec in any_json(), old in any_json(), update: bool, mutate: bool) {
        let object = |spec| json!({"metadata": {"name": "x"}, "spec": spec});
        let operation = if update { "UPDATE" } else { "CREATE" };
        let review = review(operation, &object(spec), Some(&object(old)));
        let task = if mutate { Task::Mutate } else { Task::Validate };
        let reviewed = respond(task, &review, &Excused::default()).expect("a review");
        is_allowed(&reviewed);
    }
}
