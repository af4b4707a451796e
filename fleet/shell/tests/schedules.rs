//! Schedules of updaters before the shipped API server. The test plays pages of monitors.

mod support;

use std::net::Ipv4Addr;

use axum::Router;
use axum::routing::get;
use daemon_kit::clock::Clock;
use fleet::{Location, Params};
use fleet_store::{environment_object, revision_object};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use protocol::fleet::{
    Day, EnvironmentSpec, KEY_SCHEDULE, Resolved, RevisionData, Selector, Window,
};
use protocol::parts::PartName;
use serde_json::{Value, json};
use test_api::TestApi;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Port of a monitor's page.
const PAGE_PORT: u16 = 9100;
const VMS: &str = "/apis/vm.neon.tech/v1/namespaces/default/virtualmachines";
const LIST: &str = "GET /apis/vm.neon.tech/v1/virtualmachines";
const BY_HAND: &str = "*-*-* 04:00:00 UTC";

/// Address of this process and a number alone: other tests serve pages at the same port.
fn address(number: u8) -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 110 + number, high, low.max(1))
}

async fn serve_page(number: u8, labels: &'static str) {
    let listener = TcpListener::bind((address(number), PAGE_PORT)).await;
    let listener = listener.expect("the page's port on a loopback address");
    let page = format!("vm_monitor_build_info{{version=\"1.0.0\",sha256=\"ab\"{labels}}} 1\n");
    let respond = move || std::future::ready(page.clone());
    let router = Router::new().route("/metrics", get(respond));
    tokio::spawn(async move { axum::serve(listener, router).await });
}

fn windows(day: Day) -> Value {
    json!([Window {
        days: vec![day],
        start: "02:00".to_owned(),
        minutes: 60,
        time_zone: "UTC".to_owned(),
    }])
}

/// An active environment of monitors. A look at the objects follows each second, since one of its
/// deployments waits.
fn put_environment(api: &TestApi) {
    let spec = EnvironmentSpec {
        selector: Selector::default(),
        ..EnvironmentSpec::of_release(PartName::Monitor, "1.1.0")
    };
    let mut environment = environment_object("default", "m", &spec);
    environment["spec"]["windows"] = windows(Day::Sat);
    environment["status"] = json!({
        "state": "Active", "lock": {"deployment": "m-d", "kind": "User", "epoch": 1},
    });
    let data = RevisionData {
        spec,
        resolved: Resolved {
            version: "1.1.0".to_owned(),
            sha256: "1".repeat(64),
            bundle: String::new(),
        },
    };
    let revision = revision_object(&environment, 1, &data);
    api.put("controllerrevisions", revision);
    api.put("fleetenvironments", environment);
    let deployment = json!({
        "apiVersion": "fleet.bellows.dev/v1alpha1", "kind": "FleetDeployment",
        "metadata": {
            "name": "m-d", "namespace": "default", "creationTimestamp": "2026-01-05T12:00:00Z",
        },
        "spec": {"environment": "m", "revision": "m-r1", "kind": "User"},
        "status": {"state": "Blocked", "epoch": 1, "startedAt": Clock::new().wall()},
    });
    api.put("fleetdeployments", deployment);
}

/// Made by a client, so that each field has its manager.
async fn create_vm(api: &TestApi, name: &str, number: u8, annotations: Value) {
    let kind = GroupVersionKind::gvk("vm.neon.tech", "v1", "VirtualMachine");
    let resource = ApiResource::from_gvk_with_plural(&kind, "virtualmachines");
    let vms: Api<DynamicObject> = Api::namespaced_with(api.client(), "default", &resource);
    let object = json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"guest": {
            "cpus": {"min": "250m", "max": 1, "use": "250m"},
            "memorySlotSize": "1Gi", "memorySlots": {"min": 1, "max": 4, "use": 1},
            "rootDisk": {"image": "image"},
        }},
    });
    let object = serde_json::from_value(object).expect("an object");
    let params = PostParams {
        field_manager: Some("a-person".to_owned()),
        ..PostParams::default()
    };
    vms.create(&params, &object).await.expect("a VM");
    let ip = address(number).to_string();
    api.edit("virtualmachines", "default", name, |vm| {
        vm["status"] = json!({"phase": "Running", "podName": name, "podIP": ip, "node": "n"});
    });
}

