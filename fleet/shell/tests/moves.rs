//! Moves of guests to new runners before the shipped API server. The test plays the controller, and
//! the runners at their sockets.

#[path = "moves/near.rs"]
mod near;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::Method;
use axum::routing::{get, put};
use daemon_kit::clock::Clock;
use fleet::{Location, Metrics, MoveParams, Mover, Pulses, Standing};
use fleet_core::runners::{Key, Settings, Wanted};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use protocol::notice::MoveNotice;
use protocol::runner::control_socket;
use protocol::time::Span;
use serde_json::{Value, json};
use tempfile::TempDir;
use test_api::{Fault, TestApi};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

const OLD: &str = "r@sha256:0a";
const NEW: &str = "r@sha256:0b";
const VMS: &str = "/apis/vm.neon.tech/v1/namespaces/default/virtualmachines";
const MIGRATIONS: &str = "/apis/vm.neon.tech/v1/namespaces/default/virtualmachinemigrations";

/// One VM `pg` with the pod `pg-1`, and runners that answer for it and for `pg-2`.
struct Stage {
    api: TestApi,
    folder: TempDir,
    notices: Notices,
}

/// Orders about notices: pod, method, body, and the number of migrations that were made before.
type Notices = Arc<Mutex<Vec<(String, Method, String, usize)>>>;

impl Stage {
    async fn new() -> Self {
        let stage = Self {
            api: TestApi::start().await,
            folder: tempfile::tempdir().expect("a folder"),
            notices: Notices::default(),
        };
        stage.create_vm("pg").await;
        for pod in ["pg-1", "pg-2"] {
            stage.serve_runner(pod);
        }
        stage
    }

    /// By a client, so that the stored object has every default.
    async fn create_vm(&self, name: &str) {
        let kind = GroupVersionKind::gvk("vm.neon.tech", "v1", "VirtualMachine");
        let resource = ApiResource::from_gvk_with_plural(&kind, "virtualmachines");
        let client = self.api.client();
        let api: Api<DynamicObject> = Api::namespaced_with(client, "default", &resource);
        let object = serde_json::from_value(vm(name)).expect("an object");
        let created = api.create(&PostParams::default(), &object).await;
        let uid = created.expect("a VM").metadata.uid.expect("a uid");
        self.api.edit("virtualmachines", "default", name, |vm| {
            vm["status"] = json!({"phase": "Running", "podName": format!("{name}-1"), "node": "n"});
        });
        self.api
            .put("pods", pod(name, &format!("{name}-1"), &uid, OLD));
    }

    fn vm(&self) -> Value {
        self.api
            .get("virtualmachines", "default", "pg")
            .expect("a VM")
    }

    fn instance(&self) -> Value {
        let instance = self.api.get("fleetinstances", "default", "vm-pg");
        instance.expect("an instance")
    }

    fn mover(&self, settings: Option<Settings>) -> Mover {
        Mover::new(MoveParams {
            client: self.api.client(),
            clock: Clock::new(),
            state_dir: self.folder.path().to_owned(),
            location: Location::Machine,
            settings,
            wanted: Some(Wanted {
                to: NEW.to_owned(),
                version: "1.1.0".to_owned(),
                is_critical: false,
            }),
            namespace: None,
            metrics: Metrics::default(),
            journal: None,
            pulses: Pulses::default(),
        })
    }

    async fn move_all(&self) -> Vec<(Key, Standing)> {
        let mut mover = self.mover(Some(ordered()));
        let mut say = |_: &Key, _: &str| {};
        let whole = mover.run_until_rest(&mut say);
        let limit = Duration::from_secs(60);
        let ended = tokio::time::timeout(limit, whole).await;
        ended.expect("it comes to rest").expect("a look")
    }

