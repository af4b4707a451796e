//! Lists, watches and the JSON patch, for VirtualMachines, for pods of `kube-system` and for
//! labelled namespaces.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast;

use super::{Seen, Trace};

/// What is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Vm,
    Pod,
    Namespace,
}

#[derive(Default)]
struct Store {
    version: u64,
    vms: BTreeMap<String, Value>,
    pods: BTreeMap<String, Value>,
    namespaces: BTreeMap<String, Value>,
    fail_patches: (u32, u16),
    hold_patches: bool,
    ignore_patches: bool,
    is_without_controller: bool,
    is_watch_late: bool,
    hides_namespaces: bool,
}

#[derive(Clone)]
pub struct Api {
    pub url: String,
    store: Arc<Mutex<Store>>,
    events: broadcast::Sender<(Kind, Value)>,
    trace: Trace,
    /// Objects in the longest answer to a list.
    longest_page: Arc<AtomicUsize>,
}

/// A VM of this node at one unit of 1 to 4.
pub fn vm(name: &str, ip: &str) -> Value {
    json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "metadata": {
            "name": name, "namespace": "default", "uid": format!("uid-{name}"),
            "labels": {"autoscaling.neon.tech/enabled": "true"},
        },
        "spec": {
            "schedulerName": "autoscale-scheduler",
            "guest": {
                "cpus": {"min": "250m", "max": 1, "use": "250m"},
                "memorySlotSize": "1Gi",
                "memorySlots": {"min": 1, "max": 4, "use": 1},
                "rootDisk": {"image": "x"},
            },
        },
        "status": {"phase": "Running", "node": "node-1", "podName": format!("{name}-pod"), "podIP": ip},
    })
}

impl Api {
    pub async fn start(trace: Trace) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let url = format!("http://{}", listener.local_addr().expect("has an address"));
        let (events, _) = broadcast::channel(1000);
        let api = Self {
            url,
            store: Arc::default(),
            events,
            trace,
            longest_page: Arc::default(),
        };
        let router = Router::new()
            .route("/apis/vm.neon.tech/v1/virtualmachines", get(list_vms))
            .route(
                "/apis/vm.neon.tech/v1/namespaces/default/virtualmachines/{name}",
                patch(patch_vm),
            )
            .route("/api/v1/namespaces/kube-system/pods", get(list_pods))
            .route("/api/v1/namespaces", get(list_namespaces))
            .with_state(api.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        api
    }

    fn put(&self, kind: Kind, object: Value) {
        let mut store = self.store.lock().expect("no test panics here");
        self.keep(&mut store, kind, object);
    }

    /// Keeps a state of an object and tells of it; returns it with its version.
    fn keep(&self, store: &mut Store, kind: Kind, mut object: Value) -> Value {
        store.version += 1;
        object["metadata"]["resourceVersion"] = json!(store.version.to_string());
        let name = object["metadata"]["name"]
            .as_str()
            .expect("has a name")
            .to_owned();
        let map = match kind {
            Kind::Vm => &mut store.vms,
            Kind::Pod => &mut store.pods,
            Kind::Namespace => &mut store.namespaces,
        };
        let change = if map.insert(name, object.clone()).is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        if !(store.is_watch_late && kind == Kind::Vm) {
            let event = json!({"type": change, "object": object});
            let _ = self.events.send((kind, event));
        }
        object
    }

    /// The watch of VMs tells nothing more of what happens, but for what it is told to.
    pub fn watch_is_late(&self) {
        let mut store = self.store.lock().expect("no test panics here");
        store.is_watch_late = true;
    }

    /// The watch of VMs tells of this state, as it is.
    pub fn tell_vm(&self, object: &Value) {
        let event = json!({"type": "MODIFIED", "object": object});
        let _ = self.events.send((Kind::Vm, event));
    }

    pub fn longest_page(&self) -> usize {
        self.longest_page.load(Ordering::Relaxed)
    }

    pub fn put_vm(&self, vm: Value) {
        self.put(Kind::Vm, vm);
    }

    pub fn get_vm(&self, name: &str) -> Value {
        self.store.lock().expect("no test panics here").vms[name].clone()
    }

    /// Changes a VM's object; no other change comes between. Returns what it is now.
    pub fn change_vm(&self, name: &str, change: impl FnOnce(&mut Value)) -> Value {
        let mut store = self.store.lock().expect("no test panics here");
        let mut vm = store.vms[name].clone();
        change(&mut vm);
        self.keep(&mut store, Kind::Vm, vm)
    }

    pub fn delete_vm(&self, name: &str) {
        let mut store = self.store.lock().expect("no test panics here");
        store.version += 1;
        let mut object = store.vms.remove(name).expect("there is one");
        object["metadata"]["resourceVersion"] = json!(store.version.to_string());
        let _ = self
            .events
            .send((Kind::Vm, json!({"type": "DELETED", "object": object})));
    }