/// `pg` and `owned` have a monitor of a package, and `image` has one of its image.
async fn three_vms(api: &TestApi) {
    let from_package = ",from=\"package\"";
    create_vm(api, "pg", 0, json!({})).await;
    create_vm(api, "owned", 1, json!({ KEY_SCHEDULE: BY_HAND })).await;
    create_vm(api, "image", 2, json!({})).await;
    for (number, labels) in [(0, from_package), (1, from_package), (2, "")] {
        serve_page(number, labels).await;
    }
}

fn drive(api: &TestApi, schedules: bool, folder: &tempfile::TempDir) -> DropGuard {
    let token = CancellationToken::new();
    let params = Params {
        schedules,
        ..support::params(api.client(), folder.path(), Location::Machine, None)
    };
    tokio::spawn(fleet::run(params, token.clone()));
    token.drop_guard()
}

fn schedule(api: &TestApi, name: &str) -> Value {
    let vm = api.get("virtualmachines", "default", name).expect("a VM");
    vm["metadata"]["annotations"][KEY_SCHEDULE].clone()
}

async fn becomes(api: &TestApi, expected: Value) {
    let what = format!("the schedule {expected}");
    api.wait(&what, |api| (schedule(api, "pg") == expected).then_some(()))
        .await;
}

/// Waits for looks that begin from now on.
async fn looks(api: &TestApi) {
    let before = api.count(LIST, |_| true);
    while api.count(LIST, |_| true) < before + 4 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

fn writes(api: &TestApi, name: &str) -> usize {
    api.count(&format!("PATCH {VMS}/{name}"), |_| true)
}

/// Requirement: R19
#[tokio::test]
async fn schedule_follows_the_windows_and_goes_with_an_opt_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let api = TestApi::start().await;
    put_environment(&api);
    three_vms(&api).await;
    let _driver = drive(&api, true, &folder);
    becomes(&api, json!("Sat *-*-* 02:00/20:00 UTC")).await;
    looks(&api).await;
    assert_eq!(writes(&api, "pg"), 1, "written once");

    api.edit("fleetenvironments", "default", "m", |one| {
        one["spec"]["windows"] = windows(Day::Sun);
    });
    becomes(&api, json!("Sun *-*-* 02:00/20:00 UTC")).await;
    looks(&api).await;
    assert_eq!(writes(&api, "pg"), 2);

    api.edit("virtualmachines", "default", "pg", |vm| {
        vm["metadata"]["labels"]["fleet.bellows.dev/enrolled"] = json!("false");
    });
    becomes(&api, Value::Null).await;
    looks(&api).await;
    assert_eq!(writes(&api, "pg"), 3);

    assert_eq!(writes(&api, "image"), 0, "its host brings its monitor");
    let by_hand = schedule(&api, "owned");
    assert_eq!(by_hand, json!(BY_HAND), "what a person set stays");
    assert_eq!(writes(&api, "owned"), 2, "one attempt for each schedule");
}

/// Requirement: R19
#[tokio::test]
async fn schedule_of_an_environment_that_is_gone_is_taken_away() {
    let folder = tempfile::tempdir().expect("a folder");
    let api = TestApi::start().await;
    put_environment(&api);
    create_vm(&api, "pg", 3, json!({})).await;
    serve_page(3, ",from=\"package\"").await;
    let _driver = drive(&api, true, &folder);
    becomes(&api, json!("Sat *-*-* 02:00/20:00 UTC")).await;
    api.edit("fleetenvironments", "default", "m", |one| {
        one["spec"]["selector"] = json!({"matchLabels": {"of": "others"}});
    });
    becomes(&api, Value::Null).await;
}

/// Requirement: R19
#[tokio::test]
async fn without_the_setting_no_schedule_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let api = TestApi::start().await;
    put_environment(&api);
    create_vm(&api, "pg", 4, json!({})).await;
    serve_page(4, ",from=\"package\"").await;
    let _driver = drive(&api, false, &folder);
    looks(&api).await;
    assert_eq!(writes(&api, "pg"), 0);
}
