use serde_json::json;

use super::*;

fn schema() -> Schema {
    let document = json!({"type": "object", "properties": {
        "metadata": {"type": "object", "properties": {"labels": {"type": "object", "additionalProperties": {"type": "string"}}}},
        "spec": {"type": "object", "properties": {
            "a": {"type": "integer"}, "b": {"type": "integer"},
            "items": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "properties": {"name": {"type": "string"}, "v": {"type": "integer"}, "w": {"type": "integer"}}}},
        }},
    }});
    Schema::parse(&document, "").expect("structural")
}

fn writer(name: &str) -> Writer<'_> {
    Writer {
        name,
        api_version: "v1",
        subresource: "",
        now: WallTime(1_700_000_000_000_000),
    }
}

fn applied(live: &Value, config: &Value, name: &str, force: bool) -> Result<Value, Vec<Cause>> {
    let result = apply(live, config, &schema(), writer(name), force)?;
    let mut object = result.object;
    set_managers(&mut object, &result.managers);
    Ok(object)
}

fn updated(live: &Value, new: Value, name: &str) -> Value {
    let mut new = new;
    let managers = after_update(managers(live), Some(live), &new, &schema(), writer(name));
    set_managers(&mut new, &managers);
    new
}

fn created(new: Value, name: &str) -> Value {
    let mut new = new;
    let managers = after_update(Vec::new(), None, &new, &schema(), writer(name));
    set_managers(&mut new, &managers);
    new
}

fn spec(object: &Value) -> &Value {
    &object["spec"]
}

fn owned(object: &Value, name: &str) -> Vec<String> {
    let found = managers(object)
        .into_iter()
        .find(|manager| manager.name == name);
    found
        .map(|manager| manager.fields.paths())
        .unwrap_or_default()
}

#[test]
fn what_a_manager_no_longer_states_goes() {
    let live = applied(
        &json!({}),
        &json!({"metadata": {"name": "x", "labels": {"l": "1"}}, "spec": {"a": 1, "b": 2}}),
        "me",
        false,
    )
    .expect("no conflict");
    assert_eq!(
        owned(&live, "me"),
        [".metadata.labels.l", ".spec.a", ".spec.b"]
    );
    let live = applied(&live, &json!({"spec": {"a": 1}}), "me", false).expect("no conflict");
    assert_eq!(
        (spec(&live), live["metadata"].get("labels")),
        (&json!({"a": 1}), None)
    );
    assert_eq!(owned(&live, "me"), [".spec.a"]);
}

#[test]
fn what_somebody_else_has_stays() {
    let live =
        applied(&json!({}), &json!({"spec": {"a": 1, "b": 2}}), "me", false).expect("no conflict");
    let live =
        applied(&live, &json!({"spec": {"b": 2}}), "you", false).expect("the same value is shared");
    let live = applied(&live, &json!({"spec": {"a": 1}}), "me", false).expect("no conflict");
    assert_eq!(spec(&live), &json!({"a": 1, "b": 2}));
    assert_eq!(owned(&live, "you"), [".spec.b"]);
}

#[test]
fn changing_somebody_elses_field_is_a_conflict_unless_forced() {
    let live = applied(&json!({}), &json!({"spec": {"a": 1}}), "me", false).expect("no conflict");
    let conflicts =
        applied(&live, &json!({"spec": {"a": 2}}), "you", false).expect_err("owned by me");
    assert_eq!(
        (conflicts[0].field.as_str(), conflicts[0].reason.as_str()),
        (".spec.a", "FieldManagerConflict")
    );
    assert!(
        conflicts[0].message.contains("\"me\""),
        "{}",
        conflicts[0].message
    );
    let live = applied(&live, &json!({"spec": {"a": 2}}), "you", true).expect("forced");
    assert_eq!(spec(&live), &json!({"a": 2}));
    assert_eq!(
        (owned(&live, "me"), owned(&live, "you")),
        (vec![], vec![".spec.a".to_owned()])
    );
}

