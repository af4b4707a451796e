use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::core::kind::Kind;
use crate::core::request::{DeleteOptions, FieldValidation, PatchKind, Propagation, Selection};

const NOW: WallTime = WallTime(1_700_000_000_000_000);

/// A store with the built-in kinds, the project's kinds and the namespace `default`.
fn store() -> Store {
    let mut store = Store::new(crate::kinds::builtin().expect("documents"), 0);
    create(&mut store, "/namespaces", json!({"metadata": {"name": "default"}})).expect("created");
    for definition in crate::kinds::definitions().expect("documents") {
        create(&mut store, "apiextensions.k8s.io/customresourcedefinitions", definition).expect("created");
    }
    store
}

/// `group/resource[/name[/subresource]]`, namespaced kinds in `default`.
fn target(store: &Store, path: &str) -> Target {
    let mut parts = path.split('/').map(str::to_owned);
    let group = parts.next().unwrap_or_default();
    let resource = parts.next().unwrap_or_default();
    let namespaced = store.view().registry.kind(&group, &resource).is_some_and(|kind| kind.namespaced);
    Target {
        group,
        version: "v1".to_owned(),
        resource,
        namespace: namespaced.then(|| "default".to_owned()),
        name: parts.next(),
        subresource: parts.next(),
    }
}

fn call(store: &mut Store, path: &str, verb: Verb, options: WriteOptions) -> Result<(Reply, Vec<Change>), ApiError> {
    let target = target(store, path);
    let seed = store.view().revision;
    store.apply(Call { now: NOW, seed, target, verb, options })
}

fn object(result: Result<(Reply, Vec<Change>), ApiError>) -> Result<Value, ApiError> {
    result.map(|(reply, _)| match reply.body {
        Body::Object(object) => object.value.clone(),
        Body::Status(status) => status,
        Body::List(list) => Value::from(list.len()),
    })
}

fn create(store: &mut Store, path: &str, body: Value) -> Result<Value, ApiError> {
    object(call(store, path, Verb::Create(body), WriteOptions::default()))
}

fn update(store: &mut Store, path: &str, body: Value) -> Result<Value, ApiError> {
    object(call(store, path, Verb::Update(body), WriteOptions::default()))
}

fn merge(store: &mut Store, path: &str, body: Value) -> Result<Value, ApiError> {
    object(call(store, path, Verb::Patch(PatchKind::Merge, body), WriteOptions::default()))
}

fn delete(store: &mut Store, path: &str, options: DeleteOptions) -> Result<Value, ApiError> {
    object(call(store, path, Verb::Delete(options), WriteOptions::default()))
}

fn get<'a>(store: &'a Store, path: &str) -> Option<&'a Value> {
    let target = target(store, path);
    let kind = store.view().registry.kind(&target.group, &target.resource)?.key();
    let namespace = target.namespace.unwrap_or_default();
    store.view().get(&kind, &namespace, &target.name?).map(|object| &object.value)
}

const VMS: &str = "vm.neon.tech/virtualmachines";
const VM: &str = "vm.neon.tech/virtualmachines/pg";

fn vm() -> Value {
    json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "metadata": {"name": "pg"},
        "spec": {"guest": {
            "cpus": {"min": 0.25, "use": 1, "max": 4},
            "memorySlots": {"min": 1, "use": 2, "max": 8},
            "rootDisk": {"image": "pg:16"},
        }},
    })
}

fn config_map(name: &str, owners: &[&Value]) -> Value {
    let owner = |owner: &&Value| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true})
    };
    let owners: Vec<Value> = owners.iter().map(owner).collect();
    json!({"metadata": {"name": name, "ownerReferences": owners}})
}

fn fields(error: &ApiError) -> Vec<&str> {
    let causes = error.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    causes.iter().map(|cause| cause.field.as_str()).collect()
}

