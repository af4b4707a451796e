//! The driver before the shipped API server, with guests that a test plays: a runner's socket and a
//! monitor's page.

#[path = "driver/copy.rs"]
mod copy;
mod support;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use daemon_kit::clock::Clock;
use fleet::Location;
use fleet_store::{deployment_object, environment_object, revision_object};
use protocol::fleet::{
    DeploymentKind, DeploymentSpec, EnvironmentSpec, Group, Resolved, RevisionData, Rollout,
    Selector,
};
use protocol::parts::PartName;
use protocol::runner::control_socket;
use serde_json::{Value, json};
use test_api::{Fault, TestApi};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::DropGuard;

const OLD: &str = "0";
const NEW: &str = "1";
/// Port of a monitor's page.
const PAGE_PORT: u16 = 9100;

fn spec(label: &str, groups: Vec<Group>) -> EnvironmentSpec {
    EnvironmentSpec {
        selector: Selector {
            match_labels: [("env".to_owned(), label.to_owned())].into(),
            ..Selector::default()
        },
        rollout: Rollout {
            groups,
            ..Rollout::default()
        },
        ..EnvironmentSpec::of_release(PartName::Monitor, "1.1.0")
    }
}

/// An environment with a revision and a deployment `NAME-d`.
fn put_environment(api: &TestApi, name: &str, spec: &EnvironmentSpec, status: &Value) {
    let mut environment = environment_object("default", name, spec);
    environment["status"] = status["environment"].clone();
    let data = RevisionData {
        spec: spec.clone(),
        resolved: Resolved {
            version: "1.1.0".to_owned(),
            sha256: NEW.repeat(64),
            bundle: String::new(),
        },
    };
    let revision = revision_object(&environment, 1, &data);
    api.put("controllerrevisions", revision);
    api.put("fleetenvironments", environment);
    let deployment = DeploymentSpec::new(name, format!("{name}-r1"), DeploymentKind::User);
    let mut deployment = deployment_object("default", &format!("{name}-d"), &deployment);
    deployment["metadata"]["creationTimestamp"] = json!("2026-01-05T12:00:00Z");
    deployment["status"] = status["deployment"].clone();
    api.put("fleetdeployments", deployment);
}

fn vm(name: &str, label: &str, address: Ipv4Addr) -> Value {
    json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "default", "labels": {"env": label}},
        "spec": {"guest": {
            "cpus": {"min": "250m", "max": 1, "use": "250m"},
            "memorySlotSize": "1Gi", "memorySlots": {"min": 1, "max": 4, "use": 1},
            "rootDisk": {"image": "image"},
        }},
        "status": {
            "phase": "Running", "podName": name, "podIP": address.to_string(), "node": "n",
        },
    })
}

/// State of a runner whose guest runs a settled monitor.
fn runner_state(digit: &str) -> Value {
    let state = include_str!("../../../protocol/testdata/runner/state_booting.json");
    let mut state: Value = serde_json::from_str(state).expect("JSON");
    state["phase"] = json!("running");
    state["boot_id"] = json!("boot");
    state["qemu_pid"] = Value::Null;
    state["guest_parts"] = json!({"monitor": {
        "version": "1.0.0", "sha256": digit.repeat(64), "from": "Image", "phase": "Settled",
        "starts": 1, "resident_bytes": 1 << 20,
    }});
    state
}

/// Serves a runner's state at its control socket. Returns the number of requests so far.
fn serve_runner(state_dir: &Path, pod: &str, state: Value) -> Arc<AtomicUsize> {
    let socket = control_socket(state_dir, "default", pod);
    let folder = socket.parent().expect("a folder");
    std::fs::create_dir_all(folder).expect("a folder");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let count = Arc::new(AtomicUsize::new(0));
    let of_requests = Arc::clone(&count);
    let respond = move || {
        of_requests.fetch_add(1, Ordering::Relaxed);
        std::future::ready(axum::Json(state.clone()))
    };
    let router = Router::new().route("/v1/state", get(respond));
    tokio::spawn(async move { axum::serve(listener, router).await });
    count
}

/// Serves a monitor's page on which `kills` more processes were killed with each request.
async fn serve_page(address: Ipv4Addr, kills: u64) {
    let listener = TcpListener::bind((address, PAGE_PORT)).await;
    let total = Arc::new(AtomicU64::new(0));
    let respond = move || {
        let total = total.fetch_add(kills, Ordering::Relaxed);
        std::future::ready(format!(
            "host_memory_total_bytes 1073741824\nvm_monitor_agent_connected 1\n\
             vm_monitor_upscale_requests_total 0\nprocess_resident_memory_bytes 4000000\n\
             vm_monitor_oom_kills_total {total}\n"
        ))
    };
    let router = Router::new().route("/metrics", get(respond));
    let listener = listener.expect("the page's port on a loopback address");
    tokio::spawn(async move { axum::serve(listener, router).await });
}

