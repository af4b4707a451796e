//! A Kubernetes API server as far as the controller can see: list, watch, get, create, patch,
//! delete of any kind, with versions, the status subresource, finalizers, graceful deletion of pods
//! and of what goes with its owner. Faults can be ordered.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::DEADLINE;

/// Plural, namespace, name.
type ObjectKey = (String, String, String);

#[derive(Clone)]
pub(crate) struct FakeApi {
    url: String,
    inner: Arc<Mutex<Inner>>,
    revision: watch::Sender<u64>,
    /// Counts orders to close every watch.
    hangups: watch::Sender<u64>,
    asked: watch::Sender<usize>,
    _server: Arc<Server>,
}

struct Server(JoinHandle<()>);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Default)]
struct Inner {
    revision: u64,
    objects: BTreeMap<ObjectKey, Value>,
    history: Vec<(u64, &'static str, ObjectKey, Value)>,
    requests: Vec<String>,
    faults: VecDeque<Fault>,
    down: bool,
}

struct Fault {
    starts: String,
    times: u32,
    code: u16,
}

struct Call {
    method: Method,
    plural: String,
    namespace: String,
    name: String,
    status: bool,
    query: BTreeMap<String, String>,
    json_patch: bool,
    body: Value,
}

impl FakeApi {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("binds");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (revision, hangups) = (watch::Sender::new(0), watch::Sender::new(0));
        let asked = watch::Sender::new(0);
        let inner = Arc::new(Mutex::new(Inner::default()));
        let state = (
            Arc::clone(&inner),
            revision.clone(),
            hangups.clone(),
            asked.clone(),
        );
        let router = Router::new().fallback(answer).with_state(state);
        let server = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Self {
            url,
            inner,
            revision,
            hangups,
            asked,
            _server: Arc::new(Server(server)),
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic under the lock")
    }

    /// Changes what is stored, as another client would.
    fn with(&self, change: impl FnOnce(&mut Inner)) {
        let mut inner = self.lock();
        change(&mut inner);
        let revision = inner.revision;
        drop(inner);
        self.revision.send_replace(revision);
    }

    pub(crate) fn create(&self, plural: &str, object: Value) {
        self.with(|inner| {
            let namespace = object["metadata"]["namespace"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            let answer = inner.create(plural, &namespace, object);
            assert!(answer.is_ok(), "{answer:?}");
        });
    }

    pub(crate) fn get(&self, plural: &str, name: &str) -> Option<Value> {
        self.lock()
            .objects
            .get(&object_key(plural, "default", name))
            .cloned()
    }

    pub(crate) fn list(&self, plural: &str) -> Vec<Value> {
        let inner = self.lock();
        inner
            .objects
            .iter()
            .filter(|(at, _)| at.0 == plural)
            .map(|(_, o)| o.clone())
            .collect()
    }

    /// Edits an object whole, status and all; a spec that changed counts as a new generation.
    pub(crate) fn edit(&self, plural: &str, name: &str, edit: impl FnOnce(&mut Value)) {
        self.with(|inner| {
            let at = object_key(plural, "default", name);
            let mut object = inner.objects.get(&at).cloned().expect("it exists");
            let before = object["spec"].clone();
            edit(&mut object);
            if object["spec"] != before {
                bump_generation(&mut object);
            }
            inner.store(&at, object);
        });
    }

    pub(crate) fn delete(&self, plural: &str, name: &str, grace: bool) {
        self.with(|inner| {
            let _ = inner.delete(&object_key(plural, "default", name), grace);
        });
    }

    /// Answers the next `times` requests whose `METHOD path` begins so with an error.
    pub(crate) fn refuse(&self, starts: &str, times: u32, code: u16) {
        self.lock().faults.push_back(Fault {
            starts: starts.into(),
            times,
            code,
        });
    }

    /// Takes every ordered fault back.
    pub(crate) fn refuse_nothing(&self) {
        self.lock().faults.clear();
    }

    /// Waits until so many requests have come.
    pub(crate) async fn wait_requests(&self, count: usize) {
        let mut asked = self.asked.subscribe();
        let wait = tokio::time::timeout(DEADLINE, asked.wait_for(|asked| *asked >= count));
        wait.await
            .expect("requests in time")
            .expect("the server stands");
    }

    /// Every request is refused and every watch closed until it is up again.
    pub(crate) fn set_down(&self, down: bool) {
        self.lock().down = down;
        if down {
            self.hangups.send_modify(|count| *count += 1);
        }
    }

    /// What was asked so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.lock().requests.clone()
    }