#[test]
fn a_new_vm_is_normalised_defaulted_and_stamped() {
    let mut store = store();
    let mut body = vm();
    body["status"] = json!({"phase": "Running"});
    let made = create(&mut store, VMS, body).expect("created");
    assert_eq!(made["spec"]["guest"]["cpus"], json!({"min": "250m", "use": 1, "max": 4}));
    assert_eq!(made["spec"]["guest"]["memorySlotSize"], "1Gi");
    assert_eq!(made["spec"]["guest"]["rootDisk"]["imagePullPolicy"], "IfNotPresent");
    assert_eq!(made["spec"]["qmp"], 20183);
    assert_eq!(made["spec"]["enableSSH"], true);
    assert!(made.get("status").is_none(), "the status is not the creator's to set");
    let metadata = &made["metadata"];
    assert_eq!(metadata["generation"], 1);
    assert_eq!(metadata["creationTimestamp"], "2023-11-14T22:13:20Z");
    assert_eq!(metadata["namespace"], "default");
    assert_eq!(metadata["uid"].as_str().map(str::len), Some(36));
    assert_eq!(metadata["resourceVersion"], store.view().revision.to_string());
}

#[test]
fn a_vm_that_breaks_its_schema_is_refused_with_all_field_paths() {
    let mut store = store();
    let mut body = vm();
    body["spec"]["qmp"] = json!(0);
    body["spec"]["restartPolicy"] = json!("Maybe");
    body["spec"]["guest"]["rootDisk"] = json!({});
    let error = create(&mut store, VMS, body).expect_err("invalid");
    assert_eq!(error.code(), 422);
    assert_eq!(fields(&error), ["spec.guest.rootDisk.image", "spec.qmp", "spec.restartPolicy"]);
    let mut body = vm();
    body["spec"]["guest"]["cpus"]["use"] = json!(9);
    let error = create(&mut store, VMS, body).expect_err("invalid");
    assert_eq!(fields(&error), ["spec.guest.cpus.use"]);
    assert!(error.message.contains(".spec.guest.cpus.use"), "{error}");
}

#[test]
fn fixed_members_of_a_vm_stay() {
    let mut store = store();
    create(&mut store, VMS, vm()).expect("created");
    let error = merge(&mut store, VM, json!({"spec": {"guest": {"cpus": {"max": 5}}}})).expect_err("fixed");
    assert_eq!((error.code(), fields(&error)), (422, vec!["spec.guest.cpus.max"]));
    let patched = merge(&mut store, VM, json!({"spec": {"guest": {"cpus": {"use": "2"}}}})).expect("free");
    assert_eq!(patched["spec"]["guest"]["cpus"]["use"], 2);
    assert_eq!(patched["metadata"]["generation"], 2);
}

#[test]
fn the_agents_first_patch_sets_the_absent_revision() {
    let mut store = store();
    create(&mut store, VMS, vm()).expect("created");
    let patch = json!([
        {"op": "replace", "path": "/spec/guest/cpus/use", "value": "500m"},
        {"op": "replace", "path": "/spec/guest/memorySlots/use", "value": 3},
        {"op": "replace", "path": "/spec/targetRevision", "value":
            {"revision": {"value": 1, "flags": 0}, "updatedAt": "2024-01-01T00:00:00Z"}},
    ]);
    let verb = Verb::Patch(PatchKind::Json, patch);
    let patched = object(call(&mut store, VM, verb, WriteOptions::default())).expect("patched");
    assert_eq!(patched["spec"]["guest"]["cpus"]["use"], "500m");
    assert_eq!(patched["spec"]["targetRevision"]["revision"]["value"], 1);
}