    pub fn put_scheduler(&self, ip: &str) {
        self.put(
            Kind::Pod,
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": "autoscale-scheduler-1", "namespace": "kube-system",
                    "labels": {"name": "autoscale-scheduler"},
                    "creationTimestamp": "2024-01-01T00:00:00Z",
                },
                "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
            }),
        );
    }

    /// Gives a namespace a mode.
    pub fn label_namespace(&self, name: &str, mode: &str) {
        let labels = json!({"autoscaling.neon.tech/mode": mode});
        let metadata = json!({"name": name, "labels": labels});
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        self.put(Kind::Namespace, object);
    }

    /// Namespaces may not be listed.
    pub fn hide_namespaces(&self) {
        let mut store = self.store.lock().expect("no test panics here");
        store.hides_namespaces = true;
    }

    /// The next patches answer 500.
    pub fn fail_patches(&self, count: u32) {
        self.fail_patches_with(count, 500);
    }

    /// The next patches answer with this status.
    pub fn fail_patches_with(&self, count: u32, status: u16) {
        self.store.lock().expect("no test panics here").fail_patches = (count, status);
    }

    /// Patches that come are neither carried out nor answered until they no longer are held,
    /// whoever has gone by then.
    pub fn hold_patches(&self, hold: bool) {
        self.store.lock().expect("no test panics here").hold_patches = hold;
    }

    /// Patches are answered with 200 and the object as it was.
    pub fn ignore_patches(&self, ignore: bool) {
        self.store
            .lock()
            .expect("no test panics here")
            .ignore_patches = ignore;
    }

    /// Nobody carries out what the objects say: no status tells of a revision that was reached.
    pub fn without_controller(&self, is_without: bool) {
        self.store
            .lock()
            .expect("no test panics here")
            .is_without_controller = is_without;
    }

    fn holds_patches(&self) -> bool {
        self.store.lock().expect("no test panics here").hold_patches
    }

    /// Changes a VM's object, and tells all watches that they missed something: 410.
    pub fn change_vm_in_a_gap(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut vm = self.get_vm(name);
        change(&mut vm);
        let mut store = self.store.lock().expect("no test panics here");
        store.version += 1;
        vm["metadata"]["resourceVersion"] = json!(store.version.to_string());
        store.vms.insert(name.to_owned(), vm);
        let gone = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "too old resource version", "reason": "Expired", "code": 410,
        });
        for kind in [Kind::Vm, Kind::Pod, Kind::Namespace] {
            let event = json!({"type": "ERROR", "object": gone});
            let _ = self.events.send((kind, event));
        }
    }

    /// A VM's size as `(cpu, slots)`.
    pub fn size(&self, name: &str) -> (Value, Value) {
        let vm = self.get_vm(name);
        let guest = &vm["spec"]["guest"];
        (
            guest["cpus"]["use"].clone(),
            guest["memorySlots"]["use"].clone(),
        )
    }
}

type Parameters = Query<BTreeMap<String, String>>;

async fn list_vms(State(api): State<Api>, Query(query): Parameters) -> Response {
    list(&api, Kind::Vm, &query)
}

async fn list_namespaces(State(api): State<Api>, Query(query): Parameters) -> Response {
    assert_eq!(
        query.get("labelSelector").map(String::as_str),
        Some("autoscaling.neon.tech/mode")
    );
    let is_hidden = {
        let store = api.store.lock().expect("no test panics here");
        store.hides_namespaces
    };
    if is_hidden {
        return refuse(403, "namespaces is forbidden");
    }
    list(&api, Kind::Namespace, &query)
}

async fn list_pods(State(api): State<Api>, Query(query): Parameters) -> Response {
    assert_eq!(
        query.get("labelSelector").map(String::as_str),
        Some("name=autoscale-scheduler")
    );
    list(&api, Kind::Pod, &query)
}

/// The objects of one answer to a list, and where the next one goes on.
fn page<'a>(
    map: &'a BTreeMap<String, Value>,
    query: &BTreeMap<String, String>,
) -> (Vec<&'a Value>, Option<&'a String>) {
    let after = query
        .get("continue")
        .map(String::as_str)
        .unwrap_or_default();
    let limit = query.get("limit").and_then(|limit| limit.parse().ok());
    let mut left = map.iter().filter(|(name, _)| name.as_str() > after);
    let (names, items): (Vec<_>, Vec<_>) = left.by_ref().take(limit.unwrap_or(usize::MAX)).unzip();
    let is_last = left.next().is_none();
    (items, names.last().copied().filter(|_| !is_last))
}

