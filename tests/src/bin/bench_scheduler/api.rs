//! The part of the API that a scheduler needs for permits: generated lists of any length, watches
//! that may report writes, and conditional writes of a VM's annotations. Requests for Leases are
//! forwarded to a real API server, if there is one.
//!
//! It is cheap, because it shares its processor with the clients and its time is a part of each
//! figure. So it does not use `test-api`: the embedded API server checks each write against the
//! schema, notes field owners and commits, which would be most of what is measured.

use std::borrow::Cow;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::cores::stay_on;

/// Number of VMs per node.
const VMS_PER_NODE: usize = 100;
const UNIT: &str = r#"{"vCPUs":"250m","mem":"1Gi"}"#;
/// The same size as a JSON text.
const UNIT_TEXT: &str = r#""{\"vCPUs\":\"250m\",\"mem\":\"1Gi\"}""#;
const GUEST: &str = r#"{"cpus":{"min":"250m","max":4,"use":"250m"},"memorySlotSize":"1Gi","memorySlots":{"min":1,"max":16,"use":1},"rootDisk":{"image":"x"}}"#;

/// Version and annotations of one VM, the latter as they stand in its JSON.
struct Vm {
    version: u64,
    requested: String,
    approved: String,
}

struct Objects {
    vms: Vec<Mutex<Vm>>,
    /// The version of the last write; the first objects have 1.
    version: watch::Sender<u64>,
    /// Watch events of all writes, ordered by version. `None` if watches are silent.
    told: Option<Mutex<Vec<Bytes>>>,
    /// Client of the API server with the Leases.
    leases: Option<kube::Client>,
}

/// Properties of the simulated API.
#[derive(Default)]
pub(super) struct Played {
    /// Running VMs, each with its pod.
    pub(super) count: usize,
    /// Whether watches report each write, as a real API does.
    pub(super) tells: bool,
    /// The real API server that Leases are handed on to.
    pub(super) leases: Option<kube::Client>,
    /// The processor of its thread; any where there is none.
    pub(super) core: Option<usize>,
}

/// The simulated API, running.
pub(super) struct PlayedApi {
    address: SocketAddr,
    /// File with the CPU time of its thread.
    usage: PathBuf,
}

type Broken = Box<dyn std::error::Error + Send + Sync>;
type ApiResponse = Response<UnsyncBoxBody<Bytes, Broken>>;

impl PlayedApi {
    /// Serves the VMs with their pods, on one thread of its own until the process ends.
    pub(super) fn start(played: Played) -> Result<Self> {
        let Played {
            count,
            tells,
            leases,
            core,
        } = played;
        let first = || Vm {
            version: 1,
            requested: json!(UNIT).to_string(),
            approved: json!(UNIT).to_string(),
        };
        let vms = (0..count).map(|_| Mutex::new(first())).collect();
        let objects = Arc::new(Objects {
            vms,
            version: watch::channel(1).0,
            told: tells.then(Mutex::default),
            leases,
        });
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (told, usage) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .name("played-api".into())
            .spawn(move || {
                core.map_or(Ok(()), stay_on)?;
                told.send(std::fs::read_link("/proc/thread-self")?)?;
                runtime.block_on(accept(listener, objects))
            })?;
        let usage = Path::new("/proc").join(usage.recv()?).join("schedstat");
        Ok(Self { address, usage })
    }

    /// Processor time its thread used.
    pub(super) fn cpu(&self) -> Result<Duration> {
        let text = std::fs::read_to_string(&self.usage)?;
        let nanos = text.split_whitespace().next();
        Ok(Duration::from_nanos(
            nanos.context("empty schedstat")?.parse()?,
        ))
    }