#[test]
fn status_and_spec_are_kept_apart() {
    let mut store = store();
    create(&mut store, VMS, vm()).expect("created");
    let both = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"runnerImage": "x"}, "status": {"phase": "Running", "cpus": "1"}});
    let after = merge(&mut store, "vm.neon.tech/virtualmachines/pg/status", both.clone()).expect("patched");
    assert_eq!(after["status"], json!({"phase": "Running", "cpus": 1, "restartCount": 0}));
    assert!(after["spec"].get("runnerImage").is_none() && after["metadata"].get("labels").is_none());
    assert_eq!(after["metadata"]["generation"], 1);
    let after = merge(&mut store, VM, json!({"spec": {"runnerImage": "y"}, "status": {"phase": "Failed"}})).expect("patched");
    assert_eq!((&after["spec"]["runnerImage"], &after["status"]["phase"]), (&json!("y"), &json!("Running")));
    assert_eq!(after["metadata"]["generation"], 2);
}

#[test]
fn stale_writes_conflict_and_updates_need_a_version() {
    let mut store = store();
    let made = create(&mut store, VMS, vm()).expect("created");
    let mut newer = made.clone();
    newer["spec"]["runnerImage"] = json!("a");
    update(&mut store, VM, newer.clone()).expect("current");
    let error = update(&mut store, VM, newer).expect_err("stale");
    assert_eq!((error.code(), error.reason), (409, Reason::Conflict));
    let error = update(&mut store, VM, vm()).expect_err("no version");
    assert_eq!((error.code(), fields(&error)), (422, vec!["metadata.resourceVersion"]));
    let error = merge(&mut store, VM, json!({"metadata": {"resourceVersion": "1"}})).expect_err("stale");
    assert_eq!(error.code(), 409);
    let mut other = made;
    other["metadata"]["uid"] = json!("other");
    other["metadata"]["resourceVersion"] = get(&store, VM).expect("there")["metadata"]["resourceVersion"].clone();
    assert_eq!(update(&mut store, VM, other).expect_err("another object").code(), 409);
}

#[test]
fn a_write_that_changes_nothing_is_no_change() {
    let mut store = store();
    create(&mut store, VMS, vm()).expect("created");
    let revision = store.view().revision;
    let verb = Verb::Patch(PatchKind::Merge, json!({"spec": {"guest": {"cpus": {"use": "1000m"}}}}));
    let (_, changes) = call(&mut store, VM, verb, WriteOptions::default()).expect("patched");
    assert!(changes.is_empty());
    assert_eq!(store.view().revision, revision);
}

#[test]
fn names_taken_missing_and_generated() {
    let mut store = store();
    create(&mut store, VMS, vm()).expect("created");
    assert_eq!(create(&mut store, VMS, vm()).expect_err("taken").reason, Reason::AlreadyExists);
    let made = create(&mut store, "/configmaps", json!({"metadata": {"generateName": "x-"}})).expect("created");
    let name = made["metadata"]["name"].as_str().expect("name");
    assert!(name.starts_with("x-") && name.len() == 7, "{name}");
    assert_eq!(create(&mut store, "/configmaps", json!({})).expect_err("no name").code(), 422);
    assert_eq!(create(&mut store, "/configmaps", json!({"metadata": {"name": "A"}})).expect_err("bad name").code(), 422);
    assert_eq!(merge(&mut store, "/configmaps/none", json!({})).expect_err("absent").code(), 404);
    assert_eq!(create(&mut store, "no.group/things", json!({})).expect_err("unknown kind").code(), 404);
}

#[test]
fn the_path_must_fit_the_object() {
    let mut store = store();
    let other_namespace = json!({"metadata": {"name": "a", "namespace": "other"}});
    assert_eq!(create(&mut store, "/configmaps", other_namespace).expect_err("mismatch").code(), 400);
    let other_kind = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "a"}});
    assert_eq!(create(&mut store, "/configmaps", other_kind).expect_err("mismatch").code(), 400);
    create(&mut store, "/configmaps", json!({"metadata": {"name": "a"}})).expect("created");
    let other_name = json!({"metadata": {"name": "b"}});
    assert_eq!(update(&mut store, "/configmaps/a", other_name.clone()).expect_err("mismatch").code(), 400);
    assert_eq!(merge(&mut store, "/configmaps/a", other_name).expect_err("mismatch").code(), 422);
    for body in [json!([]), json!("x"), json!({"metadata": 1})] {
        assert_eq!(create(&mut store, "/configmaps", body).expect_err("malformed").code(), 400);
    }
}

