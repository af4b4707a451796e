//! The API as far as a scheduler needs it for permits: lists of any length, made as they are read, watches that tell nothing,
//! and conditional writes of a VM's annotations. As cheap as can be, because it shares the processors with what is measured.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// VMs on a node.
const VMS_PER_NODE: usize = 100;
const UNIT: &str = r#"{"vCPUs":"250m","mem":"1Gi"}"#;
const GUEST: &str = r#"{"cpus":{"min":"250m","max":4,"use":"250m"},"memorySlotSize":"1Gi","memorySlots":{"min":1,"max":16,"use":1},"rootDisk":{"image":"x"}}"#;

/// Version and annotations of one VM.
struct Vm {
    version: u64,
    requested: String,
    approved: String,
}

struct Objects {
    vms: Vec<Mutex<Vm>>,
}

/// The running API.
pub(super) struct PlayedApi {
    address: SocketAddr,
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

impl PlayedApi {
    /// Serves `count` running VMs with their pods.
    pub(super) async fn start(count: usize) -> Result<Self> {
        let first = || Vm {
            version: 1,
            requested: UNIT.into(),
            approved: UNIT.into(),
        };
        let vms = (0..count).map(|_| Mutex::new(first())).collect();
        let objects = Arc::new(Objects { vms });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
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
        });
        Ok(Self { address })
    }

    /// How a scheduler finds it.
    pub(super) fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: t\nclusters: [{{name: t, cluster: {{server: \"http://{}\"}}}}]\n\
             users: [{{name: t, user: {{}}}}]\ncontexts: [{{name: t, context: {{cluster: t, user: t}}}}]\n",
            self.address
        )
    }
}

async fn serve(objects: Arc<Objects>, request: Request<Incoming>) -> Result<Answer, Infallible> {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    if *request.method() == Method::PATCH {
        let body = request.into_body().collect().await;
        let body = body
            .map(http_body_util::Collected::to_bytes)
            .unwrap_or_default();
        return Ok(objects.patch(&path, &body));
    }
    if query.contains("watch=true") {
        // Open, and silent.
        let silence = futures::stream::pending::<Result<Frame<Bytes>, Infallible>>();
        return Ok(Response::new(StreamBody::new(silence).boxed()));
    }
    let kind = path.rsplit('/').next().unwrap_or_default();
    Ok(objects.list(kind, &query))
}

impl Objects {
    fn vm(&self, n: usize) -> Option<MutexGuard<'_, Vm>> {
        Some(
            self.vms
                .get(n)?
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    fn list(&self, kind: &str, query: &str) -> Answer {
        let option = |name: &str| {
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let mut found = pairs.filter(|(key, _)| *key == name);
            found
                .next()
                .and_then(|(_, value)| value.parse::<usize>().ok())
        };
        let from = option("continue").unwrap_or(0);
        let nodes = self.vms.len().div_ceil(VMS_PER_NODE);
        let (api, name, total) = match kind {
            "nodes" => ("v1", "Node", nodes),
            "pods" => ("v1", "Pod", self.vms.len()),
            "virtualmachines" => ("vm.neon.tech/v1", "VirtualMachine", self.vms.len()),
            _ => return plain(StatusCode::NOT_FOUND, b"{}".to_vec()),
        };
        let to = option("limit").map_or(total, |limit| (from + limit).min(total));
        let items = (from..to).filter_map(|n| match name {
            "Node" => Some(node(n)),
            "Pod" => Some(pod(n)),
            _ => Some(vm_text(n, &*self.vm(n)?)),
        });
        let items = items.collect::<Vec<_>>().join(",");
        let more = if to < total {
            format!(r#","continue":"{to}""#)
        } else {
            String::new()
        };
        let text = format!(
            r#"{{"apiVersion":"{api}","kind":"{name}List","metadata":{{"resourceVersion":"1"{more}}},"items":[{items}]}}"#
        );
        plain(StatusCode::OK, text.into_bytes())
    }

    /// A JSON patch as the scheduler sends it: a test of the version, then annotations.
    fn patch(&self, path: &str, body: &[u8]) -> Answer {
        let index = path
            .rsplit("/vm-")
            .next()
            .and_then(|n| n.parse::<usize>().ok());
        let found = index.and_then(|n| Some((n, self.vm(n)?)));
        let (Some((n, mut vm)), Ok(operations)) =
            (found, serde_json::from_slice::<Vec<Operation>>(body))
        else {
            return plain(StatusCode::NOT_FOUND, b"{}".to_vec());
        };
        for operation in operations {
            let key = operation.path.rsplit("~1").next().unwrap_or_default();
            match (operation.op.as_str(), key) {
                ("test", "/metadata/resourceVersion")
                    if operation.value != json!(vm.version.to_string()) =>
                {
                    let status = json!({"kind": "Status", "status": "Failure", "code": 422, "message": "test failed", "reason": "Invalid"});
                    return plain(
                        StatusCode::UNPROCESSABLE_ENTITY,
                        status.to_string().into_bytes(),
                    );
                }
                ("add", "resources-requested") => vm.requested = text(operation.value),
                ("add", "resources-approved") => vm.approved = text(operation.value),
                _ => {}
            }
        }
        vm.version += 1;
        plain(StatusCode::OK, vm_text(n, &vm).into_bytes())
    }
}

#[derive(Deserialize)]
struct Operation {
    op: String,
    path: String,
    #[serde(default)]
    value: Value,
}

fn text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

fn plain(status: StatusCode, text: Vec<u8>) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(text)).boxed());
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
    let (name, unit) = (name(n), json!(UNIT));
    let (requested, approved) = (json!(vm.requested), json!(vm.approved));
    format!(
        r#"{{"apiVersion":"vm.neon.tech/v1","kind":"VirtualMachine","metadata":{{"name":"{name}","namespace":"default","uid":"v{n}","resourceVersion":"{version}","labels":{{"autoscaling.neon.tech/enabled":"true"}},"annotations":{{"autoscaling.neon.tech/scaling-unit":{unit},"internal.autoscaling.neon.tech/resources-requested":{requested},"internal.autoscaling.neon.tech/resources-approved":{approved}}}}},"spec":{{"schedulerName":"autoscale-scheduler","guest":{GUEST}}},"status":{{"phase":"Running","podName":"{name}-pod","cpus":"250m","memorySize":"1Gi"}}}}"#,
        version = vm.version,
    )
}
