//! Writes that keep nothing, and kinds with two spellings.

use super::*;

#[test]
fn a_dry_run_answers_and_keeps_nothing() {
    let mut store = store();
    let revision = store.view().revision;
    let dry = WriteOptions {
        dry_run: true,
        ..WriteOptions::default()
    };
    let made = object(call(&mut store, VMS, Verb::Create(vm()), dry)).expect("would work");
    assert_eq!(made["metadata"]["name"], "pg");
    assert!(get(&store, VM).is_none());
    assert_eq!(store.view().revision, revision);
}

#[test]
fn events_are_one_kind_with_two_spellings() {
    let mut store = store();
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": "p"}, "note": "hello", "reportingController": "c", "type": "Normal"});
    create(&mut store, "events.k8s.io/events", event).expect("created");
    let stored = get(&store, "/events/e").expect("stored as a core event");
    assert_eq!(
        (&stored["message"], &stored["involvedObject"]["name"]),
        (&json!("hello"), &json!("p"))
    );
    assert_eq!(stored["apiVersion"], "v1");
    merge(
        &mut store,
        "events.k8s.io/events/e",
        json!({"note": "again"}),
    )
    .expect("patched");
    assert_eq!(get(&store, "/events/e").expect("there")["message"], "again");
}

#[test]
fn applies_to_the_object_and_to_its_status_are_apart() {
    let mut store = store();
    let apply = |store: &mut Store, path: &str, body: Value| {
        let options = WriteOptions {
            manager: "me".to_owned(),
            ..WriteOptions::default()
        };
        object(call(
            store,
            path,
            Verb::Patch(PatchKind::Apply, body),
            options,
        ))
    };
    let mut both = vm();
    both["status"] = json!({"phase": "Failed"});
    let made = apply(&mut store, VM, both.clone()).expect("created");
    assert!(made.get("status").is_none());
    let after = apply(&mut store, &format!("{VM}/status"), both).expect("applied");
    assert_eq!(after["status"]["phase"], "Failed");
    let fields =
        |operation: usize| after["metadata"]["managedFields"][operation]["fieldsV1"].clone();
    assert!(fields(0)["f:spec"].is_object() && fields(0)["f:status"].is_null());
    assert_eq!(fields(1), json!({"f:status": {"f:phase": {}}}));
    assert_eq!(
        after["metadata"]["managedFields"][1]["subresource"],
        "status"
    );
}