    fn serve_runner(&self, pod: &str) {
        let state = include_str!("../../../protocol/testdata/runner/state_booting.json");
        let mut state: Value = serde_json::from_str(state).expect("JSON");
        state["phase"] = json!("running");
        state["accel"] = json!("kvm");
        let socket = control_socket(self.folder.path(), "default", pod);
        std::fs::create_dir_all(socket.parent().expect("a folder")).expect("a folder");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let respond = move || std::future::ready(axum::Json(state.clone()));
        let (api, notices, pod) = (self.api.clone(), Arc::clone(&self.notices), pod.to_owned());
        let note = move |method: Method, body: String| {
            let made = api.lines().into_iter();
            let made = made.filter(|line| *line == format!("POST {MIGRATIONS}"));
            let order = (pod.clone(), method, body, made.count());
            notices.lock().expect("no panic").push(order);
            std::future::ready(())
        };
        let router = Router::new()
            .route("/v1/state", get(respond))
            .route("/v1/guest/notice", put(note.clone()).delete(note));
        tokio::spawn(async move { axum::serve(listener, router).await });
    }

    fn writes(&self) -> Vec<String> {
        let mut lines = self.api.lines();
        lines.retain(|line| !line.starts_with("GET"));
        lines
    }
}

fn ordered() -> Settings {
    Settings {
        ordered_at: Some(Clock::new().wall()),
        look_every: Span::from_millis(50),
        well_for: Span::from_millis(200),
        ..Settings::default()
    }
}

fn vm(name: &str) -> Value {
    json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"guest": {
            "cpus": {"min": "250m", "max": 1, "use": "250m"},
            "memorySlotSize": "1Gi", "memorySlots": {"min": 1, "max": 4, "use": 1},
            "rootDisk": {"image": "image"},
        }},
    })
}

fn pod(vm: &str, name: &str, uid: &str, image: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "labels": {"vm.neon.tech/name": vm},
            "ownerReferences": [{
                "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": vm,
                "uid": uid, "controller": true,
            }],
        },
        "spec": {"containers": [{"name": "neonvm-runner", "image": image}]},
        "status": {"phase": "Running"},
    })
}

/// Each migration ends as soon as it is made.
fn play_controller(api: &TestApi, phase: &'static str) {
    api.after_writes(move |api, call| {
        if call.line != format!("POST {MIGRATIONS}") {
            return;
        }
        let name = call.json()["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        api.edit("virtualmachinemigrations", "default", &name, |one| {
            one["status"] = json!({"phase": phase, "conditions": [
                {"type": "Available", "status": "False", "message": "no room on the node"},
            ]});
        });
        if phase == "Succeeded" {
            let vm = api.edit("virtualmachines", "default", "pg", |vm| {
                vm["status"]["podName"] = json!("pg-2");
            });
            let text = |value: &Value| value.as_str().expect("text").to_owned();
            let (uid, image) = (
                text(&vm["metadata"]["uid"]),
                text(&vm["spec"]["runnerImage"]),
            );
            api.put("pods", pod("pg", "pg-2", &uid, &image));
            api.take("pods", "default", "pg-1");
        }
    });
}

/// Requirement: R39
#[tokio::test]
async fn guest_moves_to_the_wanted_runner() {
    let stage = Stage::new().await;
    play_controller(&stage.api, "Succeeded");
    let standings = stage.move_all().await;
    let key = ("default".to_owned(), "pg".to_owned());
    assert_eq!(standings, [(key, Standing::Current)]);
    assert_eq!(stage.vm()["spec"]["runnerImage"], NEW);
    assert_eq!(stage.api.list("virtualmachinemigrations"), [] as [Value; 0]);
    let instance = stage.instance();
    assert_eq!(instance["status"]["runner"]["result"], "Good", "{instance}");
    assert_eq!(instance["spec"]["runner"]["attempt"], 1);
    let writes = stage.writes();
    let count = |starts: &str| writes.iter().filter(|one| one.starts_with(starts)).count();
    assert_eq!(
        count(&format!("PATCH {VMS}")),
        2,
        "a dry run and the write: {writes:?}"
    );
    assert_eq!(count(&format!("POST {MIGRATIONS}")), 1, "{writes:?}");
    let before = writes.len();
    stage.move_all().await;
    assert_eq!(stage.writes().len(), before, "a second pass writes nothing");
}