#[test]
fn unknown_members_warn_or_are_refused() {
    let mut store = store();
    let mut body = vm();
    body["spec"]["guest"]["color"] = json!("red");
    body["metadata"]["shape"] = json!("round");
    let strict = WriteOptions { field_validation: FieldValidation::Strict, ..WriteOptions::default() };
    let error = call(&mut store, VMS, Verb::Create(body.clone()), strict).expect_err("strict");
    assert_eq!(error.code(), 400);
    assert!(error.message.contains("unknown field \"spec.guest.color\""), "{error}");
    let (reply, _) = call(&mut store, VMS, Verb::Create(body), WriteOptions::default()).expect("created");
    assert_eq!(reply.warnings, ["unknown field \"spec.guest.color\"", "unknown field \"metadata.shape\""]);
    assert!(get(&store, VM).expect("there")["spec"]["guest"].get("color").is_none());
}

#[test]
fn a_dry_run_answers_and_keeps_nothing() {
    let mut store = store();
    let revision = store.view().revision;
    let dry = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let made = object(call(&mut store, VMS, Verb::Create(vm()), dry)).expect("would work");
    assert_eq!(made["metadata"]["name"], "pg");
    assert!(get(&store, VM).is_none());
    assert_eq!(store.view().revision, revision);
}

#[test]
fn finalizers_hold_an_object_until_they_are_gone() {
    let mut store = store();
    let mut body = vm();
    body["metadata"]["finalizers"] = json!(["vm.neon.tech/finalizer"]);
    create(&mut store, VMS, body).expect("created");
    let waiting = delete(&mut store, VM, DeleteOptions::default()).expect("marked");
    assert_eq!(waiting["metadata"]["deletionTimestamp"], "2023-11-14T22:13:20Z");
    delete(&mut store, VM, DeleteOptions::default()).expect("again");
    let added = json!({"metadata": {"finalizers": ["vm.neon.tech/finalizer", "a.b/c"]}});
    assert_eq!(merge(&mut store, VM, added).expect_err("no more").code(), 422);
    let verb = Verb::Patch(PatchKind::Merge, json!({"metadata": {"finalizers": null}}));
    let (_, changes) = call(&mut store, VM, verb, WriteOptions::default()).expect("released");
    assert!(changes.iter().any(|change| change.removed));
    assert!(get(&store, VM).is_none());
}

#[test]
fn a_bound_pod_goes_with_grace() {
    let mut store = store();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], "terminationGracePeriodSeconds": 7}});
    create(&mut store, "/pods", pod.clone()).expect("created");
    assert_eq!(get(&store, "/pods/p").expect("there")["status"]["phase"], "Pending");
    delete(&mut store, "/pods/p", DeleteOptions::default()).expect("unbound goes at once");
    assert!(get(&store, "/pods/p").is_none());
    create(&mut store, "/pods", pod).expect("created");
    let binding = json!({"target": {"kind": "Node", "name": "n"}, "metadata": {"annotations": {"a": "b"}}});
    let bind = |store: &mut Store| call(store, "/pods/p/binding", Verb::Bind(binding.clone()), WriteOptions::default());
    assert_eq!(bind(&mut store).expect("bound").0.code, 201);
    assert_eq!(bind(&mut store).expect_err("once").code(), 409);
    let bound = get(&store, "/pods/p").expect("there").clone();
    assert_eq!((&bound["spec"]["nodeName"], &bound["metadata"]["annotations"]["a"]), (&json!("n"), &json!("b")));
    assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
    let waiting = delete(&mut store, "/pods/p", DeleteOptions::default()).expect("marked");
    assert_eq!(waiting["metadata"]["deletionTimestamp"], "2023-11-14T22:13:27Z");
    assert_eq!(waiting["metadata"]["deletionGracePeriodSeconds"], 7);
    let now = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::default() };
    delete(&mut store, "/pods/p", now).expect("gone");
    assert!(get(&store, "/pods/p").is_none());
}

