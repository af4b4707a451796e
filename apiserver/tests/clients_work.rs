//! kube-rs against the real server: the client every other part of the project uses.

mod support;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::runtime::watcher;
use serde_json::json;
use support::{DEADLINE, Running, vm};

fn vms(client: kube::Client) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk("vm.neon.tech", "v1", "VirtualMachine");
    Api::default_namespaced_with(
        client,
        &ApiResource::from_gvk_with_plural(&gvk, "virtualmachines"),
    )
}

fn object(value: serde_json::Value) -> DynamicObject {
    serde_json::from_value(value).expect("an object")
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future)
        .await
        .expect("in time")
}

#[tokio::test]
async fn a_watcher_sees_a_vm_from_creation_to_deletion() {
    let server = Running::start();
    let vms = vms(server.kube().await);
    let mut events = watcher(vms.clone(), watcher::Config::default()).boxed();
    let mut next = async || {
        in_time(events.try_next())
            .await
            .expect("no error")
            .expect("an event")
    };
    assert!(matches!(next().await, watcher::Event::Init));
    assert!(matches!(next().await, watcher::Event::InitDone));
    vms.create(&PostParams::default(), &object(vm("pg")))
        .await
        .expect("created");
    assert!(
        matches!(next().await, watcher::Event::Apply(seen) if seen.metadata.name.as_deref() == Some("pg"))
    );
    let patch = json!([
        {"op": "replace", "path": "/spec/guest/cpus/use", "value": "500m"},
        {"op": "replace", "path": "/spec/guest/memorySlots/use", "value": 3},
        {"op": "replace", "path": "/spec/targetRevision", "value": {"revision": {"value": 1, "flags": 0}, "updatedAt": "2024-01-01T00:00:00Z"}},
    ]);
    let patch = serde_json::from_value(patch).expect("a patch");
    let patched = vms
        .patch("pg", &PatchParams::default(), &Patch::<()>::Json(patch))
        .await
        .expect("patched");
    assert_eq!(patched.data["spec"]["guest"]["cpus"]["use"], "500m");
    assert!(
        matches!(next().await, watcher::Event::Apply(seen) if seen.data["spec"]["guest"]["memorySlots"]["use"] == 3)
    );
    let status = json!({"status": {"phase": "Running"}});
    vms.patch_status("pg", &PatchParams::default(), &Patch::Merge(status))
        .await
        .expect("patched");
    assert!(
        matches!(next().await, watcher::Event::Apply(seen) if seen.data["status"]["phase"] == "Running")
    );
    vms.delete("pg", &DeleteParams::default())
        .await
        .expect("deleted");
    assert!(matches!(next().await, watcher::Event::Delete(_)));
}

#[tokio::test]
async fn a_streaming_list_watcher_works_too() {
    let server = Running::start();
    let vms = vms(server.kube().await);
    vms.create(&PostParams::default(), &object(vm("pg")))
        .await
        .expect("created");
    let mut events = watcher(vms, watcher::Config::default().streaming_lists()).boxed();
    let mut next = async || {
        in_time(events.try_next())
            .await
            .expect("no error")
            .expect("an event")
    };
    assert!(matches!(next().await, watcher::Event::Init));
    assert!(matches!(next().await, watcher::Event::InitApply(_)));
    assert!(matches!(next().await, watcher::Event::InitDone));
}

#[tokio::test]
async fn server_side_apply_creates_owns_and_conflicts() {
    let server = Running::start();
    let vms = vms(server.kube().await);
    let apply = |manager: &str| PatchParams::apply(manager);
    vms.patch("pg", &apply("one"), &Patch::Apply(vm("pg")))
        .await
        .expect("created");
    let mut other = vm("pg");
    other["spec"] = json!({"guest": {"cpus": {"use": 2}}});
    let conflict = vms
        .patch("pg", &apply("two"), &Patch::Apply(other.clone()))
        .await
        .expect_err("owned");
    assert!(
        matches!(&conflict, kube::Error::Api(status) if status.code == 409),
        "{conflict}"
    );
    let taken = vms
        .patch("pg", &apply("two").force(), &Patch::Apply(other))
        .await
        .expect("forced");
    assert_eq!(taken.data["spec"]["guest"]["cpus"]["use"], 2);
    let managers: Vec<_> = taken
        .metadata
        .managed_fields
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.manager)
        .collect();
    assert_eq!(managers, ["one", "two"]);
}

fn pod(name: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"vm.neon.tech/name": "pg"}},
        "spec": {"schedulerName": "autoscale-scheduler", "containers": [{"name": "c", "image": "i"}], "terminationGracePeriodSeconds": 5},
    }))
    .expect("a pod")
}