    /// Waits until what is stored satisfies `holds`.
    pub(crate) async fn wait<T>(&self, what: &str, mut holds: impl FnMut(&Self) -> Option<T>) -> T {
        let mut revision = self.revision.subscribe();
        let found = tokio::time::timeout(DEADLINE, async {
            loop {
                revision.borrow_and_update();
                if let Some(found) = holds(self) {
                    return found;
                }
                revision.changed().await.expect("the server stands");
            }
        });
        match found.await {
            Ok(found) => found,
            Err(_) => panic!(
                "{what} never came; VMs: {:#?}",
                self.list("virtualmachines")
            ),
        }
    }

    pub(crate) async fn wait_vm(
        &self,
        what: &str,
        name: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
        self.wait(what, |api| {
            api.get("virtualmachines", name).filter(|vm| holds(vm))
        })
        .await
    }

    pub(crate) async fn wait_phase(&self, name: &str, phase: &str) -> Value {
        self.wait_vm(phase, name, |vm| vm["status"]["phase"] == phase)
            .await
    }

    /// Waits for the pod a VM says it has.
    pub(crate) async fn wait_pod(&self, vm: &str) -> String {
        self.wait("the pod", |api| {
            let name = api.get("virtualmachines", vm)?["status"]["podName"]
                .as_str()?
                .to_owned();
            api.get("pods", &name).map(|_| name)
        })
        .await
    }

    /// The node starts a pod.
    pub(crate) fn run_pod(&self, name: &str) {
        self.edit("pods", name, |pod| {
            pod["spec"]["nodeName"] = json!("here");
            pod["status"] = json!({
                "phase": "Running",
                "podIP": "127.9.1.1",
                "containerStatuses": [{"name": "neonvm-runner", "ready": true, "image": "x", "imageID": "", "restartCount": 0}],
            });
        });
    }
}

fn object_key(plural: &str, namespace: &str, name: &str) -> ObjectKey {
    (plural.to_owned(), namespace.to_owned(), name.to_owned())
}

impl Inner {
    fn store(&mut self, at: &ObjectKey, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let deleting = object["metadata"].get("deletionTimestamp").is_some();
        let held = object["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|list| !list.is_empty());
        let graceful = at.0 == "pods" && object["spec"].get("nodeName").is_some();
        let kind = if deleting && !held && !graceful {
            self.objects.remove(at);
            "DELETED"
        } else if self.objects.insert(at.clone(), object.clone()).is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        self.history
            .push((self.revision, kind, at.clone(), object.clone()));
        if kind == "DELETED" {
            self.collect(&object["metadata"]["uid"]);
        }
        object
    }

    /// What a watch tells of a change. An object that comes to match its selector is new to it, one
    /// that no longer does is gone for it.
    fn told(&self, call: &Call, change: usize) -> Option<Value> {
        let (_, kind, object_key, object) = &self.history[change];
        let mut before = self.history[..change].iter().rev();
        let before = before.find(|(_, _, at, _)| at == object_key);
        let was_shown =
            before.is_some_and(|(_, kind, at, was)| *kind != "DELETED" && call.selects(at, was));
        let kind = match (was_shown, call.selects(object_key, object)) {
            (false, false) => return None,
            (true, false) => "DELETED",
            (false, true) if *kind == "MODIFIED" => "ADDED",
            _ => kind,
        };
        Some(json!({"type": kind, "object": object}))
    }

    /// What belonged to an object that is gone goes too.
    fn collect(&mut self, uid: &Value) {
        let is_owned = |object: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array();
            let mut owners = owners.into_iter().flatten();
            owners.any(|owner| owner["uid"] == *uid)
        };
        let all = self.objects.iter();
        let owned: Vec<ObjectKey> = all
            .filter(|(_, object)| is_owned(object))
            .map(|(at, _)| at.clone())
            .collect();
        for at in owned {
            let _ = self.delete(&at, true);
        }
    }

    fn create(
        &mut self,
        plural: &str,
        namespace: &str,
        mut object: Value,
    ) -> Result<Value, (u16, String)> {
        let name = object["metadata"]["name"]
            .as_str()
            .expect("a name")
            .to_owned();
        let at = object_key(plural, namespace, &name);
        if self.objects.contains_key(&at) {
            return Err((409, "already exists".into()));
        }
        object["metadata"]["namespace"] = json!(namespace);
        object["metadata"]["uid"] = json!(format!("uid-{}", self.revision + 1));
        object["metadata"]["generation"] = json!(1);
        object["metadata"]["creationTimestamp"] = json!("2026-11-21T10:00:00Z");
        Ok(self.store(&at, object))
    }