#[test]
fn dependents_go_with_their_last_owner() {
    let mut store = store();
    let first = create(&mut store, "/configmaps", config_map("first", &[])).expect("created");
    let second = create(&mut store, "/configmaps", config_map("second", &[])).expect("created");
    create(&mut store, "/configmaps", config_map("one", &[&first])).expect("created");
    let both = create(&mut store, "/configmaps", config_map("both", &[&first, &second])).expect("created");
    create(&mut store, "/configmaps", config_map("deep", &[&both])).expect("created");
    delete(&mut store, "/configmaps/first", DeleteOptions::default()).expect("deleted");
    assert!(get(&store, "/configmaps/one").is_none());
    let left = get(&store, "/configmaps/both").expect("still owned");
    assert_eq!(left["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(1));
    delete(&mut store, "/configmaps/second", DeleteOptions::default()).expect("deleted");
    assert!(get(&store, "/configmaps/both").is_none() && get(&store, "/configmaps/deep").is_none());
}

#[test]
fn orphans_stay_and_foreground_waits() {
    let mut store = store();
    let owner = create(&mut store, "/configmaps", config_map("owner", &[])).expect("created");
    create(&mut store, "/configmaps", config_map("child", &[&owner])).expect("created");
    let orphan = DeleteOptions { propagation: Propagation::Orphan, ..DeleteOptions::default() };
    delete(&mut store, "/configmaps/owner", orphan).expect("deleted");
    assert_eq!(get(&store, "/configmaps/child").expect("stays")["metadata"]["ownerReferences"], json!([]));

    let owner = create(&mut store, "/configmaps", config_map("owner", &[])).expect("created");
    let mut held = config_map("held", &[&owner]);
    held["metadata"]["finalizers"] = json!(["a.b/c"]);
    create(&mut store, "/configmaps", held).expect("created");
    let foreground = DeleteOptions { propagation: Propagation::Foreground, ..DeleteOptions::default() };
    delete(&mut store, "/configmaps/owner", foreground).expect("marked");
    assert!(get(&store, "/configmaps/owner").is_some());
    merge(&mut store, "/configmaps/held", json!({"metadata": {"finalizers": null}})).expect("released");
    assert!(get(&store, "/configmaps/held").is_none() && get(&store, "/configmaps/owner").is_none());
}

#[test]
fn garbage_is_collected_when_the_owner_went_first() {
    let mut store = store();
    let owner = create(&mut store, "/configmaps", config_map("owner", &[])).expect("created");
    delete(&mut store, "/configmaps/owner", DeleteOptions::default()).expect("deleted");
    create(&mut store, "/configmaps", config_map("late", &[&owner])).expect("created");
    let changes = store.collect_garbage(NOW);
    assert_eq!(changes.len(), 1);
    assert!(get(&store, "/configmaps/late").is_none());
    assert!(store.collect_garbage(NOW).is_empty());
}

#[test]
fn preconditions_of_a_delete_are_checked() {
    let mut store = store();
    create(&mut store, "/configmaps", config_map("a", &[])).expect("created");
    let uid = DeleteOptions { uid: Some("x".into()), ..DeleteOptions::default() };
    assert_eq!(delete(&mut store, "/configmaps/a", uid).expect_err("other uid").code(), 409);
    let version = DeleteOptions { resource_version: Some("1".into()), ..DeleteOptions::default() };
    assert_eq!(delete(&mut store, "/configmaps/a", version).expect_err("other version").code(), 409);
    let status = delete(&mut store, "/configmaps/a", DeleteOptions::default()).expect("deleted");
    assert_eq!((&status["kind"], &status["status"]), (&json!("Status"), &json!("Success")));
}

#[test]
fn a_namespace_goes_with_its_last_object() {
    let mut store = store();
    create(&mut store, VMS, vm()).expect("created");
    merge(&mut store, VM, json!({"metadata": {"finalizers": ["a.b/c"]}})).expect("patched");
    create(&mut store, "/configmaps", config_map("a", &[])).expect("created");
    let waiting = delete(&mut store, "/namespaces/default", DeleteOptions::default()).expect("marked");
    assert_eq!(waiting["status"]["phase"], "Terminating");
    assert!(get(&store, "/configmaps/a").is_none());
    assert_eq!(create(&mut store, "/configmaps", config_map("b", &[])).expect_err("closing").code(), 403);
    merge(&mut store, VM, json!({"metadata": {"finalizers": null}})).expect("released");
    assert!(get(&store, "/namespaces/default").is_none());
    assert_eq!(create(&mut store, "/configmaps", config_map("b", &[])).expect_err("no namespace").code(), 404);
}

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
    let thing = create(&mut store, "example.org/things", json!({"metadata": {"name": "a"}, "spec": {}})).expect("created");
    assert_eq!(thing["spec"]["size"], 3);
    assert_eq!(merge(&mut store, "example.org/things/a", json!({"spec": {"size": 10}})).expect_err("too big").code(), 422);
    delete(&mut store, "apiextensions.k8s.io/customresourcedefinitions/things.example.org", DeleteOptions::default()).expect("deleted");
    assert_eq!(store.view().count("things.example.org"), 0);
    assert_eq!(create(&mut store, "example.org/things", json!({"metadata": {"name": "a"}})).expect_err("unknown").code(), 404);
}

#[test]
fn a_member_added_to_a_definition_has_its_default_in_old_objects() {
    let mut store = store();
    create(&mut store, DEFINITIONS, definition()).expect("created");
    create(&mut store, "example.org/things", json!({"metadata": {"name": "a"}, "spec": {}})).expect("created");
    let revision = get(&store, "example.org/things/a").expect("there")["metadata"]["resourceVersion"].clone();
    let path = "apiextensions.k8s.io/customresourcedefinitions/things.example.org";
    let mut newer = get(&store, path).expect("there").clone();
    newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["colour"] =
        json!({"type": "string", "default": "red"});
    update(&mut store, path, newer).expect("updated");
    let thing = get(&store, "example.org/things/a").expect("there");
    assert_eq!((&thing["spec"]["colour"], &thing["metadata"]["resourceVersion"]), (&json!("red"), &revision));
}

#[test]
fn a_broken_definition_is_refused_with_its_problems() {
    let mut store = store();
    let mut body = definition();
    body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = json!({"type": "array"});
    let error = create(&mut store, DEFINITIONS, body).expect_err("broken");
    assert_eq!(fields(&error), ["spec.versions[0].schema.openAPIV3Schema.properties[spec].items"]);
    let mut clash = definition();
    clash["metadata"]["name"] = json!("pods.vm.neon.tech");
    clash["spec"]["group"] = json!("vm.neon.tech");
    clash["spec"]["names"] = json!({"plural": "pods", "kind": "VirtualMachine"});
    assert_eq!(create(&mut store, DEFINITIONS, clash).expect_err("name taken").code(), 422);
    assert!(Kind::parse(&definition(), false).is_ok());
}

#[test]
fn a_collection_goes_by_selector() {
    let mut store = store();
    for (name, label) in [("a", "x"), ("b", "x"), ("c", "y")] {
        create(&mut store, "/configmaps", json!({"metadata": {"name": name, "labels": {"l": label}}})).expect("created");
    }
    let labels = crate::core::selector::LabelSelector::parse("l=x").expect("selector");
    let selection = Selection { namespace: Some("default".into()), labels, ..Selection::default() };
    let verb = Verb::DeleteCollection(selection, DeleteOptions::default());
    let gone = object(call(&mut store, "/configmaps", verb, WriteOptions::default())).expect("deleted");
    assert_eq!((gone, store.view().count("configmaps")), (json!(2), 1));
}

#[test]
fn events_are_one_kind_with_two_spellings() {
    let mut store = store();
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": "p"}, "note": "hello", "reportingController": "c", "type": "Normal"});
    create(&mut store, "events.k8s.io/events", event).expect("created");
    let stored = get(&store, "/events/e").expect("stored as a core event");
    assert_eq!((&stored["message"], &stored["involvedObject"]["name"]), (&json!("hello"), &json!("p")));
    assert_eq!(stored["apiVersion"], "v1");
    merge(&mut store, "events.k8s.io/events/e", json!({"note": "again"})).expect("patched");
    assert_eq!(get(&store, "/events/e").expect("there")["message"], "again");
}

/// Random writes over a few objects.
fn any_write() -> impl Strategy<Value = (String, Verb)> {
    let name = prop_oneof!["[abc]"];
    let value = prop_oneof![Just(json!("1")), Just(json!("2")), Just(json!(3)), Just(Value::Null)];
    let grace = prop_oneof![Just(None), Just(Some(0))];
    (name, value, grace, 0..5).prop_map(|(name, value, grace_seconds, which)| match which {
        0 => ("/configmaps".to_owned(), Verb::Create(json!({"metadata": {"name": name}, "data": {"k": value}}))),
        1 => (format!("/configmaps/{name}"), Verb::Update(json!({"metadata": {"finalizers": ["a.b/c"]}, "data": {"k": value}}))),
        2 => (format!("/configmaps/{name}"), Verb::Patch(PatchKind::Merge, json!({"metadata": {"finalizers": null}, "data": {"k": value}}))),
        3 => (format!("/configmaps/{name}"), Verb::Patch(PatchKind::Json, json!([{"op": "test", "path": "/data/k", "value": value}]))),
        _ => (format!("/configmaps/{name}"), Verb::Delete(DeleteOptions { grace_seconds, ..DeleteOptions::default() })),
    })
}

/// Everything that can be seen of a state.
fn seen(store: &Store) -> Vec<(String, String)> {
    let mut seen = vec![(String::new(), store.view().revision.to_string())];
    for kind in store.view().kind_keys() {
        for (place, object) in store.view().iter(kind, None, None) {
            seen.push((format!("{kind}/{}/{}", place.0, place.1), object.json.to_string()));
        }
    }
    seen.push(("uids".into(), format!("{:?}", store.by_uid)));
    seen.push(("owners".into(), format!("{:?}", store.dependents)));
    seen
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn revisions_only_grow(writes in prop::collection::vec(any_write(), 1..40)) {
        let mut store = store();
        let mut last = store.view().revision;
        for (path, verb) in writes {
            for change in call(&mut store, &path, verb, WriteOptions::default()).map(|(_, changes)| changes).unwrap_or_default() {
                prop_assert_eq!(change.after.revision, last + 1);
                last = change.after.revision;
            }
            prop_assert_eq!(store.view().revision, last);
        }
    }

    #[test]
    fn a_refused_call_changes_nothing(writes in prop::collection::vec(any_write(), 1..40)) {
        let mut store = store();
        for (path, verb) in writes {
            let before = seen(&store);
            if call(&mut store, &path, verb, WriteOptions::default()).is_err() {
                prop_assert_eq!(seen(&store), before);
            }
        }
    }

    #[test]
    fn rollback_restores_the_state(writes in prop::collection::vec(any_write(), 1..40)) {
        let mut store = store();
        let before = seen(&store);
        let mut made = Vec::new();
        for (path, verb) in writes {
            made.extend(call(&mut store, &path, verb, WriteOptions::default()).map(|(_, changes)| changes).unwrap_or_default());
        }
        store.rollback(made);
        prop_assert_eq!(seen(&store), before);
    }
}
