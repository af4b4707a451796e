//! What the controller and a VM's runners know each other by, between an API server and a
//! controller.

mod support;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use daemon_kit::bearer::VmKey;
use neonvm_controller::Settings;
use serde_json::{Value, json};
use support::api::FakeApi;
use support::{Controller, vm};

const SECRET: &str = "runner-neonvm-example";
const KEYS: &str = "ssh-neonvm-example";

/// A key pair for the VM's guest, which is owned by these.
fn keys(owners: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": KEYS, "namespace": "default", "ownerReferences": owners},
        "type": "kubernetes.io/ssh-auth",
        "data": {"ssh-publickey": "cHVi", "ssh-privatekey": "cHJpdg=="},
    })
}

/// The token of a secret that is older than certificates stays: running pods know the controller by
/// it.
#[tokio::test]
async fn secret_without_certificate_gets_one_and_keeps_its_token() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    api.create("virtualmachines", vm("example"));
    let made = api.get("virtualmachines", "example").expect("made");
    let owner = json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "name": "example", "uid": made["metadata"]["uid"],
    });
    api.create(
        "secrets",
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": SECRET,
                "namespace": "default",
                "ownerReferences": [owner],
            },
            "data": {"token": "b2xk", "keys.psk": "cHNr"},
        }),
    );
    let settings = Settings::cluster("runner:1");
    let controller = Controller::start_with(&api, dir.path(), settings);
    api.wait_pod("example").await;
    let secret = api.get("secrets", SECRET).expect("it stays");
    let data = &secret["data"];
    assert_eq!(
        (&data["token"], &data["keys.psk"]),
        (&json!("b2xk"), &json!("cHNr"))
    );
    for file in ["tls.crt", "tls.key"] {
        assert!(
            data[file].as_str().is_some_and(|pem| pem.len() > 100),
            "{data}"
        );
    }
    let requests = api.lines();
    let at = |starts: &str| {
        requests
            .iter()
            .position(|request| request.starts_with(starts))
    };
    let (patched, made) = (
        at("PATCH /api/v1/namespaces/default/secrets/"),
        at("POST /api/v1/namespaces/default/pods"),
    );
    assert!(patched.is_some() && patched < made, "{requests:?}");
    controller.stop().await;
}

/// The key pair is deleted with its VM. A pod that mounts it would then wait without end.
#[tokio::test]
async fn key_pair_of_earlier_vm_is_replaced_once_it_is_gone() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    let earlier = json!([{"kind": "VirtualMachine", "name": "example", "uid": "earlier"}]);
    api.create("secrets", keys(earlier));
    api.create("virtualmachines", vm("example"));
    let controller = Controller::start(&api, dir.path());
    let told = api.wait("a refusal, or a pod", |api| {
        let vm = api.get("virtualmachines", "example")?;
        let mut conditions = vm["status"]["conditions"].as_array()?.iter();
        let degraded = conditions.find(|one| one["type"] == "Degraded");
        let is_made = !api.list("pods").is_empty();
        is_made.then_some(Value::Null).or(degraded.cloned())
    });
    let told = told.await;
    let message = told["message"].as_str().expect("no pod was made");
    assert!(message.contains("not this VM's"), "{message}");
    assert_eq!(api.list("pods"), Vec::<Value>::new());
    api.delete("secrets", KEYS, true);
    api.wait_pod("example").await;
    let (secret, vm) = (
        api.get("secrets", KEYS).expect("it was made"),
        api.get("virtualmachines", "example").expect("it stays"),
    );
    let owner = &secret["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], vm["metadata"]["uid"]);
    controller.stop().await;
}

#[tokio::test]
async fn foreign_key_pair_is_used_unchanged() {
    let theirs = json!([{"kind": "ExternalSecret", "name": "example", "uid": "theirs"}]);
    for owners in [json!([]), theirs] {
        let (api, dir) = (
            FakeApi::start().await,
            tempfile::tempdir().expect("a directory"),
        );
        api.create("secrets", keys(owners));
        let before = api.get("secrets", KEYS);
        api.create("virtualmachines", vm("example"));
        let controller = Controller::start(&api, dir.path());
        api.wait_pod("example").await;
        assert_eq!(api.get("secrets", KEYS), before);
        controller.stop().await;
    }
}

/// A person may delete the secret before the kubelet has mounted it.
#[tokio::test]
async fn missing_key_pair_is_created_again_for_waiting_pod() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    api.create("virtualmachines", vm("example"));
    let controller = Controller::start(&api, dir.path());
    let pod = api.wait_pod("example").await;
    controller.stop().await;
    api.delete("secrets", KEYS, true);
    assert_eq!(api.get("secrets", KEYS), None);
    let controller = Controller::start(&api, dir.path());
    api.wait("the key pair", |api| api.get("secrets", KEYS))
        .await;
    assert_eq!(api.wait_pod("example").await, pod);
    controller.stop().await;
}

#[tokio::test]
async fn guest_token_is_derived_from_the_key_that_agents_mount() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    let mut settings = Settings::cluster("runner:1");
    settings.monitor_key = Some("default/agents".parse().expect("a name"));
    api.create("virtualmachines", vm("example"));
    let controller = Controller::start_with(&api, dir.path(), settings.clone());
    api.wait_pod("example").await;
    let held = |secret: &str, file: &str| {
        let secret = api.get("secrets", secret).expect("it is there");
        let text = secret["data"][file].as_str().expect("it has the file");
        String::from_utf8(STANDARD.decode(text).expect("base64")).expect("text")
    };
    let key = held("agents", "key");
    let made = api.get("virtualmachines", "example").expect("it stays");
    let uid = made["metadata"]["uid"].as_str().expect("a uid");
    let token = VmKey::parse(&key)
        .expect("a key")
        .token("default", "example", uid);
    assert_eq!(held(SECRET, "monitor.token"), token);
    controller.stop().await;
    // The next controller derives from the same key.
    api.create("virtualmachines", support::vm("other"));
    let controller = Controller::start_with(&api, dir.path(), settings);
    api.wait_pod("other").await;
    assert_eq!(held("agents", "key"), key);
    controller.stop().await;
}
