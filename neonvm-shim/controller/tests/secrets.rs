//! What the controller and a VM's runners know each other by, between an API server and a controller.

mod support;

use neonvm_controller::Settings;
use serde_json::json;
use support::api::FakeApi;
use support::{Controller, vm};

const SECRET: &str = "runner-neonvm-example";

/// The token of a secret that is older than certificates stays: running pods know the controller by it.
#[tokio::test]
async fn b48_a_secret_of_before_gets_a_certificate_and_keeps_its_token() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    api.create("virtualmachines", vm("example"));
    let made = api.get("virtualmachines", "example").expect("made");
    api.create(
        "secrets",
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": SECRET,
                "namespace": "default",
                "ownerReferences": [{"uid": made["metadata"]["uid"]}],
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
    let requests = api.requests();
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