/// Requirement: R39
#[tokio::test]
async fn failed_migration_leaves_guest_and_field_as_they_were() {
    let stage = Stage::new().await;
    play_controller(&stage.api, "Failed");
    let standings = stage.move_all().await;
    assert_eq!(
        standings[0].1,
        Standing::Waits("halted".to_owned()),
        "{standings:?}"
    );
    assert_eq!(stage.vm()["spec"].get("runnerImage"), None);
    assert_eq!(stage.api.list("virtualmachinemigrations"), [] as [Value; 0]);
    let end = stage.instance()["status"]["runner"].clone();
    assert_eq!(end["result"], "Bad", "{end}");
    assert_eq!(end["reason"], "no room on the node");
}

/// The guest is told before its migration is made, and the notice goes with the end of the move:
/// in the pod where the guest then is.
///
/// Requirement: R44
#[tokio::test]
async fn guest_is_told_before_it_moves_and_the_notice_goes_with_the_end() {
    for (phase, ends_in) in [("Succeeded", "pg-2"), ("Failed", "pg-1")] {
        let stage = Stage::new().await;
        play_controller(&stage.api, phase);
        stage.move_all().await;
        let notices = stage.notices.lock().expect("no panic").clone();
        let (pod, method, body, made) = notices.first().expect("a notice");
        assert_eq!((pod.as_str(), method, *made), ("pg-1", &Method::PUT, 0));
        let notice = MoveNotice::parse(body.as_bytes()).expect("a notice");
        assert!(notice.text().contains("version 1.1.0"), "{}", notice.text());
        let (pod, method, ..) = notices.last().expect("its end");
        assert_eq!(
            (pod.as_str(), method),
            (ends_in, &Method::DELETE),
            "{notices:?}"
        );
        let taken = notices
            .iter()
            .filter(|(_, method, ..)| *method == Method::DELETE);
        assert_eq!(taken.count(), 1, "{notices:?}");
    }
}

/// The process ends between two steps, and another one goes on.
///
/// Requirement: R39
#[tokio::test]
async fn another_process_goes_on_with_a_move() {
    for steps in 1..4 {
        let stage = Stage::new().await;
        play_controller(&stage.api, "Succeeded");
        let token = CancellationToken::new();
        let (ended, mut left) = (token.clone(), steps);
        let mut first = stage.mover(Some(ordered()));
        let mut count = |_: &Key, _: &str| {
            left -= 1;
            if left == 0 {
                ended.cancel();
            }
        };
        tokio::select! {
            () = token.cancelled() => {}
            ended = first.run_until_rest(&mut count) => panic!("{ended:?} before step {steps}"),
        }
        drop(first);
        let standings = stage.move_all().await;
        assert_eq!(standings[0].1, Standing::Current, "{steps}");
        let made = stage.writes();
        let made = made
            .iter()
            .filter(|one| one.starts_with(&format!("POST {MIGRATIONS}")));
        assert_eq!(made.count(), 1, "{steps}");
    }
}

/// Requirement: R36
#[tokio::test]
async fn without_settings_no_call_is_made() {
    let stage = Stage::new().await;
    let before = stage.api.lines().len();
    let token = CancellationToken::new();
    let mover = stage.mover(None);
    let running = tokio::spawn(mover.run(token.clone()));
    tokio::time::sleep(Duration::from_millis(300)).await;
    token.cancel();
    running.await.expect("no panic");
    assert_eq!(stage.api.lines().len(), before);
}

/// Requirement: R38
#[tokio::test]
async fn write_that_would_change_a_second_field_is_not_made() {
    let stage = Stage::new().await;
    let also = Fault::answer(|api, call| {
        call.option("dryRun")?;
        let mut vm = api.get("virtualmachines", "default", "pg")?;
        vm["spec"]["runnerImage"] = json!(NEW);
        vm["spec"]["qmp"] = json!(1);
        Some((200, vm))
    });
    stage.api.always(&format!("PATCH {VMS}/pg"), also);
    stage.move_all().await;
    assert_eq!(stage.vm()["spec"].get("runnerImage"), None);
    assert_eq!(stage.api.list("virtualmachinemigrations"), [] as [Value; 0]);
    let end = stage.instance()["status"]["runner"].clone();
    assert_eq!(end["result"], "Skip", "{end}");
    let reason = end["reason"].as_str().expect("a reason");
    assert!(reason.contains("/spec/qmp"), "{reason}");
}
