mod definitions;
mod laws;
mod names;
mod removal;
mod variants;

use serde_json::{Value, json};

use super::*;
use crate::core::kind::Kind;
use crate::core::request::{DeleteOptions, FieldValidation, PatchKind, Propagation, Selection};

const NOW: WallTime = WallTime(1_700_000_000_000_000);

/// A store with the built-in kinds, the project's kinds and the namespace `default`.
fn store() -> Store {
    let mut store = Store::new(crate::kinds::builtin().expect("documents"), 0);
    create(
        &mut store,
        "/namespaces",
        json!({"metadata": {"name": "default"}}),
    )
    .expect("created");
    for definition in crate::kinds::definitions().expect("documents") {
        create(
            &mut store,
            "apiextensions.k8s.io/customresourcedefinitions",
            definition,
        )
        .expect("created");
    }
    store
}

/// `group/resource[/name[/subresource]]`, namespaced kinds in `default`.
fn target(store: &Store, path: &str) -> Target {
    let mut parts = path.split('/').map(str::to_owned);
    let group = parts.next().unwrap_or_default();
    let resource = parts.next().unwrap_or_default();
    let namespaced = store
        .view()
        .registry
        .kind(&group, &resource)
        .is_some_and(|kind| kind.namespaced);
    Target {
        group,
        version: "v1".to_owned(),
        resource,
        namespace: namespaced.then(|| "default".to_owned()),
        name: parts.next(),
        subresource: parts.next(),
    }
}

fn call(
    store: &mut Store,
    path: &str,
    verb: Verb,
    options: WriteOptions,
) -> Result<(WriteResponse, Vec<Change>), ApiError> {
    let target = target(store, path);
    let seed = store.view().revision;
    store.apply(WriteRequest {
        now: NOW,
        seed,
        target,
        verb,
        options,
    })
}

fn object(result: Result<(WriteResponse, Vec<Change>), ApiError>) -> Result<Value, ApiError> {
    result.map(|(reply, _)| match reply.body {
        Body::Object(object) => object.value.clone(),
        Body::Status(status) => status,
        Body::List(list) => Value::from(list.len()),
    })
}

fn create(store: &mut Store, path: &str, body: Value) -> Result<Value, ApiError> {
    object(call(
        store,
        path,
        Verb::Create(body),
        WriteOptions::default(),
    ))
}

fn update(store: &mut Store, path: &str, body: Value) -> Result<Value, ApiError> {
    object(call(
        store,
        path,
        Verb::Update(body),
        WriteOptions::default(),
    ))
}

fn merge(store: &mut Store, path: &str, body: Value) -> Result<Value, ApiError> {
    object(call(
        store,
        path,
        Verb::Patch(PatchKind::Merge, body),
        WriteOptions::default(),
    ))
}

fn delete(store: &mut Store, path: &str, options: DeleteOptions) -> Result<Value, ApiError> {
    object(call(
        store,
        path,
        Verb::Delete(options),
        WriteOptions::default(),
    ))
}

fn get<'a>(store: &'a Store, path: &str) -> Option<&'a Value> {
    let target = target(store, path);
    let kind = store
        .view()
        .registry
        .kind(&target.group, &target.resource)?
        .key();
    let namespace = target.namespace.unwrap_or_default();
    store
        .view()
        .get(&kind, &namespace, &target.name?)
        .map(|object| &object.value)
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
    let causes = error
        .details
        .as_ref()
        .map(|details| details.causes.as_slice())
        .unwrap_or_default();
    causes.iter().map(|cause| cause.field.as_str()).collect()
}