    fn delete(&mut self, at: &ObjectKey, grace: bool) -> Result<Value, (u16, String)> {
        let mut object = self
            .objects
            .get(at)
            .cloned()
            .ok_or((404, "not found".to_owned()))?;
        object["metadata"]["deletionTimestamp"] = json!("2026-11-21T10:00:09Z");
        if !grace {
            object["spec"]
                .as_object_mut()
                .map(|spec| spec.remove("nodeName"));
            object["metadata"]
                .as_object_mut()
                .map(|metadata| metadata.remove("finalizers"));
        }
        Ok(self.store(at, object))
    }

    fn patch(&mut self, at: &ObjectKey, call: &Call) -> Result<Value, (u16, String)> {
        let old = self
            .objects
            .get(at)
            .cloned()
            .ok_or((404, "not found".to_owned()))?;
        let version = &call.body["metadata"]["resourceVersion"];
        if !call.json_patch && version.is_string() && *version != old["metadata"]["resourceVersion"]
        {
            return Err((409, "the object has been modified".into()));
        }
        let mut new = old.clone();
        if call.json_patch {
            json_patch(&mut new, &call.body)?;
        } else {
            merge(&mut new, &call.body);
        }
        // The main resource cannot touch the status, nor the status anything else.
        if at.0 == "virtualmachines" {
            let (from, to) = if call.status {
                (&new, old.clone())
            } else {
                (&old, new.clone())
            };
            let mut mixed = to;
            mixed["status"] = from["status"].clone();
            if mixed["status"].is_null() {
                mixed
                    .as_object_mut()
                    .map(|members| members.remove("status"));
            }
            new = mixed;
        }
        if new["spec"] != old["spec"] {
            bump_generation(&mut new);
        }
        if new == old {
            return Ok(old);
        }
        Ok(self.store(at, new))
    }
}

fn bump_generation(object: &mut Value) {
    let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
    object["metadata"]["generation"] = json!(generation + 1);
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in members {
        let object = target.as_object_mut().expect("made above");
        if value.is_null() {
            object.remove(name);
        } else {
            merge(object.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

fn json_patch(object: &mut Value, ops: &Value) -> Result<(), (u16, String)> {
    for op in ops.as_array().expect("a list") {
        let path = op["path"].as_str().expect("a path");
        let (parent, key) = path.rsplit_once('/').expect("a pointer");
        let key = key.replace("~1", "/").replace("~0", "~");
        let refused = || (422, format!("{op} does not apply"));
        let parent = object
            .pointer_mut(parent)
            .and_then(Value::as_object_mut)
            .ok_or_else(refused)?;
        match op["op"].as_str().expect("an operation") {
            "add" | "replace" => {
                parent.insert(key, op["value"].clone());
            }
            "remove" => {
                parent.remove(&key).ok_or_else(refused)?;
            }
            "test" if parent.get(&key) == Some(&op["value"]) => {}
            _ => return Err(refused()),
        }
    }
    Ok(())
}

type Shared = (
    Arc<Mutex<Inner>>,
    watch::Sender<u64>,
    watch::Sender<u64>,
    watch::Sender<usize>,
);

async fn answer(
    State((inner, revision, hangups, asked)): State<Shared>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let call = parse(method, &uri, &headers, &body);
    let line = format!("{} {}", call.method, uri.path());
    let watching = call
        .query
        .get("watch")
        .is_some_and(|watch| watch == "true" || watch == "1");
    let (result, now) = {
        let mut inner = inner.lock().expect("no panic under the lock");
        inner.requests.push(line.clone());
        asked.send_replace(inner.requests.len());
        let fault = inner
            .faults
            .iter_mut()
            .find(|f| f.times > 0 && line.starts_with(&f.starts));
        let result = if let Some(fault) = fault {
            fault.times -= 1;
            Err((fault.code, "as ordered".to_owned()))
        } else if inner.down {
            Err((503, "down".to_owned()))
        } else if watching {
            Ok((200, Value::Null))
        } else {
            carry_out(&mut inner, &call)
        };
        (result, inner.revision)
    };
    match result {
        Ok(_) if watching => watch_stream(call, inner, revision.subscribe(), hangups.subscribe()),
        Ok((code, value)) => {
            revision.send_replace(now);
            (
                StatusCode::from_u16(code).expect("a code"),
                axum::Json(value),
            )
                .into_response()
        }
        Err((code, message)) => {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "reason": "Ordered", "message": message, "code": code,
            });
            (
                StatusCode::from_u16(code).expect("a code"),
                axum::Json(status),
            )
                .into_response()
        }
    }
}

fn parse(method: Method, uri: &Uri, headers: &HeaderMap, body: &Bytes) -> Call {
    let mut parts: VecDeque<&str> = uri
        .path()
        .split('/')
        .filter(|part| !part.is_empty())
        .collect();
    let group = parts.pop_front();
    parts.pop_front();
    if group == Some("apis") {
        parts.pop_front();
    }
    let mut namespace = "";
    if parts.front() == Some(&"namespaces") {
        parts.pop_front();
        namespace = parts.pop_front().expect("a namespace");
    }
    // Without one it is asked what there is.
    let plural = parts.pop_front().unwrap_or_default();
    let name = parts.pop_front().unwrap_or_default();
    let status = parts.pop_front() == Some("status");
    let query = uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| {
            let (key, value) = pair.split_once('=')?;
            Some((key.to_owned(), value.to_owned()))
        });
    let content = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    Call {
        method,
        plural: plural.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        status,
        query: query.collect(),
        json_patch: content == Some("application/json-patch+json"),
        body: serde_json::from_slice(body).unwrap_or(Value::Null),
    }
}

fn carry_out(inner: &mut Inner, call: &Call) -> Result<(u16, Value), (u16, String)> {
    let at = object_key(&call.plural, &call.namespace, &call.name);
    match call.method {
        Method::GET if call.plural.is_empty() => Ok((200, what_there_is())),
        Method::GET if call.name.is_empty() => {
            let items: Vec<&Value> = inner
                .objects
                .iter()
                .filter(|(at, o)| call.selects(at, o))
                .map(|(_, o)| o)
                .collect();
            Ok((
                200,
                json!({
                    "kind": "List", "apiVersion": "v1",
                    "metadata": {"resourceVersion": inner.revision.to_string()}, "items": items,
                }),
            ))
        }
        Method::GET => inner
            .objects
            .get(&at)
            .cloned()
            .map(|o| (200, o))
            .ok_or((404, "not found".into())),
        Method::POST => inner
            .create(&call.plural, &call.namespace, call.body.clone())
            .map(|o| (201, o)),
        Method::PATCH => inner.patch(&at, call).map(|object| (200, object)),
        Method::DELETE => {
            let wanted = &call.body["preconditions"]["uid"];
            let found = inner
                .objects
                .get(&at)
                .map(|object| object["metadata"]["uid"].clone());
            if wanted.is_string() && found.is_some_and(|found| found != *wanted) {
                return Err((409, "another incarnation".into()));
            }
            let grace = call.body["gracePeriodSeconds"].as_i64() != Some(0);
            inner.delete(&at, grace).map(|object| (200, object))
        }
        _ => Err((405, "not here".into())),
    }
}

/// As far as anybody asks: that pods are resized in place.
fn what_there_is() -> Value {
    let resize = json!({
        "name": "pods/resize", "singularName": "", "namespaced": true, "kind": "Pod", "verbs": ["patch"],
    });
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": [resize],
    })
}