    /// Kubeconfig for the scheduler.
    pub(super) fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: t\nclusters: [{{name: t, cluster: {{server: \"http://{}\"}}}}]\n\
             users: [{{name: t, user: {{}}}}]\ncontexts: [{{name: t, context: {{cluster: t, user: t}}}}]\n",
            self.address
        )
    }
}

async fn accept(listener: std::net::TcpListener, objects: Arc<Objects>) -> Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        let objects = Arc::clone(&objects);
        // Answers are small and awaited.
        let _set = stream.set_nodelay(true);
        tokio::spawn(async move {
            let service = service_fn(|request| serve(Arc::clone(&objects), request));
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            // The scheduler has gone; so has this.
            let _ended = connection.await;
        });
    }
}

async fn serve(
    objects: Arc<Objects>,
    request: Request<Incoming>,
) -> Result<ApiResponse, Infallible> {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    if path.starts_with("/apis/coordination.k8s.io/") {
        return Ok(objects.hand_on(request).await);
    }
    if *request.method() == Method::PATCH {
        let body = request.into_body().collect().await;
        let body = body
            .map(http_body_util::Collected::to_bytes)
            .unwrap_or_default();
        return Ok(objects.patch(&path, &body));
    }
    if query.contains("watch=true") {
        let from = option(&query, "resourceVersion").unwrap_or(1);
        return Ok(objects.watch(&path, from.max(1)));
    }
    let kind = path.rsplit('/').next().unwrap_or_default();
    Ok(objects.list(kind, &query))
}

impl Objects {
    /// Has a call carried out elsewhere.
    async fn hand_on(&self, request: Request<Incoming>) -> ApiResponse {
        let Some(client) = &self.leases else {
            return plain(StatusCode::NOT_FOUND, b"{}".to_vec());
        };
        let (head, body) = request.into_parts();
        let body = body.collect().await;
        let body = body.map(http_body_util::Collected::to_bytes);
        let mut onward = Request::new(kube::client::Body::from(body.unwrap_or_default().to_vec()));
        *onward.method_mut() = head.method;
        *onward.uri_mut() = head.uri;
        for name in [hyper::header::CONTENT_TYPE, hyper::header::ACCEPT] {
            if let Some(value) = head.headers.get(&name) {
                onward.headers_mut().insert(name, value.clone());
            }
        }
        match client.send(onward).await {
            Ok(answer) => {
                let (head, body) = answer.into_parts();
                let mut answer = Response::new(body.map_err(Into::into).boxed_unsync());
                *answer.status_mut() = head.status;
                answer
            }
            Err(_) => plain(StatusCode::BAD_GATEWAY, b"{}".to_vec()),
        }
    }

    /// Streams all writes after a version.
    fn watch(self: Arc<Self>, path: &str, from: usize) -> ApiResponse {
        if self.told.is_none() || !path.ends_with("/virtualmachines") {
            // The watch stays open without events.
            let silence = futures::stream::pending::<Result<Frame<Bytes>, Broken>>();
            return Response::new(StreamBody::new(silence).boxed_unsync());
        }
        let versions = self.version.subscribe();
        let changes = futures::stream::unfold((versions, from), move |(mut versions, from)| {
            let objects = Arc::clone(&self);
            async move {
                let is_newer = |version: &u64| usize::try_from(*version).is_ok_and(|at| at > from);
                versions.wait_for(is_newer).await.ok()?;
                let told = objects.told.as_ref()?.lock();
                // Version 2 is the first with an event.
                let text = told
                    .unwrap_or_else(PoisonError::into_inner)
                    .get(from - 1)?
                    .clone();
                Some((Ok::<_, Broken>(Frame::data(text)), (versions, from + 1)))
            }
        });
        Response::new(StreamBody::new(changes).boxed_unsync())
    }

