use super::*;

fn definition() -> Value {
    json!({"metadata": {"name": "things.example.org"}, "spec": {
        "group": "example.org", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": {"size": {"type": "integer", "default": 3, "maximum": 9}}}}}}}]}})
}

const DEFINITIONS: &str = "apiextensions.k8s.io/customresourcedefinitions";

#[test]
fn a_definition_serves_a_kind_and_takes_its_objects_along() {
    let mut store = store();
    let made = create(&mut store, DEFINITIONS, definition()).expect("created");
    assert_eq!(made["status"]["conditions"][1]["type"], "Established");
    assert_eq!(made["spec"]["names"]["singular"], "thing");
    let thing = create(
        &mut store,
        "example.org/things",
        json!({"metadata": {"name": "a"}, "spec": {}}),
    )
    .expect("created");
    assert_eq!(thing["spec"]["size"], 3);
    assert_eq!(
        merge(
            &mut store,
            "example.org/things/a",
            json!({"spec": {"size": 10}})
        )
        .expect_err("too big")
        .code(),
        422
    );
    delete(
        &mut store,
        "apiextensions.k8s.io/customresourcedefinitions/things.example.org",
        DeleteOptions::default(),
    )
    .expect("deleted");
    assert_eq!(store.view().count("things.example.org"), 0);
    assert_eq!(
        create(
            &mut store,
            "example.org/things",
            json!({"metadata": {"name": "a"}})
        )
        .expect_err("unknown")
        .code(),
        404
    );
}

#[test]
fn a_member_added_to_a_definition_has_its_default_in_old_objects() {
    let mut store = store();
    create(&mut store, DEFINITIONS, definition()).expect("created");
    create(
        &mut store,
        "example.org/things",
        json!({"metadata": {"name": "a"}, "spec": {}}),
    )
    .expect("created");
    let revision =
        get(&store, "example.org/things/a").expect("there")["metadata"]["resourceVersion"].clone();
    let path = "apiextensions.k8s.io/customresourcedefinitions/things.example.org";
    let mut newer = get(&store, path).expect("there").clone();
    newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        ["colour"] = json!({"type": "string", "default": "red"});
    update(&mut store, path, newer).expect("updated");
    let thing = get(&store, "example.org/things/a").expect("there");
    assert_eq!(
        (
            &thing["spec"]["colour"],
            &thing["metadata"]["resourceVersion"]
        ),
        (&json!("red"), &revision)
    );
}

/// The same definition with a rule in CEL for `spec`.
fn with_rule(mut definition: Value) -> Value {
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] =
        json!([{"rule": "self.size > 1", "message": "too small"}]);
    definition
}

#[test]
fn definition_with_rules_that_are_not_enforced_is_refused() {
    let mut store = store();
    let refusal = create(&mut store, DEFINITIONS, with_rule(definition())).expect_err("has a rule");
    assert_eq!(refusal.code(), 422);
    let status = refusal.to_status();
    assert_eq!(
        status["details"]["causes"][0]["field"],
        "spec.versions[0].schema.openAPIV3Schema.properties[spec].x-kubernetes-validations"
    );
    assert!(
        refusal.message.contains("does not enforce CEL rules"),
        "{refusal}"
    );
    create(&mut store, DEFINITIONS, definition()).expect("created");
    let path = "apiextensions.k8s.io/customresourcedefinitions/things.example.org";
    let newer = with_rule(get(&store, path).expect("there").clone());
    assert_eq!(
        update(&mut store, path, newer)
            .expect_err("has a rule")
            .code(),
        422
    );
}

#[test]
fn a_broken_definition_is_refused_with_its_problems() {
    let mut store = store();
    let mut body = definition();
    body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] =
        json!({"type": "array"});
    let error = create(&mut store, DEFINITIONS, body).expect_err("broken");
    assert_eq!(
        fields(&error),
        ["spec.versions[0].schema.openAPIV3Schema.properties[spec].items"]
    );
    let mut clash = definition();
    clash["metadata"]["name"] = json!("pods.vm.neon.tech");
    clash["spec"]["group"] = json!("vm.neon.tech");
    clash["spec"]["names"] = json!({"plural": "pods", "kind": "VirtualMachine"});
    assert_eq!(
        create(&mut store, DEFINITIONS, clash)
            .expect_err("name taken")
            .code(),
        422
    );
    assert!(Kind::parse(&definition(), false).is_ok());
}