impl Call {
    fn selects(&self, at: &ObjectKey, object: &Value) -> bool {
        let labelled = self.query.get("labelSelector").is_none_or(|label| {
            object["metadata"]["labels"]
                .get(label.replace("%2F", "/"))
                .is_some()
        });
        at.0 == self.plural && (self.namespace.is_empty() || at.1 == self.namespace) && labelled
    }
}

fn watch_stream(
    call: Call,
    inner: Arc<Mutex<Inner>>,
    mut revision: watch::Receiver<u64>,
    mut hangups: watch::Receiver<u64>,
) -> Response {
    let mut after: u64 = call
        .query
        .get("resourceVersion")
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    hangups.borrow_and_update();
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Bytes, std::io::Error>>(16);
    tokio::spawn(async move {
        loop {
            revision.borrow_and_update();
            let news: Vec<Value> = {
                let inner = inner.lock().expect("no panic under the lock");
                let from = after;
                after = inner.revision;
                let all = 0..inner.history.len();
                all.filter(|at| inner.history[*at].0 > from)
                    .filter_map(|at| inner.told(&call, at))
                    .collect()
            };
            for event in news {
                if sender
                    .send(Ok(Bytes::from(format!("{event}\n"))))
                    .await
                    .is_err()
                {
                    return;
                }
            }
            tokio::select! {
                changed = revision.changed() => if changed.is_err() { return },
                _ = hangups.changed() => return,
                () = sender.closed() => return,
            }
        }
    });
    let lines = futures::stream::unfold(receiver, async |mut receiver| {
        receiver.recv().await.map(|line| (line, receiver))
    });
    (
        [(header::CONTENT_TYPE, "application/json")],
        Body::from_stream(lines),
    )
        .into_response()
}
