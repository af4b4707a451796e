//! Definitions that are read, and the problems of bad ones.

use serde_json::json;

use super::*;

fn document() -> Value {
    json!({"metadata": {"name": "things.example.org"}, "spec": {
        "group": "example.org", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}},
            "subresources": {"status": {}},
            "additionalPrinterColumns": [{"name": "A", "type": "string", "jsonPath": ".spec.a"}]}]}})
}

#[test]
fn a_document_becomes_a_kind() {
    let kind = Kind::parse(&document(), false).expect("valid");
    assert_eq!(
        (kind.key().as_str(), kind.singular.as_str()),
        ("things.example.org", "thing")
    );
    assert_eq!(kind.list_kind, "ThingList");
    assert!(kind.storage_version().has_status);
    let columns: Vec<&str> = kind
        .storage_version()
        .columns
        .iter()
        .map(|column| column.name.as_str())
        .collect();
    assert_eq!(columns, ["Name", "A"]);
}

#[test]
fn every_problem_is_named() {
    let mut document = document();
    document["metadata"]["name"] = json!("x");
    document["spec"]["scope"] = json!("Moon");
    document["spec"]["versions"][0]["storage"] = json!(false);
    document["spec"]["versions"][0]["additionalPrinterColumns"][0]["jsonPath"] = json!("spec");
    document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = json!({});
    let problems = Kind::parse(&document, false).expect_err("five problems");
    let fields: Vec<&str> = problems
        .iter()
        .map(|problem| problem.field.as_str())
        .collect();
    assert_eq!(
        fields,
        [
            "metadata.name",
            "spec.scope",
            "spec.versions",
            "spec.versions[0].schema.openAPIV3Schema.properties[spec].type",
        ]
    );
}

#[test]
fn a_stranger_cannot_use_the_builtin_member() {
    let mut document = document();
    document["builtin"] = json!({"gracefulDeletion": true});
    let kind = Kind::parse(&document, false).expect("valid");
    assert!(kind.extras().is_none());
}
