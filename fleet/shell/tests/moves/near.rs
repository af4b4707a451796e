//! What only resembles a VM's pod, or the fleet's migration.

use serde_json::{Value, json};
use test_api::Fault;

use super::*;

/// Values that make a member of the pod's JSON another VM's.
const TEXTS: [(&str, &[&str]); 6] = [
    (
        "/metadata/name",
        &["pg-2", "pg-", "pg-1x", "Pg-1", "pg1", "pg-01"],
    ),
    (
        "/metadata/namespace",
        &["other", "default2", "kube-system", "Default"],
    ),
    (
        "/metadata/labels/vm.neon.tech~1name",
        &["pg2", "p", "PG", "", "pg-1", "default/pg", "pg "],
    ),
    (
        "/metadata/ownerReferences/0/uid",
        &[
            "uid", "UID2", "UIDUID", "UID-1", "", "UI", "u", "pg", "UID ", " UID", "null",
        ],
    ),
    (
        "/metadata/ownerReferences/0/kind",
        &[
            "VirtualMachineSet",
            "VirtualMachineMigration",
            "Pod",
            "",
            "virtualmachine",
            "VM",
        ],
    ),
    (
        "/metadata/ownerReferences/0/apiVersion",
        &[
            "vm.example/v1",
            "v1",
            "vm.neon.tech",
            "",
            "neon.tech/v1",
            "apps/v1",
            "x/vm.neon.tech/v1",
        ],
    ),
];

/// Pods that differ from the VM's own in one member. `UID` stands for the VM's uid.
fn near_pods() -> Vec<Value> {
    let texts = TEXTS
        .iter()
        .flat_map(|(path, values)| values.iter().map(|value| (*path, json!(value))));
    let others = [
        ("/metadata/ownerReferences", json!([])),
        ("/metadata/ownerReferences/0/controller", json!(false)),
        ("/metadata/ownerReferences/0/controller", Value::Null),
        ("/metadata/ownerReferences/0/uid", Value::Null),
        ("/metadata/labels", json!({})),
        ("/metadata/labels", json!({"vm.neon.tech/names": "pg"})),
        ("/spec/containers", json!([])),
        ("/spec/containers/0/name", json!("runner")),
        ("/spec/containers/0/name", json!("neonvm-runner2")),
        ("/spec/containers/0/image", json!("")),
    ];
    let changed = texts.chain(others).map(|(path, value)| {
        let mut near = pod("pg", "pg-1", "UID", OLD);
        *near.pointer_mut(path).expect(path) = value;
        near
    });
    changed.collect()
}

/// Requirement: R37
#[tokio::test]
async fn pod_that_only_resembles_that_of_the_vm_moves_nobody() {
    let stage = Stage::new().await;
    let uid = stage.vm()["metadata"]["uid"]
        .as_str()
        .expect("a uid")
        .to_owned();
    let near = near_pods();
    assert!(near.len() >= 50, "{}", near.len());
    // The server's list is the test's, since the shipped one would not store most of them.
    for one in near {
        stage.api.take_all_back();
        let text = one.to_string().replace("UID", &uid);
        let one: Value = serde_json::from_str(&text).expect("JSON");
        let list = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [one]});
        let answer = Fault::answer(move |_, _| Some((200, list.clone())));
        stage.api.always("GET /api/v1/pods", answer);
        let before = stage.writes().len();
        stage.move_all().await;
        assert_eq!(stage.writes().len(), before, "{text}");
    }
    stage.api.take_all_back();
    play_controller(&stage.api, "Succeeded");
    assert_eq!(
        stage.move_all().await[0].1,
        Standing::Current,
        "its own pod"
    );
}

/// Somebody's migration with the name of ours is neither taken for ours nor deleted.
///
/// Requirement: R37
#[tokio::test]
async fn migration_of_somebody_else_is_left_alone() {
    let stage = Stage::new().await;
    play_controller(&stage.api, "Failed");
    let token = CancellationToken::new();
    let ended = token.clone();
    let mut first = stage.mover(Some(ordered()));
    let mut stop = |_: &Key, _: &str| ended.cancel();
    tokio::select! {
        () = token.cancelled() => {}
        ended = first.run_until_rest(&mut stop) => panic!("{ended:?}"),
    }
    let name = stage.instance()["spec"]["runner"]["migration"].clone();
    for (vm, uid) in [("pg", "other"), ("pg2", "")] {
        let own = stage.vm()["metadata"]["uid"].clone();
        let uid = if uid.is_empty() { own } else { json!(uid) };
        let theirs = json!({
            "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration",
            "metadata": {"name": name, "namespace": "default",
                "annotations": {"fleet.bellows.dev/moves": uid}},
            "spec": {"vmName": vm},
            "status": {"phase": "Succeeded"},
        });
        stage.api.put("virtualmachinemigrations", theirs);
        stage.move_all().await;
        let left = stage.api.list("virtualmachinemigrations");
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!(left[0]["metadata"]["name"], name);
        let end = stage.instance()["status"]["runner"].clone();
        assert_ne!(end["result"], "Good", "{end}");
        assert_eq!(stage.vm()["spec"].get("runnerImage"), None);
    }
}