    fn vm(&self, n: usize) -> Option<MutexGuard<'_, Vm>> {
        Some(
            self.vms
                .get(n)?
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    fn list(&self, kind: &str, query: &str) -> ApiResponse {
        // A page may be newer than its list, which has the version of its first page. Writes in
        // between are reported again.
        let token = text_option(query, "continue").and_then(|token| token.split_once('.'));
        let token =
            token.and_then(|(from, version)| Some((from.parse().ok()?, version.parse().ok()?)));
        let (from, version) = token.unwrap_or((0, *self.version.borrow()));
        let nodes = self.vms.len().div_ceil(VMS_PER_NODE);
        let (api, name, total) = match kind {
            "nodes" => ("v1", "Node", nodes),
            "pods" => ("v1", "Pod", self.vms.len()),
            "virtualmachines" => ("vm.neon.tech/v1", "VirtualMachine", self.vms.len()),
            _ => return plain(StatusCode::NOT_FOUND, b"{}".to_vec()),
        };
        let to = option(query, "limit").map_or(total, |limit| (from + limit).min(total));
        let items = (from..to).filter_map(|n| match name {
            "Node" => Some(node(n)),
            "Pod" => Some(pod(n)),
            _ => Some(vm_text(n, &*self.vm(n)?)),
        });
        let items = items.collect::<Vec<_>>().join(",");
        let more = if to < total {
            format!(r#","continue":"{to}.{version}""#)
        } else {
            String::new()
        };
        let text = format!(
            r#"{{"apiVersion":"{api}","kind":"{name}List","metadata":{{"resourceVersion":"{version}"{more}}},"items":[{items}]}}"#
        );
        plain(StatusCode::OK, text.into_bytes())
    }

    /// A JSON patch as the scheduler sends it: a test of the version, then annotations.
    fn patch(&self, path: &str, body: &[u8]) -> ApiResponse {
        let index = path
            .rsplit("/vm-")
            .next()
            .and_then(|n| n.parse::<usize>().ok());
        let found = index.and_then(|n| Some((n, self.vm(n)?)));
        let (Some((n, mut vm)), Ok(operations)) =
            (found, serde_json::from_slice::<Vec<Operation<'_>>>(body))
        else {
            return plain(StatusCode::NOT_FOUND, b"{}".to_vec());
        };
        for operation in operations {
            let key = operation.path.rsplit("~1").next().unwrap_or_default();
            match (&*operation.op, key) {
                ("test", "/metadata/resourceVersion")
                    if operation.value != json!(vm.version.to_string()) =>
                {
                    let status = json!({"kind": "Status", "status": "Failure", "code": 422, "message": "test failed", "reason": "Invalid"});
                    return plain(
                        StatusCode::UNPROCESSABLE_ENTITY,
                        status.to_string().into_bytes(),
                    );
                }
                ("add", "resources-requested") => vm.requested = operation.value.to_string(),
                ("add", "resources-approved") => vm.approved = operation.value.to_string(),
                _ => {}
            }
        }
        vm.version = *self.version.borrow() + 1;
        let text = vm_text(n, &vm);
        if let Some(told) = &self.told {
            let change = format!("{{\"type\":\"MODIFIED\",\"object\":{text}}}\n");
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            told.push(Bytes::from(change));
        }
        self.version.send_replace(vm.version);
        plain(StatusCode::OK, text.into_bytes())
    }
}

fn text_option<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let mut found = pairs.filter(|(key, _)| *key == name);
    found.next().map(|(_, value)| value)
}

/// A number of a query.
fn option(query: &str, name: &str) -> Option<usize> {
    text_option(query, name)?.parse().ok()
}

#[derive(Deserialize)]
struct Operation<'a> {
    #[serde(borrow)]
    op: Cow<'a, str>,
    #[serde(borrow)]
    path: Cow<'a, str>,
    #[serde(default)]
    value: Value,
}

fn plain(status: StatusCode, text: Vec<u8>) -> ApiResponse {
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {});
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = status;
    let json = hyper::header::HeaderValue::from_static("application/json");
    answer
        .headers_mut()
        .insert(hyper::header::CONTENT_TYPE, json);
    answer
}

fn node(n: usize) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"n-{n}","uid":"n{n}","resourceVersion":"1"}},"status":{{"allocatable":{{"cpu":"400","memory":"1600Gi"}}}}}}"#
    )
}

/// Name of VM `n`.
pub(super) fn name(n: usize) -> String {
    format!("vm-{n}")
}

fn pod(n: usize) -> String {
    let (node, name, guest) = (n / VMS_PER_NODE, name(n), json!(GUEST));
    format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}-pod","namespace":"default","uid":"p{n}","resourceVersion":"1","labels":{{"autoscaling.neon.tech/enabled":"true","vm.neon.tech/name":"{name}"}},"annotations":{{"vm.neon.tech/resources":{guest}}},"ownerReferences":[{{"apiVersion":"vm.neon.tech/v1","kind":"VirtualMachine","name":"{name}","uid":"v{n}","controller":true}}]}},"spec":{{"schedulerName":"autoscale-scheduler","nodeName":"n-{node}","containers":[{{"name":"runner","image":"runner"}}]}},"status":{{"phase":"Running"}}}}"#
    )
}

fn vm_text(n: usize, vm: &Vm) -> String {
    let (name, unit) = (name(n), UNIT_TEXT);
    let (requested, approved) = (&vm.requested, &vm.approved);
    format!(
        r#"{{"apiVersion":"vm.neon.tech/v1","kind":"VirtualMachine","metadata":{{"name":"{name}","namespace":"default","uid":"v{n}","resourceVersion":"{version}","labels":{{"autoscaling.neon.tech/enabled":"true"}},"annotations":{{"autoscaling.neon.tech/scaling-unit":{unit},"internal.autoscaling.neon.tech/resources-requested":{requested},"internal.autoscaling.neon.tech/resources-approved":{approved}}}}},"spec":{{"schedulerName":"autoscale-scheduler","guest":{GUEST}}},"status":{{"phase":"Running","podName":"{name}-pod","cpus":"250m","memorySize":"1Gi"}}}}"#,
        version = vm.version,
    )
}
