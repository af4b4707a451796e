//! Overlay addresses, between an API server and controllers.

mod support;

use std::collections::BTreeSet;

use neonvm_controller::{Overlay, Settings};
use protocol::time::Span;
use serde_json::{Value, json};
use support::api::FakeApi;
use support::{Controller, vm};

const POOL: &str = "neonvm-10.100.0.0-16";

fn settings(last: &str) -> Settings {
    let config = json!({"ipam": {
        "network_name": "neonvm",
        "ipRanges": [{"range": "10.100.0.0/16", "range_start": "10.100.128.1", "range_end": last}],
    }});
    let overlay = Overlay::read("default", &config.to_string()).expect("a range");
    Settings {
        overlay: Some(overlay),
        network_attachment: Some("default/overlay-for-vms".into()),
        ..Settings::one_machine()
    }
}

fn overlay_vm(name: &str) -> Value {
    let mut object = vm(name);
    object["spec"]["extraNetwork"] = json!({"enable": true});
    object
}

/// The address a VM has been given, once it is in its status and its pod is made.
async fn address(api: &FakeApi, name: &str) -> String {
    let given = api
        .wait_vm("an overlay address", name, |vm| {
            vm["status"]["extraNetIP"].is_string()
        })
        .await;
    assert_eq!(given["status"]["extraNetMask"], "255.255.0.0");
    api.wait_pod(name).await;
    given["status"]["extraNetIP"].as_str().expect("text").into()
}

/// Deletes a VM whose pod no node has taken, and waits until it is gone.
async fn delete(api: &FakeApi, name: &str) {
    api.wait_pod(name).await;
    api.delete("virtualmachines", name, true);
    api.wait("the end of the VM", |api| {
        api.get("virtualmachines", name).is_none().then_some(())
    })
    .await;
}

/// Requirement: N17
#[tokio::test]
async fn vms_get_lowest_free_address_and_release_it() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    let controller = Controller::start_with(&api, dir.path(), settings("10.100.128.9"));
    api.create("virtualmachines", overlay_vm("one"));
    assert_eq!(address(&api, "one").await, "10.100.128.1");
    api.create("virtualmachines", overlay_vm("two"));
    assert_eq!(address(&api, "two").await, "10.100.128.2");
    let pool = api.get("ippools", POOL).expect("the pool");
    assert_eq!(pool["spec"]["range"], "10.100.0.0/16");
    assert_eq!(pool["spec"]["allocations"]["32769"]["id"], "default/one");
    // Another controller, which knows nothing: the same addresses.
    controller.kill().await;
    let controller = Controller::start_with(&api, dir.path(), settings("10.100.128.9"));
    delete(&api, "one").await;
    let pool = api.get("ippools", POOL).expect("the pool");
    assert!(pool["spec"]["allocations"].get("32769").is_none());
    api.create("virtualmachines", overlay_vm("three"));
    assert_eq!(address(&api, "three").await, "10.100.128.1");
    assert_eq!(address(&api, "two").await, "10.100.128.2");
    controller.stop().await;
}

#[tokio::test]
async fn full_pool_is_reported_and_vm_waits() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    let controller = Controller::start_with(&api, dir.path(), settings("10.100.128.1"));
    api.create("virtualmachines", overlay_vm("one"));
    address(&api, "one").await;
    api.create("virtualmachines", overlay_vm("two"));
    api.wait_vm("that the pool is full", "two", |vm| {
        let told = vm["status"]["conditions"].to_string();
        told.contains(
            "failed to take an overlay address: every address of neonvm-10.100.0.0-16 is held",
        )
    })
    .await;
    assert!(api.list("pods").len() == 1, "no pod without an address");
    delete(&api, "one").await;
    assert_eq!(address(&api, "two").await, "10.100.128.1");
    controller.stop().await;
}

#[tokio::test]
async fn address_of_deleted_vm_is_released() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    let ghost = json!({"id": "default/ghost", "podref": "gone"});
    api.create(
        "ippools",
        json!({
            "apiVersion": "vm.neon.tech/v1", "kind": "IPPool",
            "metadata": {"name": POOL, "namespace": "default"},
            "spec": {"range": "10.100.0.0/16", "allocations": {"32769": ghost}},
        }),
    );
    let mut settings = settings("10.100.128.9");
    if let Some(overlay) = settings.overlay.as_mut() {
        overlay.grace = Span::from_millis(500);
    }
    let controller = Controller::start_with(&api, dir.path(), settings);
    api.create("virtualmachines", overlay_vm("one"));
    assert_eq!(address(&api, "one").await, "10.100.128.2");
    api.wait("that it is taken back", |api| {
        let pool = api.get("ippools", POOL)?;
        let all = pool["spec"]["allocations"].as_object()?;
        let held: Vec<&Value> = all.values().map(|by| &by["id"]).collect();
        (held == ["default/one"]).then_some(())
    })
    .await;
    controller.stop().await;
}

/// Two controllers act as leaders at the same time.
#[tokio::test]
async fn concurrent_controllers_give_no_address_twice() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    let both = [0, 1].map(|_| Controller::start_with(&api, dir.path(), settings("10.100.128.99")));
    let names: Vec<String> = (0..8).map(|n| format!("vm-{n}")).collect();
    for name in &names {
        api.create("virtualmachines", overlay_vm(name));
    }
    let mut given = BTreeSet::new();
    for name in &names {
        given.insert(address(&api, name).await);
    }
    assert_eq!(given.len(), names.len(), "{given:?}");
    for controller in both {
        controller.stop().await;
    }
}
