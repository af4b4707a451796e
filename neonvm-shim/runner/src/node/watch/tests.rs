//! The node driver between an API with one pod, whose watches filter by selector, and a running
//! runner.

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use daemon_kit::clock::Clock;
use protocol::annotations::ANNOTATION_ADOPTS;
use protocol::runner::{RunnerPhase, RunnerState};
use protocol::units::{Bytes as Size, MilliCpu};
use serde_json::json;
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
    pod: watch::Sender<Value>,
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
            "metadata": {"name": "one", "namespace": "default", "uid": "uid-one", "resourceVersion": "1",
                "labels": {LABEL_VM_NAME: "vm"}},
            "spec": {"nodeName": "here", "containers": [{"name": "neonvm-runner", "image": "x"}]},
            "status": {"phase": "Pending"},
        });
        Self {
            orphans: Orphans::default(),
            pod: watch::Sender::new(pod),
            written: mpsc::channel(HEARD).1,
            stops,
            dir,
            tasks: vec![runner],
        }
    }

    async fn drive(&mut self) {
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (wrote, written) = mpsc::channel(HEARD);
        self.written = written;
        let pod = self.pod.clone();
        let api = Router::new().fallback(move |method: Method, uri: Uri, body: Bytes| {
            let answer = answer(&pod, &wrote, &method, &uri, &body);
            std::future::ready(answer)
        });
        self.run(async move { axum::serve(listener, api).await.unwrap() });
        let client = kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
        let params = NodeParams {
            orphans: self.orphans.clone(),
            ..params(client, self.dir.path().to_owned())
        };
        self.run(async move { run(params, CancellationToken::new()).await.unwrap() });
    }

    fn run(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.push(AbortOnDropHandle::new(tokio::spawn(task)));
    }

    /// Changes the pod as another client does.
    fn edit(&self, edit: impl FnOnce(&mut Value)) {
        self.pod.send_modify(|pod| {
            edit(pod);
            touch(pod);
        });
    }

    /// Removes the pod from the store without a deletion.
    fn empty_store(&self) {
        self.pod.send_replace(Value::Null);
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

fn touch(pod: &mut Value) {
    let version = pod["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse::<u64>()
        .unwrap()
        + 1;
    pod["metadata"]["resourceVersion"] = json!(version.to_string());
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
            memory: Size::gib(1),
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

fn answer(
    pod: &watch::Sender<Value>,
    wrote: &mpsc::Sender<Value>,
    method: &Method,
    uri: &Uri,
    body: &Bytes,
) -> Response {
    let query = uri.query().unwrap_or_default();
    let by_label = query.contains("labelSelector=");
    match (method, uri.path()) {
        (&Method::GET, "/api/v1/pods") if query.contains("watch=") => {
            watch_stream(pod.subscribe(), query, by_label)
        }
        (&Method::GET, "/api/v1/pods") => {
            let pod = pod.borrow().clone();
            let version = pod["metadata"]["resourceVersion"].as_str().unwrap_or("1");
            let items: Vec<Value> = [pod.clone()]
                .into_iter()
                .filter(|pod| pod["spec"]["nodeName"] == "here" && (!by_label || is_marked(pod)))
                .collect();
            axum::Json(json!({
                "kind": "PodList", "apiVersion": "v1",
                "metadata": {"resourceVersion": version}, "items": items,
            }))
            .into_response()
        }
        (&Method::GET, "/api/v1/namespaces/default/pods/one") if !pod.borrow().is_null() => {
            axum::Json(pod.borrow().clone()).into_response()
        }
        (&Method::PATCH, "/api/v1/namespaces/default/pods/one/status") => {
            let patch: Value = serde_json::from_slice(body).unwrap();
            let status = patch["status"].clone();
            pod.send_modify(|pod| {
                pod["status"] = status.clone();
                touch(pod);
            });
            let _ = wrote.try_send(status);
            axum::Json(pod.borrow().clone()).into_response()
        }
        _ => {
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "reason": "NotFound", "message": "not here", "code": 404});
            (StatusCode::NOT_FOUND, axum::Json(status)).into_response()
        }
    }
}

fn is_marked(pod: &Value) -> bool {
    pod["metadata"]["labels"].get(LABEL_VM_NAME).is_some()
}

/// Streams the changes; an object that no longer matches a selector is deleted for its watcher.
fn watch_stream(mut pod: watch::Receiver<Value>, query: &str, by_label: bool) -> Response {
    let version = pod.borrow()["metadata"]["resourceVersion"]
        .as_str()
        .map(|version| format!("resourceVersion={version}"));
    let is_here = |object: &Value| object["spec"]["nodeName"] == "here";
    let is_news = is_here(&pod.borrow())
        && !query
            .split('&')
            .any(|pair| Some(pair) == version.as_deref());
    if is_news {
        // The pod has changed since it was listed.
        pod.mark_changed();
    }
    let shown = !by_label || is_news || is_marked(&pod.borrow());
    let lines = futures::stream::unfold(
        (pod, shown),
        move |(mut pod, was_shown): (watch::Receiver<Value>, bool)| async move {
            pod.changed().await.ok()?;
            let object = pod.borrow_and_update().clone();
            let shown = !by_label || is_marked(&object);
            let line = match (was_shown, shown) {
                _ if !is_here(&object) => String::new(),
                (false, false) => String::new(),
                (_, true) => format!("{}\n", json!({"type": "MODIFIED", "object": object})),
                (true, false) => format!("{}\n", json!({"type": "DELETED", "object": object})),
            };
            Some((Ok::<_, Infallible>(line), (pod, shown)))
        },
    );
    let lines =
        lines.filter(|line| std::future::ready(line.as_ref().is_ok_and(|line| !line.is_empty())));
    Body::from_stream(lines).into_response()
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
