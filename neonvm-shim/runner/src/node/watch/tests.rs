//! The node driver between an API with one pod and a running runner.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, Uri};
use axum::routing::{get, post};
use daemon_kit::clock::Clock;
use protocol::annotations::ANNOTATION_ADOPTS;
use protocol::runner::{RunnerPhase, RunnerState};
use protocol::units::{Bytes, MilliCpu};
use serde_json::json;
use test_api::TestApi;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::config::AccelChoice;
use crate::core::paths::Paths;
use crate::node::pod_record::StorePosition;
use crate::node::{Allocatable, Orphans};
use crate::shell::initial_state::waiting_state;

/// Longer than any wait of a passing test.
const DEADLINE: Duration = Duration::from_secs(60);
/// More writes and orders than any test causes.
const HEARD: usize = 64;

/// Identity of the API's store.
const STORE: &str = "00000000000000aa";

/// The pod, and the channels of its observers.
struct Rig {
    orphans: Orphans,
    api: TestApi,
    /// Statuses that the driver writes.
    written: mpsc::Receiver<Value>,
    /// Stop orders to the runner.
    stops: mpsc::Receiver<()>,
    dir: tempfile::TempDir,
    tasks: Vec<AbortOnDropHandle<()>>,
}

impl Rig {
    /// A pod whose guest runs.
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let vm = dir.path().join("vms/default_one");
        std::fs::create_dir_all(&vm).unwrap();
        record(STORE).write(&vm).unwrap();
        std::fs::write(Paths::new(&vm).config(), "{}").unwrap();
        let (stopped, stops) = mpsc::channel(HEARD);
        let runner = serve_runner(Paths::new(&vm).control(), stopped);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "one", "namespace": "default", "uid": "uid-one",
                "labels": {LABEL_VM_NAME: "vm"}},
            "spec": {"nodeName": "here", "containers": [{"name": "neonvm-runner", "image": "x"}]},
            "status": {"phase": "Pending"},
        });
        let api = TestApi::start().await;
        api.put("pods", pod);
        let (wrote, written) = mpsc::channel(HEARD);
        api.after_writes(move |_, call| {
            if call.line == "PATCH /api/v1/namespaces/default/pods/one/status" {
                let _full = wrote.try_send(call.json()["status"].clone());
            }
        });
        Self {
            orphans: Orphans::default(),
            api,
            written,
            stops,
            dir,
            tasks: vec![runner],
        }
    }

    async fn drive(&mut self) {
        let params = NodeParams {
            orphans: self.orphans.clone(),
            ..params(self.api.client(), self.dir.path().to_owned())
        };
        self.run(async move { run(params, CancellationToken::new()).await.unwrap() });
    }

    fn run(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.push(AbortOnDropHandle::new(tokio::spawn(task)));
    }

    /// Changes the pod as another client does.
    fn edit(&self, edit: impl FnMut(&mut Value)) {
        self.api.edit("pods", "default", "one", edit);
    }

    /// Removes the pod from the store without a deletion.
    fn empty_store(&self) {
        self.api.take("pods", "default", "one");
    }

    fn vm_dir(&self) -> PathBuf {
        self.dir.path().join("vms/default_one")
    }

    async fn is_orphan(&self) {
        let listed = async {
            while self.orphans.list().is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let listed = tokio::time::timeout(DEADLINE, listed).await;
        listed.expect("the guest is listed as one without objects");
    }

    fn take_label(&self) {
        self.edit(|pod| pod["metadata"]["labels"] = json!({}));
    }

    /// A change of the pod still reaches its status.
    async fn is_kept(&mut self) {
        self.edit(|pod| pod["spec"]["containers"][0]["image"] = json!("y"));
        let has_it = |status: &Value| status["containerStatuses"][0]["image"] == "y";
        self.wrote("the new image", has_it).await;
    }

    async fn wrote(&mut self, what: &str, holds: impl Fn(&Value) -> bool) {
        let written =
            async { while !holds(&self.written.recv().await.expect("the API stands")) {} };
        let written = tokio::time::timeout(DEADLINE, written).await;
        written.unwrap_or_else(|_| panic!("{what} is not written"));
    }

    async fn is_stopped(&mut self) {
        let stopped = tokio::time::timeout(DEADLINE, self.stops.recv()).await;
        stopped.expect("in time").expect("the runner stands");
    }

    fn was_stopped(&mut self) -> bool {
        self.stops.try_recv().is_ok()
    }
}

/// Record of a pod that the store `id` has returned.
fn record(id: &str) -> PodRecord {
    PodRecord {
        namespace: "default".into(),
        name: "one".into(),
        uid: "uid-one".into(),
        ip: [127, 9, 1, 1].into(),
        grace_ms: 5000,
        store: Some(StorePosition {
            id: id.into(),
            revision: 1,
        }),
    }
}

