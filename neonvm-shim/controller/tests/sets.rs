//! Sets of VMs, between the whole controller and an API server in memory.

mod support;

use serde_json::{Value, json};
use support::api::FakeApi;
use support::{Controller, vm};

const SETS: &str = "virtualmachinesets";
const VMS: &str = "virtualmachines";

fn set(replicas: u32) -> Value {
    json!({
        "apiVersion": "policy.bellows.dev/v1alpha1",
        "kind": "VirtualMachineSet",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "rates": {"grow": 100, "decline": 100},
            "kv": {"mode": "careful"},
            "template": {"spec": vm("x")["spec"]},
        },
    })
}

/// A controller and a set of this many members, which has them.
async fn start(replicas: u32) -> (FakeApi, tempfile::TempDir, Controller) {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    api.create(SETS, set(replicas));
    let controller = Controller::start(&api, dir.path());
    (api, dir, controller)
}

fn status(api: &FakeApi) -> Value {
    let set = api.get(SETS, "web");
    set.map_or(Value::Null, |set| set["status"].clone())
}

/// Requirement: V15, V17
#[tokio::test]
async fn v15_v17_controller_makes_members_and_their_file_and_deletes_the_highest() {
    let (api, _dir, controller) = start(2).await;
    api.wait("two members", |api| {
        (status(api)["replicas"] == 2).then_some(())
    })
    .await;
    let member = api.get(VMS, "web-1").expect("a member");
    let owner = &member["metadata"]["ownerReferences"][0];
    let uid = &api.get(SETS, "web").expect("the set")["metadata"]["uid"];
    assert_eq!(&owner["uid"], uid);
    assert_eq!(
        member["metadata"]["labels"]["policy.bellows.dev/set"],
        "web"
    );
    let lines = |api: &FakeApi| {
        api.get("configmaps", "web-members")?["data"]["members"]
            .as_str()
            .map(str::to_owned)
    };
    api.wait("both in the file", |api| {
        (lines(api)? == "web-0 - 1 down\nweb-1 - 1 down\n").then_some(())
    })
    .await;
    api.edit(SETS, "web", |set| set["spec"]["replicas"] = json!(1));
    api.wait("one member", |api| {
        let is_one = status(api)["replicas"] == 1 && api.get(VMS, "web-1").is_none();
        is_one.then_some(())
    })
    .await;
    assert!(api.get(VMS, "web-0").is_some());
    controller.stop().await;
}

#[tokio::test]
async fn config_map_and_vm_of_another_owner_are_left_alone() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "web-members", "namespace": "default"},
        "data": {"mine": "x"},
    });
    api.create("configmaps", map);
    api.create(VMS, vm("web-0"));
    api.create(SETS, set(1));
    let controller = Controller::start(&api, dir.path());
    let degraded = |api: &FakeApi| {
        let status = status(api);
        let mut all = status["conditions"].as_array()?.clone().into_iter();
        let found = all.find(|one| one["type"] == "Degraded" && one["status"] == "True")?;
        found["message"].as_str().map(str::to_owned)
    };
    let problem = api.wait("a problem", degraded).await;
    assert!(problem.contains("config map"), "{problem}");
    let map = api.get("configmaps", "web-members").expect("the map");
    assert_eq!(map["data"], json!({"mine": "x"}));
    assert!(
        api.get(VMS, "web-1").is_none(),
        "no member without the file"
    );
    api.delete("configmaps", "web-members", false);
    api.wait("a member of another name", |api| {
        api.get(VMS, "web-1").map(drop)
    })
    .await;
    let foreign = api.get(VMS, "web-0").expect("the VM");
    assert!(foreign["metadata"].get("ownerReferences").is_none());
    controller.stop().await;
}
