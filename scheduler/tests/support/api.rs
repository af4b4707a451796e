//! A peer, not a part of ours: an in-memory Kubernetes API with just what a scheduler touches.
//! Lists, watches from a version (410 when that is too old), JSON patches with `test`, bindings,
//! status of pods, events, and faults on demand.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Kind, namespace, name.
type Key = (String, String, String);

/// What becomes of the next writes of VMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// They are refused with this status and change nothing.
    Refuse(u16),
    /// They are never answered and change nothing.
    Swallow,
    /// They are carried out and never answered.
    Apply,
}

struct Objects {
    version: u64,
    by_key: BTreeMap<Key, Value>,
    log: Vec<(u64, String, &'static str, Value)>,
    /// Watches from before this version are told that it is gone.
    floor: u64,
    fault: Fault,
    lists_hang: bool,
    /// Copies a VM's annotations to its pods at once, as its controller does.
    copies: bool,
    writes: u64,
}

/// A handle of the running peer.
#[derive(Clone)]
pub(crate) struct FakeApi {
    objects: Arc<Mutex<Objects>>,
    changed: watch::Sender<u64>,
    pub(crate) address: SocketAddr,
}

impl FakeApi {
    pub(crate) async fn start() -> Self {
        Self::serve_on(TcpListener::bind("127.0.0.1:0").await.expect("binds"))
    }

    /// Starts one where somebody listens already.
    pub(crate) fn serve_on(listener: TcpListener) -> Self {
        let address = listener.local_addr().expect("has an address");
        let objects = Objects {
            version: 100,
            by_key: BTreeMap::new(),
            log: Vec::new(),
            floor: 0,
            fault: Fault::None,
            lists_hang: false,
            copies: true,
            writes: 0,
        };
        let api = Self {
            objects: Arc::new(Mutex::new(objects)),
            changed: watch::channel(0).0,
            address,
        };
        let router = Router::new().fallback(serve).with_state(api.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        api
    }

    pub(crate) fn client(&self) -> kube::Client {
        let uri: Uri = format!("http://{}", self.address)
            .parse()
            .expect("is a URI");
        kube::Client::try_from(kube::Config::new(uri)).expect("makes a client")
    }

    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.objects
            .lock()
            .expect("nothing panics while it is held")
    }

    pub(crate) fn set_fault(&self, fault: Fault) {
        self.lock().fault = fault;
    }

    pub(crate) fn set_lists_hang(&self, hang: bool) {
        self.lock().lists_hang = hang;
        self.changed.send_modify(|count| *count += 1);
    }

    pub(crate) fn set_copies(&self, copies: bool) {
        self.lock().copies = copies;
    }

    /// Forgets the past: running watches break and must list anew.
    pub(crate) fn compact(&self) {
        let mut objects = self.lock();
        objects.version += 1;
        objects.floor = objects.version;
        objects.log.clear();
        drop(objects);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Creates or replaces an object.
    pub(crate) fn put(&self, kind: &str, mut object: Value) {
        let mut objects = self.lock();
        let key = key_of(kind, &object);
        let old = objects
            .by_key
            .get(&key)
            .map(|old| old["metadata"]["uid"].clone());
        objects.version += 1;
        // A VM says its own, which its pod names.
        let own = Some(object["metadata"]["uid"].clone());
        let own = own.filter(|uid| kind == "virtualmachines" && uid.is_string());
        object["metadata"]["uid"] = old
            .or(own)
            .unwrap_or_else(|| json!(format!("uid-{}", objects.version)));
        self.store(objects, key, object);
    }

    fn store(&self, mut objects: MutexGuard<'_, Objects>, key: Key, mut object: Value) {
        objects.version += 1;
        object["metadata"]["resourceVersion"] = json!(objects.version.to_string());
        let what = if objects.by_key.contains_key(&key) {
            "MODIFIED"
        } else {
            "ADDED"
        };
        let entry = (objects.version, key.0.clone(), what, object.clone());
        objects.log.push(entry);
        objects.by_key.insert(key, object);
        drop(objects);
        self.changed.send_modify(|count| *count += 1);
    }

    pub(crate) fn delete(&self, kind: &str, namespace: &str, name: &str) {
        let mut objects = self.lock();
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        let Some(mut object) = objects.by_key.remove(&key) else {
            return;
        };
        objects.version += 1;
        object["metadata"]["resourceVersion"] = json!(objects.version.to_string());
        let entry = (objects.version, key.0, "DELETED", object);
        objects.log.push(entry);
        drop(objects);
        self.changed.send_modify(|count| *count += 1);
    }

    pub(crate) fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        self.lock().by_key.get(&key).cloned()
    }

    pub(crate) fn all(&self, kind: &str) -> Vec<Value> {
        let objects = self.lock();
        let found = objects.by_key.iter().filter(|((of, _, _), _)| of == kind);
        found.map(|(_, object)| object.clone()).collect()
    }