#[test]
fn a_new_vm_is_normalised_defaulted_and_stamped() {
    let mut store = store();
    let mut body = vm();
    body["status"] = json!({"phase": "Running"});
    let made = create(&mut store, VMS, body).expect("created");
    assert_eq!(
        made["spec"]["guest"]["cpus"],
        json!({"min": "250m", "use": 1, "max": 4})
    );
    assert_eq!(made["spec"]["guest"]["memorySlotSize"], "1Gi");
    assert_eq!(
        made["spec"]["guest"]["rootDisk"]["imagePullPolicy"],
        "IfNotPresent"
    );
    assert_eq!(made["spec"]["qmp"], 20183);
    assert_eq!(made["spec"]["enableSSH"], true);
    assert!(
        made.get("status").is_none(),
        "the status is not the creator's to set"
    );
    let metadata = &made["metadata"];
    assert_eq!(metadata["generation"], 1);
    assert_eq!(metadata["creationTimestamp"], "2023-11-14T22:13:20Z");
    assert_eq!(metadata["namespace"], "default");
    assert_eq!(metadata["uid"].as_str().map(str::len), Some(36));
    assert_eq!(
        metadata["resourceVersion"],
        store.view().revision.to_string()
    );
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
    assert_eq!(
        fields(&error),
        [
            "spec.guest.rootDisk.image",
            "spec.qmp",
            "spec.restartPolicy"
        ]
    );
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
    let error = merge(
        &mut store,
        VM,
        json!({"spec": {"guest": {"cpus": {"max": 5}}}}),
    )
    .expect_err("fixed");
    assert_eq!(
        (error.code(), fields(&error)),
        (422, vec!["spec.guest.cpus.max"])
    );
    let patched = merge(
        &mut store,
        VM,
        json!({"spec": {"guest": {"cpus": {"use": "2"}}}}),
    )
    .expect("free");
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
    let after = merge(
        &mut store,
        "vm.neon.tech/virtualmachines/pg/status",
        both.clone(),
    )
    .expect("patched");
    assert_eq!(
        after["status"],
        json!({"phase": "Running", "cpus": 1, "restartCount": 0})
    );
    assert!(
        after["spec"].get("runnerImage").is_none() && after["metadata"].get("labels").is_none()
    );
    assert_eq!(after["metadata"]["generation"], 1);
    let after = merge(
        &mut store,
        VM,
        json!({"spec": {"runnerImage": "y"}, "status": {"phase": "Failed"}}),
    )
    .expect("patched");
    assert_eq!(
        (&after["spec"]["runnerImage"], &after["status"]["phase"]),
        (&json!("y"), &json!("Running"))
    );
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
    assert_eq!(
        (error.code(), fields(&error)),
        (422, vec!["metadata.resourceVersion"])
    );
    let error = merge(
        &mut store,
        VM,
        json!({"metadata": {"resourceVersion": "1"}}),
    )
    .expect_err("stale");
    assert_eq!(error.code(), 409);
    let mut other = made;
    other["metadata"]["uid"] = json!("other");
    other["metadata"]["resourceVersion"] =
        get(&store, VM).expect("there")["metadata"]["resourceVersion"].clone();
    assert_eq!(
        update(&mut store, VM, other)
            .expect_err("another object")
            .code(),
        409
    );
}

#[test]
fn a_write_that_changes_nothing_is_no_change() {
    let mut store = store();
    create(&mut store, VMS, vm()).expect("created");
    let revision = store.view().revision;
    let verb = Verb::Patch(
        PatchKind::Merge,
        json!({"spec": {"guest": {"cpus": {"use": "1000m"}}}}),
    );
    let (_, changes) = call(&mut store, VM, verb, WriteOptions::default()).expect("patched");
    assert!(changes.is_empty());
    assert_eq!(store.view().revision, revision);
}

#[test]
fn unknown_members_warn_or_are_refused() {
    let mut store = store();
    let mut body = vm();
    body["spec"]["guest"]["color"] = json!("red");
    body["metadata"]["shape"] = json!("round");
    let strict = WriteOptions {
        field_validation: FieldValidation::Strict,
        ..WriteOptions::default()
    };
    let error = call(&mut store, VMS, Verb::Create(body.clone()), strict).expect_err("strict");
    assert_eq!(error.code(), 400);
    assert!(
        error.message.contains("unknown field \"spec.guest.color\""),
        "{error}"
    );
    let (reply, _) =
        call(&mut store, VMS, Verb::Create(body), WriteOptions::default()).expect("created");
    assert_eq!(
        reply.warnings,
        [
            "unknown field \"spec.guest.color\"",
            "unknown field \"metadata.shape\""
        ]
    );
    assert!(
        get(&store, VM).expect("there")["spec"]["guest"]
            .get("color")
            .is_none()
    );
}