#[tokio::test]
async fn a_pod_is_bound_run_and_ended() {
    let server = Running::start();
    let client = server.kube().await;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    pods.create(&PostParams::default(), &pod("p"))
        .await
        .expect("created");
    let unbound =
        ListParams::default().fields("spec.nodeName=,spec.schedulerName=autoscale-scheduler");
    assert_eq!(pods.list(&unbound).await.expect("listed").items.len(), 1);
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p", "namespace": "default"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "here"}});
    let bind = async || {
        pods.create_subresource::<_, serde_json::Value>(
            "binding",
            "p",
            &PostParams::default(),
            &binding,
        )
        .await
    };
    bind().await.expect("bound");
    let again = bind().await.expect_err("already bound");
    assert!(
        matches!(&again, kube::Error::Api(status) if status.code == 409),
        "{again}"
    );
    let bound = ListParams::default()
        .fields("spec.nodeName=here")
        .labels("vm.neon.tech/name=pg");
    assert_eq!(pods.list(&bound).await.expect("listed").items.len(), 1);
    let status = json!({"status": {"phase": "Running", "podIP": "127.1.2.3"}});
    let running = pods
        .patch_status("p", &PatchParams::default(), &Patch::Strategic(status))
        .await
        .expect("patched");
    let ip = running
        .status
        .as_ref()
        .and_then(|status| status.pod_ip.as_deref());
    let conditions = running
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref())
        .map(Vec::len);
    assert_eq!((ip, conditions), (Some("127.1.2.3"), Some(1)));
    let mut changes = pods
        .watch(
            &WatchParams::default(),
            &running
                .metadata
                .resource_version
                .clone()
                .unwrap_or_default(),
        )
        .await
        .expect("a watch")
        .boxed();
    let ending = pods
        .delete("p", &DeleteParams::default())
        .await
        .expect("marked")
        .left()
        .expect("the pod");
    assert!(ending.metadata.deletion_timestamp.is_some());
    assert_eq!(ending.metadata.deletion_grace_period_seconds, Some(5));
    assert!(matches!(
        in_time(changes.next()).await,
        Some(Ok(WatchEvent::Modified(_)))
    ));
    pods.delete("p", &DeleteParams::default().grace_period(0))
        .await
        .expect("gone");
    assert!(matches!(
        in_time(changes.next()).await,
        Some(Ok(WatchEvent::Deleted(_)))
    ));
    assert!(pods.get_opt("p").await.expect("asked").is_none());
}

#[tokio::test]
async fn dependents_go_with_their_vm() {
    let server = Running::start();
    let client = server.kube().await;
    let (vms, pods): (_, Api<Pod>) = (vms(client.clone()), Api::default_namespaced(client));
    let owner = vms
        .create(&PostParams::default(), &object(vm("pg")))
        .await
        .expect("created");
    let mut owned = pod("p");
    owned.metadata.owner_references = Some(vec![serde_json::from_value(json!({"apiVersion": "vm.neon.tech/v1",
        "kind": "VirtualMachine", "name": "pg", "uid": owner.metadata.uid, "controller": true, "blockOwnerDeletion": true})).expect("an owner")]);
    pods.create(&PostParams::default(), &owned)
        .await
        .expect("created");
    vms.delete("pg", &DeleteParams::default())
        .await
        .expect("deleted");
    assert!(pods.get_opt("p").await.expect("asked").is_none());
}

#[tokio::test]
async fn typed_kinds_are_written_and_read() {
    let server = Running::start();
    let client = server.kube().await;
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a3b22509.neon.tech"},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 60, "renewTime": "2024-01-01T00:00:00.123456Z"}});
    let made = leases
        .patch(
            "a3b22509.neon.tech",
            &PatchParams::apply("me").force(),
            &Patch::Apply(lease),
        )
        .await
        .expect("applied");
    assert_eq!(
        made.spec.and_then(|spec| spec.holder_identity).as_deref(),
        Some("me")
    );
    let nodes: Api<Node> = Api::all(client.clone());
    let node = serde_json::from_value(
        json!({"metadata": {"name": "here"}, "status": {"capacity": {"cpu": "2"}}}),
    )
    .expect("a node");
    let made = nodes
        .create(&PostParams::default(), &node)
        .await
        .expect("created");
    assert_eq!(
        made.status
            .and_then(|status| status.capacity)
            .map(|capacity| capacity.len()),
        Some(1)
    );
    let recorder = kube::runtime::events::Recorder::new(client.clone(), "tests".into());
    let reference = k8s_openapi::api::core::v1::ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        name: Some("p".into()),
        namespace: Some("default".into()),
        uid: Some("u".into()),
        ..Default::default()
    };
    let event = kube::runtime::events::Event {
        type_: kube::runtime::events::EventType::Warning,
        reason: "Tested".into(),
        note: Some("it works".into()),
        action: "Test".into(),
        secondary: None,
    };
    recorder
        .publish(&event, &reference)
        .await
        .expect("published");
    recorder
        .publish(&event, &reference)
        .await
        .expect("published again");
    let events: Api<Event> = Api::default_namespaced(client);
    let seen = events
        .list(&ListParams::default().fields("involvedObject.name=p"))
        .await
        .expect("listed")
        .items;
    assert_eq!(
        (
            seen.len(),
            seen[0].message.as_deref(),
            seen[0].involved_object.name.as_deref()
        ),
        (1, Some("it works"), Some("p"))
    );
}