    /// Successful writes of VMs so far.
    pub(crate) fn writes(&self) -> u64 {
        self.lock().writes
    }

    /// Changes an object in place, as another client would.
    pub(crate) fn edit(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) {
        let objects = self.lock();
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        let mut object = objects.by_key.get(&key).cloned().expect("is there");
        change(&mut object);
        self.store(objects, key, object);
    }

    fn patch(&self, key: Key, operations: &Value) -> Response {
        let mut objects = self.lock();
        let vm = key.0 == "virtualmachines";
        let fault = if vm { objects.fault } else { Fault::None };
        if let Fault::Refuse(code) = fault {
            return status(code, "refused");
        }
        if fault == Fault::Swallow {
            return hang();
        }
        let Some(mut object) = objects.by_key.get(&key).cloned() else {
            return status(404, "not found");
        };
        if let Err(why) = apply(&mut object, operations) {
            return status(422, &why);
        }
        objects.writes += u64::from(vm);
        let copies = objects.copies && vm;
        let name = (key.1.clone(), key.2.clone());
        self.store(objects, key.clone(), object);
        if copies {
            self.copy_annotations(&name.0, &name.1);
        }
        if fault == Fault::Apply {
            return hang();
        }
        axum::Json(self.get(&key.0, &name.0, &name.1)).into_response()
    }

    fn copy_annotations(&self, namespace: &str, vm: &str) {
        let Some(object) = self.get("virtualmachines", namespace, vm) else {
            return;
        };
        let from = object["metadata"]["annotations"]
            .as_object()
            .cloned()
            .unwrap_or_default();
        for pod in self.all("pods") {
            let owner = &pod["metadata"]["ownerReferences"][0]["name"];
            if owner == vm && pod["metadata"]["namespace"] == namespace {
                let (name, from) = (
                    pod["metadata"]["name"]
                        .as_str()
                        .expect("is text")
                        .to_owned(),
                    from.clone(),
                );
                self.edit("pods", namespace, &name, |pod| {
                    for (key, value) in from {
                        pod["metadata"]["annotations"][key] = value;
                    }
                });
            }
        }
    }