#[test]
fn a_plain_write_takes_the_fields_it_changes() {
    let live =
        applied(&json!({}), &json!({"spec": {"a": 1, "b": 2}}), "me", false).expect("no conflict");
    let mut new = live.clone();
    new["spec"]["a"] = json!(5);
    let live = updated(&live, new, "editor");
    assert_eq!(
        (owned(&live, "me"), owned(&live, "editor")),
        (vec![".spec.b".to_owned()], vec![".spec.a".to_owned()])
    );
    let conflicts = applied(&live, &json!({"spec": {"a": 1, "b": 2}}), "me", false)
        .expect_err("now the editor's");
    assert_eq!(conflicts.len(), 1);
    assert!(
        conflicts[0].message.contains("using v1"),
        "{}",
        conflicts[0].message
    );
}

#[test]
fn list_items_are_owned_by_key() {
    let live = applied(
        &json!({}),
        &json!({"spec": {"items": [{"name": "x", "v": 1}, {"name": "y", "v": 1}]}}),
        "me",
        false,
    )
    .expect("no conflict");
    let live = applied(
        &live,
        &json!({"spec": {"items": [{"name": "y", "w": 7}, {"name": "z"}]}}),
        "you",
        false,
    )
    .expect("other fields");
    assert_eq!(
        spec(&live)["items"],
        json!([{"name": "x", "v": 1}, {"name": "y", "v": 1, "w": 7}, {"name": "z"}])
    );
    let live = applied(&live, &json!({"spec": {"items": []}}), "me", false).expect("no conflict");
    assert_eq!(
        spec(&live)["items"],
        json!([{"name": "y", "w": 7}, {"name": "z"}]),
        "y is still held, x is not"
    );
}

#[test]
fn removed_fields_are_nobodys() {
    let live = applied(&json!({}), &json!({"spec": {"a": 1}}), "me", false).expect("no conflict");
    let mut new = live.clone();
    new["spec"] = json!({});
    let live = updated(&live, new, "editor");
    assert_eq!(owned(&live, "me"), Vec::<String>::new());
}

#[test]
fn the_oldest_plain_writers_are_folded() {
    let mut live = created(json!({"spec": {"a": 0}}), "maker");
    for number in 0..30 {
        let mut new = live.clone();
        new["metadata"]["labels"][format!("l{number}")] = json!("x");
        live = updated(&live, new, &format!("writer-{number}"));
    }
    assert!(managers(&live).len() <= MAX_UPDATE_MANAGERS);
    assert!(managers(&live).iter().any(|manager| manager.name == FOLDED));
}

#[test]
fn a_client_may_replace_or_clear_the_managers() {
    let live = applied(&json!({}), &json!({"spec": {"a": 1}}), "me", false).expect("no conflict");
    let sent = |list: Value| json!({"metadata": {"managedFields": list}});
    assert_eq!(
        managers_after(&live, &json!({"metadata": {}})),
        managers(&live)
    );
    assert_eq!(managers_after(&live, &sent(json!([{}]))), []);
    assert_eq!(managers_after(&live, &sent(json!([]))), []);
    assert_eq!(
        managers_after(&live, &sent(json!([{"manager": "x"}]))),
        managers(&live)
    );
    let other = json!([{"manager": "x", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:a": {}}}}]);
    assert_eq!(managers_after(&live, &sent(other))[0].name, "x");
}

#[test]
fn nobody_is_kept_once_cleared_until_somebody_applies() {
    let mut live = json!({"metadata": {"name": "x"}, "spec": {"a": 1, "b": 1}});
    live = updated(
        &live,
        json!({"metadata": {"name": "x"}, "spec": {"a": 2, "b": 1}}),
        "writer",
    );
    assert_eq!(managers(&live), []);
    let taken = applied(&live, &json!({"spec": {"a": 3}}), "me", false);
    let conflicts = taken.expect_err("it was there before");
    assert!(conflicts[0].message.contains(BEFORE_APPLY), "{conflicts:?}");
    let forced = applied(&live, &json!({"spec": {"a": 3}}), "me", true).expect("forced");
    assert_eq!(owned(&forced, "me"), [".spec.a"]);
    assert_eq!(owned(&forced, BEFORE_APPLY), [".spec.b"]);
    let after = updated(&forced, json!({"spec": {"a": 4, "b": 1}}), "writer");
    assert_eq!(owned(&after, "writer"), [".spec.a"], "now it is kept");
}