/// Addresses of this process alone: other tests serve pages at the same port.
fn addresses() -> [Ipv4Addr; 2] {
    let [.., high, low] = std::process::id().to_be_bytes();
    [100, 101].map(|second| Ipv4Addr::new(127, second, high, low.max(1)))
}

fn drive(api: &TestApi, state_dir: &Path) -> DropGuard {
    support::drive(api.client(), state_dir, Location::Machine, None)
}

/// Requirement: B47
#[tokio::test]
async fn slow_environment_delays_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let api = TestApi::start().await;
    let nobody = Ipv4Addr::new(127, 0, 0, 1);
    for name in ["a-slow", "quick"] {
        put_environment(&api, name, &spec(name, Vec::new()), &Value::Null);
    }
    api.put("virtualmachines", vm("pg", "quick", nobody));
    let looks = serve_runner(folder.path(), "pg", runner_state(OLD));
    let line = "PUT /apis/fleet.bellows.dev/v1alpha1/namespaces/default/fleetenvironments/a-slow";
    api.always(line, Fault::Swallow);
    let _driver = drive(&api, folder.path());
    // In step with the other, each of its looks would follow a write that has ended.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let writes = api.count(line, |_| true);
        let looks = looks.load(Ordering::Relaxed);
        if writes > 0 && looks > writes + 3 {
            return;
        }
        let is_early = tokio::time::Instant::now() < deadline;
        assert!(is_early, "{writes} slow writes, {looks} looks");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A deployment whose first canary bakes since now.
fn baking() -> Value {
    let now = json!(Clock::new().wall());
    json!({
        "environment": {"lock": {"deployment": "m-d", "kind": "User", "epoch": 1}},
        "deployment": {
            "state": "InProgress", "startedAt": now, "epoch": 1,
            "groups": [{
                "name": "all", "state": "CanariesBake", "done": 1, "total": 2, "bakingSince": now,
            }],
        },
    })
}

fn instance_with_good_turn(vm: &str) -> Value {
    json!({
        "apiVersion": "fleet.bellows.dev/v1alpha1", "kind": "FleetInstance",
        "metadata": {"name": format!("vm-{vm}"), "namespace": "default"},
        "spec": {"parts": {"monitor": {
            "environment": "m", "deployment": "m-d", "revision": "m-r1", "version": "1.1.0",
            "sha256": NEW.repeat(64), "token": "t", "epoch": 1, "attempt": 1,
        }}},
        "status": {"parts": {"monitor": {
            "version": "1.1.0", "sha256": NEW.repeat(64), "from": "A", "phase": "Settled",
            "healthy": true,
            "last": {"token": "t", "result": "Good", "at": "2026-01-05T12:01:00Z"},
        }}},
    })
}

/// The canary's page counts kills, that of the guest that waits none.
///
/// Requirement: B35
#[tokio::test]
async fn judge_halts_a_release_by_the_pages_of_its_guests() {
    let folder = tempfile::tempdir().expect("a folder");
    let api = TestApi::start().await;
    let group = Group {
        name: "all".to_owned(),
        match_labels: BTreeMap::new(),
        canaries: 1,
        bake_seconds: 600,
    };
    put_environment(&api, "m", &spec("m", vec![group]), &baking());
    api.put("fleetinstances", instance_with_good_turn("canary"));
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
        "status": {"allocatable": {"cpu": "8", "memory": "16Gi"}},
    });
    api.put("nodes", node);
    let guests = [("canary", NEW, 1), ("other", OLD, 0)];
    for ((name, digit, kills), address) in guests.into_iter().zip(addresses()) {
        api.put("virtualmachines", vm(name, "m", address));
        serve_runner(folder.path(), name, runner_state(digit));
        serve_page(address, kills).await;
    }
    let _driver = drive(&api, folder.path());
    let evidence = api.wait("the end of the deployment", |api| {
        let deployment = api.get("fleetdeployments", "default", "m-d")?;
        let status = &deployment["status"];
        (status["state"] == "Unhealthy").then(|| status["evidence"].to_string())
    });
    let evidence = evidence.await;
    let expected = "OOM kills although the node had memory";
    assert!(evidence.contains(expected), "{evidence}");
}