    fn bind(&self, namespace: &str, pod: &str, binding: &Value) -> Response {
        let Some(object) = self.get("pods", namespace, pod) else {
            return status(404, "not found");
        };
        if object["metadata"]["uid"] != binding["metadata"]["uid"]
            || object["spec"]["nodeName"].is_string()
        {
            return status(409, "conflict");
        }
        self.edit("pods", namespace, pod, |pod| {
            pod["spec"]["nodeName"] = binding["target"]["name"].clone()
        });
        (
            StatusCode::CREATED,
            axum::Json(json!({"kind": "Status", "status": "Success"})),
        )
            .into_response()
    }
}

fn key_of(kind: &str, object: &Value) -> Key {
    let text = |key: &str| {
        object["metadata"][key]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    (kind.to_owned(), text("namespace"), text("name"))
}

fn hang() -> Response {
    // Headers never come: the handler itself would have to wait, so the body is what never comes.
    let never = futures::stream::pending::<Result<Bytes, Infallible>>();
    Body::from_stream(never).into_response()
}

fn status(code: u16, message: &str) -> Response {
    let reason = if code == 404 { "NotFound" } else { "Invalid" };
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": reason, "message": message});
    (
        StatusCode::from_u16(code).expect("is a status"),
        axum::Json(body),
    )
        .into_response()
}

/// JSON patch: `test`, `add` and `replace`; a missing parent is an error.
fn apply(object: &mut Value, operations: &Value) -> Result<(), String> {
    for operation in operations.as_array().ok_or("not a list")? {
        let path = operation["path"].as_str().ok_or("no path")?;
        let value = operation["value"].clone();
        match operation["op"].as_str() {
            Some("test") => {
                if object.pointer(path).unwrap_or(&Value::Null) != &value {
                    return Err(format!("test of {path} failed"));
                }
            }
            Some("add" | "replace") => {
                let (parent, last) = path.rsplit_once('/').ok_or("no parent")?;
                let parent = object
                    .pointer_mut(parent)
                    .ok_or_else(|| format!("no parent of {path}"))?;
                let members = parent.as_object_mut().ok_or("parent is no object")?;
                members.insert(last.replace("~1", "/").replace("~0", "~"), value);
            }
            other => return Err(format!("no operation {other:?}")),
        }
    }
    Ok(())
}

async fn serve(State(api): State<FakeApi>, request: Request) -> Response {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let body = axum::body::to_bytes(request.into_body(), 1 << 20)
        .await
        .unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path = uri
        .path()
        .trim_start_matches("/apis/vm.neon.tech/v1/")
        .trim_start_matches("/api/v1/");
    let parts: Vec<&str> = path.split('/').collect();
    let query = uri.query().unwrap_or_default();
    let owned = |kind: &str, namespace: &str, name: &str| {
        (kind.to_owned(), namespace.to_owned(), name.to_owned())
    };
    match (method, parts.as_slice()) {
        (Method::GET, [kind]) if query.contains("watch=true") => follow(&api, kind, query),
        (Method::GET, [kind]) => list(&api, kind).await,
        (Method::GET, ["namespaces", namespace, kind, name]) => {
            match api.get(kind, namespace, name) {
                Some(object) => axum::Json(object).into_response(),
                None => status(404, "not found"),
            }
        }
        (
            Method::PATCH,
            ["namespaces", namespace, kind, name] | ["namespaces", namespace, kind, name, "status"],
        ) => api.patch(owned(kind, namespace, name), &body),
        (Method::POST, ["", "apis", "authentication.k8s.io", "v1", "tokenreviews"]) => {
            let token = body["spec"]["token"].as_str().unwrap_or_default();
            let known = api.get("tokens", "default", token);
            let status_of = |known: Value| known["status"].clone();
            let said = known.map_or(json!({"authenticated": false}), status_of);
            if said == "fails" {
                return status(500, "it fails");
            }
            let mut review = body;
            let count = api.all("tokenreviews").len();
            review["metadata"] = json!({"name": count.to_string(), "namespace": "default"});
            review["status"] = said;
            api.put("tokenreviews", review.clone());
            (StatusCode::CREATED, axum::Json(review)).into_response()
        }
        (Method::POST, ["namespaces", namespace, "pods", name, "binding"]) => {
            api.bind(namespace, name, &body)
        }
        (Method::POST, ["namespaces", namespace, "events"]) => {
            let mut event = body;
            let count = api.all("events").len();
            event["metadata"]["name"] = json!(format!("event-{count}"));
            event["metadata"]["namespace"] = json!(namespace);
            api.put("events", event.clone());
            (StatusCode::CREATED, axum::Json(event)).into_response()
        }
        (Method::POST, ["namespaces", namespace, "virtualmachinemigrations"]) => {
            let name = body["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            if api
                .get("virtualmachinemigrations", namespace, &name)
                .is_some()
            {
                return status(409, "already exists");
            }
            api.put("virtualmachinemigrations", body);
            let made = api.get("virtualmachinemigrations", namespace, &name);
            (StatusCode::CREATED, axum::Json(made)).into_response()
        }
        (Method::DELETE, ["namespaces", namespace, kind, name]) => {
            let Some(object) = api.get(kind, namespace, name) else {
                return status(404, "not found");
            };
            if body["preconditions"]["uid"] != object["metadata"]["uid"] {
                return status(409, "another uid");
            }
            api.delete(kind, namespace, name);
            axum::Json(json!({"kind": "Status", "status": "Success"})).into_response()
        }
        _ => status(404, "no such path"),
    }
}

async fn list(api: &FakeApi, kind: &str) -> Response {
    let mut changed = api.changed.subscribe();
    while api.lock().lists_hang {
        if changed.changed().await.is_err() {
            break;
        }
    }
    let items = api.all(kind);
    let version = api.lock().version.to_string();
    axum::Json(json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items}))
        .into_response()
}

fn follow(api: &FakeApi, kind: &str, query: &str) -> Response {
    let from = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("resourceVersion="));
    let from: u64 = from.and_then(|text| text.parse().ok()).unwrap_or(0);
    let start = (
        api.clone(),
        api.changed.subscribe(),
        kind.to_owned(),
        from,
        false,
    );
    let lines =
        futures::stream::unfold(start, |(api, mut changed, kind, from, ended)| async move {
            if ended {
                return None;
            }
            loop {
                let (text, next, gone) = since(&api, &kind, from);
                if !text.is_empty() {
                    return Some((
                        Ok::<_, Infallible>(Bytes::from(text)),
                        (api, changed, kind, next, gone),
                    ));
                }
                if changed.changed().await.is_err() {
                    return None;
                }
            }
        });
    Body::from_stream(lines).into_response()
}

/// Lines of a watch since a version, the version they end at, and whether it ends there.
fn since(api: &FakeApi, kind: &str, from: u64) -> (String, u64, bool) {
    let objects = api.lock();
    if from < objects.floor {
        let gone = json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "status": "Failure",
            "code": 410, "reason": "Expired", "message": "too old resource version"}});
        return (format!("{gone}\n"), from, true);
    }
    let mut text = String::new();
    let mut last = from;
    for (version, _, what, object) in objects
        .log
        .iter()
        .filter(|(v, k, _, _)| *v > from && k == kind)
    {
        text.push_str(&json!({"type": what, "object": object}).to_string());
        text.push('\n');
        last = *version;
    }
    (text, last, false)
}