fn list(api: &Api, kind: Kind, query: &BTreeMap<String, String>) -> Response {
    // Subscribed under the lock, so nothing falls between the list and the events.
    let store = api.store.lock().expect("no test panics here");
    let (map, version, list_kind) = match kind {
        Kind::Vm => (&store.vms, "vm.neon.tech/v1", "VirtualMachineList"),
        Kind::Pod => (&store.pods, "v1", "PodList"),
        Kind::Namespace => (&store.namespaces, "v1", "NamespaceList"),
    };
    if query.get("watch").is_none_or(|watch| watch == "false") {
        let (items, next) = page(map, query);
        api.longest_page.fetch_max(items.len(), Ordering::Relaxed);
        let metadata = json!({"resourceVersion": store.version.to_string(), "continue": next});
        return axum::Json(json!({
            "apiVersion": version, "kind": list_kind, "metadata": metadata, "items": items,
        }))
        .into_response();
    }
    let from: u64 = query
        .get("resourceVersion")
        .and_then(|v| v.parse().ok())
        .unwrap_or(0);
    let receiver = api.events.subscribe();
    let version = |object: &Value| -> u64 {
        object["metadata"]["resourceVersion"]
            .as_str()
            .and_then(|v| v.parse().ok())
            .unwrap_or(0)
    };
    let missed: Vec<Value> = map
        .values()
        .filter(|object| version(object) > from)
        .map(|object| json!({"type": "MODIFIED", "object": object}))
        .collect();
    let later = futures::stream::unfold(receiver, move |mut receiver| async move {
        loop {
            let (of, event) = receiver.recv().await.ok()?;
            if of == kind {
                return Some((event, receiver));
            }
        }
    });
    let lines = futures::stream::iter(missed)
        .chain(later)
        .map(|event| Ok::<_, std::convert::Infallible>(format!("{event}\n")));
    Response::builder()
        .header("content-type", "application/json")
        .body(Body::from_stream(lines))
        .expect("is a response")
}

/// Applies the three replacements, then does what the controller does: copies the revision to the
/// status.
async fn patch_vm(
    State(api): State<Api>,
    Path(name): Path<String>,
    Query(query): Parameters,
    body: Bytes,
) -> Response {
    if query.get("fieldManager").map(String::as_str) != Some("autoscaler-agent") {
        return refuse(422, "admission would hold a shrink: not the agent's name");
    }
    let operations: Vec<Value> = match serde_json::from_slice(&body) {
        Ok(operations) => operations,
        Err(error) => return refuse(400, &error.to_string()),
    };
    {
        let mut store = api.store.lock().expect("no test panics here");
        let (left, status) = store.fail_patches;
        if left > 0 {
            store.fail_patches.0 -= 1;
            return refuse(status, "told to fail");
        }
        if store.ignore_patches {
            api.trace.push(Seen::PatchIgnored);
            return axum::Json(store.vms[&name].clone()).into_response();
        }
    }
    if api.holds_patches() {
        api.trace.push(Seen::PatchHeld);
        let held = tokio::spawn(async move {
            while api.holds_patches() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            carry_out(&api, &name, &operations)
        });
        return held.await.expect("no test panics here");
    }
    carry_out(&api, &name, &operations)
}

fn refuse(code: u16, text: &str) -> Response {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": text, "code": code, "reason": "Test", "metadata": {}});
    (
        StatusCode::from_u16(code).expect("is a status"),
        axum::Json(status),
    )
        .into_response()
}

fn carry_out(api: &Api, name: &str, operations: &[Value]) -> Response {
    let paths: Vec<&str> = operations
        .iter()
        .filter_map(|op| op["path"].as_str())
        .collect();
    if paths
        != [
            "/spec/guest/cpus/use",
            "/spec/guest/memorySlots/use",
            "/spec/targetRevision",
        ]
        || operations.iter().any(|op| op["op"] != "replace")
    {
        return refuse(422, &format!("not the agent's patch: {operations:?}"));
    }
    let has_controller = {
        let store = api.store.lock().expect("no test panics here");
        !store.is_without_controller
    };
    let cpu = protocol::units::MilliCpu::from_json(&operations[0]["value"]);
    let cpu = cpu.expect("an amount of CPU");
    if json!(cpu) != operations[0]["value"] {
        return refuse(422, &format!("not as objects keep it: {operations:?}"));
    }
    let vm = api.change_vm(name, |vm| {
        vm["spec"]["guest"]["cpus"]["use"] = operations[0]["value"].clone();
        vm["spec"]["guest"]["memorySlots"]["use"] = operations[1]["value"].clone();
        vm["spec"]["targetRevision"] = operations[2]["value"].clone();
        if has_controller {
            vm["status"]["currentRevision"] = operations[2]["value"].clone();
        }
        api.trace.push(Seen::Patch(
            cpu.to_quantity_string(),
            operations[1]["value"].as_u64().expect("slots are a number"),
            operations[2]["value"]["revision"]["value"]
                .as_i64()
                .expect("has a revision"),
        ));
    });
    axum::Json(vm).into_response()
}