fn params(client: kube::Client, state_dir: PathBuf) -> NodeParams {
    NodeParams {
        client,
        store_id: STORE.into(),
        orphans: Orphans::default(),
        node_name: "here".into(),
        store_dir: state_dir.join("store"),
        state_dir,
        loopback: [127, 9],
        runner_command: vec![OsString::from("false")],
        programs: None,
        accel: AccelChoice::Tcg,
        cpu_quota_percent: 100,
        walls: super::GuestWalls::Open,
        cgroup_parent: None,
        ssh_public_key: None,
        monitor_key: None,
        allocatable: Allocatable {
            cpu: MilliCpu(1000),
            memory: Bytes::gib(1),
            pods: 1,
        },
        clock: Clock::new(),
    }
}

/// Serves a runner with a running guest on its socket.
fn serve_runner(socket: PathBuf, stopped: mpsc::Sender<()>) -> AbortOnDropHandle<()> {
    let state = RunnerState {
        phase: RunnerPhase::Running,
        accel: "tcg".into(),
        incoming: None,
        ..waiting_state()
    };
    let state = move |uri: Uri| {
        let state = axum::Json(state.clone());
        let waits = uri.query().is_some();
        async move {
            if waits {
                // The state never changes.
                std::future::pending::<()>().await;
            }
            state
        }
    };
    let stop = move || {
        let _ = stopped.try_send(());
        std::future::ready(StatusCode::ACCEPTED)
    };
    let router = Router::new()
        .route("/v1/state", get(state))
        .route("/v1/stop", post(stop));
    let listener = tokio::net::UnixListener::bind(socket).unwrap();
    AbortOnDropHandle::new(tokio::spawn(async move {
        axum::serve(listener, router).await.unwrap();
    }))
}

#[tokio::test]
async fn pod_that_loses_its_label_is_not_stopped() {
    let mut rig = Rig::new().await;
    rig.drive().await;
    rig.wrote("that it runs", |status| status["phase"] == "Running")
        .await;
    rig.take_label();
    rig.is_kept().await;
    assert!(!rig.was_stopped());
    rig.edit(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-11-21T10:00:09Z"));
    rig.is_stopped().await;
}

#[tokio::test]
async fn restarted_driver_keeps_the_guest_of_a_pod_without_its_label() {
    let mut rig = Rig::new().await;
    rig.take_label();
    rig.drive().await;
    rig.wrote("that it runs", |status| status["phase"] == "Running")
        .await;
    rig.is_kept().await;
    assert!(!rig.was_stopped());
}

#[tokio::test]
async fn pod_without_the_label_is_ignored() {
    let mut rig = Rig::new().await;
    // Another pod with the name of the running one.
    rig.take_label();
    rig.edit(|pod| pod["metadata"]["uid"] = json!("uid-other"));
    rig.drive().await;
    rig.is_stopped().await;
    assert!(rig.written.try_recv().is_err());
}

/// Requirement: D5. The store was emptied, moved away, or is an older copy: its identity differs.
#[tokio::test]
async fn guest_of_another_store_is_left_alone() {
    for id in ["00000000000000bb", ""] {
        let mut rig = Rig::new().await;
        record(id).write(&rig.vm_dir()).unwrap();
        rig.empty_store();
        rig.drive().await;
        rig.is_orphan().await;
        // Longer than the driver needs to end a guest.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!rig.was_stopped(), "{id:?}");
        assert!(Paths::new(rig.vm_dir()).config().exists());
    }
}

#[tokio::test]
async fn guest_whose_pod_was_deleted_unwatched_is_stopped() {
    let mut rig = Rig::new().await;
    rig.empty_store();
    rig.drive().await;
    rig.is_stopped().await;
    assert!(rig.orphans.list().is_empty());
}

#[tokio::test]
async fn guest_whose_pod_is_bound_to_another_name_of_the_node_is_left_alone() {
    let mut rig = Rig::new().await;
    rig.edit(|pod| pod["spec"]["nodeName"] = json!("this machine's name of yesterday"));
    rig.drive().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!rig.was_stopped());
}

#[tokio::test]
async fn guest_of_another_store_is_adopted_by_an_annotated_pod() {
    let mut rig = Rig::new().await;
    record("00000000000000bb").write(&rig.vm_dir()).unwrap();
    rig.edit(|pod| {
        pod["metadata"]["uid"] = json!("uid-two");
        pod["metadata"]["annotations"] = json!({ ANNOTATION_ADOPTS: "one/uid-one" });
    });
    rig.drive().await;
    rig.wrote("that it runs", |status| status["phase"] == "Running")
        .await;
    assert!(!rig.was_stopped());
    let record = PodRecord::read(&rig.vm_dir()).unwrap();
    assert_eq!(record.uid, "uid-two");
    assert!(record.is_of_store(STORE));
    assert!(rig.orphans.list().is_empty());
}

#[tokio::test]
async fn pod_does_not_end_a_guest_of_another_store_with_its_name() {
    let mut rig = Rig::new().await;
    record("00000000000000bb").write(&rig.vm_dir()).unwrap();
    rig.edit(|pod| pod["metadata"]["uid"] = json!("uid-two"));
    rig.drive().await;
    rig.is_orphan().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!rig.was_stopped());
    assert!(rig.orphans.release("default/one"));
    rig.is_stopped().await;
}
