//! A running scheduler with its peer, and the objects tests put there.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod api;

use std::net::SocketAddr;
use std::time::Duration;

use daemon_kit::clock::Clock;
use protocol::time::Span;
use protocol::units::Resources;
use scheduler::config::Config;
use scheduler::{Callers, Leadership, Params, RunError, StateHandle};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use api::FakeApi;

/// Longest wait for any state.
const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const GIB: u64 = 1 << 30;

pub(crate) fn size(milli: u32, gib: u64) -> Resources {
    Resources::new(milli, gib * GIB)
}

pub(crate) fn node(name: &str, milli_cpu: u64, mem: u64) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"allocatable": {"cpu": format!("{milli_cpu}m"), "memory": mem.to_string()}}})
}

pub(crate) fn plain_pod(name: &str, milli_cpu: u64, mem: u64, node: Option<&str>) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": "autoscale-scheduler", "containers": [{"name": "c", "image": "i", "resources":
            {"requests": {"cpu": format!("{milli_cpu}m"), "memory": mem.to_string()}}}]}});
    if let Some(node) = node {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}

fn vm_uid(name: &str) -> String {
    format!("uid-of-{name}")
}

/// A VM of 250m to 16 CPU and 1 to 64 GiB that uses `in_use`.
pub(crate) fn vm(name: &str, in_use: Resources) -> Value {
    let mut guest = guest(in_use);
    guest["rootDisk"] = json!({"image": "x"});
    json!({"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "metadata": {"name": name, "namespace": "default",
            "uid": vm_uid(name), "labels": {"autoscaling.neon.tech/enabled": "true"}}, "spec": {"guest": guest}})
}

fn guest(in_use: Resources) -> Value {
    json!({"cpus": {"min": "250m", "max": 16, "use": in_use.cpu}, "memorySlotSize": "1Gi",
        "memorySlots": {"min": 1, "max": 64, "use": in_use.mem.0 / GIB}})
}

/// The pod of that VM on a node.
pub(crate) fn vm_pod(vm: &str, in_use: Resources, node: Option<&str>) -> Value {
    let mut pod = plain_pod(&format!("{vm}-pod"), 0, 0, node);
    pod["metadata"]["labels"] =
        json!({"autoscaling.neon.tech/enabled": "true", "vm.neon.tech/name": vm});
    pod["metadata"]["annotations"] = json!({"vm.neon.tech/resources": guest(in_use).to_string()});
    pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "name": vm, "uid": vm_uid(vm), "controller": true}]);
    pod
}

/// Annotation resources-approved of a VM, decoded.
pub(crate) fn approved(api: &FakeApi, vm: &str) -> Option<Resources> {
    let vm = api.get("virtualmachines", "default", vm)?;
    let text =
        vm.pointer("/metadata/annotations/internal.autoscaling.neon.tech~1resources-approved")?;
    serde_json::from_str(text.as_str()?).ok()
}

/// A client for the permit server. TLS is not used, but the client wants to know whose it would be.
pub(crate) fn http_client() -> reqwest::Client {
    // A second installation changes nothing.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}

/// One scheduler in this process.
pub(crate) struct Running {
    pub(crate) permits: SocketAddr,
    pub(crate) metrics: SocketAddr,
    pub(crate) extender: SocketAddr,
    pub(crate) state: StateHandle,
    pub(crate) http: reqwest::Client,
    cancel: CancellationToken,
    task: JoinHandle<Result<(), RunError>>,
}

impl Running {
    /// Starts one and waits until it is ready.
    pub(crate) async fn start(api: &FakeApi) -> Self {
        let running = Self::start_unready(api, Config::default()).await;
        running
            .until("ready", |running| running.state.ready().is_ok())
            .await;
        running
    }

    pub(crate) async fn start_unready(api: &FakeApi, config: Config) -> Self {
        Self::start_for(api, config, Callers::anyone()).await
    }

    /// Starts one that only these callers may ask.
    pub(crate) async fn start_for(api: &FakeApi, config: Config, callers: Callers) -> Self {
        Self::start_with(api, config, callers, true).await
    }

    /// Starts one beside a kube-scheduler: it places nothing by itself.
    pub(crate) async fn start_beside(api: &FakeApi) -> Self {
        Self::start_beside_with(api, Config::default()).await
    }

    pub(crate) async fn start_beside_with(api: &FakeApi, config: Config) -> Self {
        let running = Self::start_with(api, config, Callers::anyone(), false).await;
        running
            .until("ready", |running| running.state.ready().is_ok())
            .await;
        running
    }

    async fn start_with(
        api: &FakeApi,
        config: Config,
        callers: Callers,
        embedded_bind: bool,
    ) -> Self {
        let listen = || async { TcpListener::bind("127.0.0.1:0").await.expect("binds") };
        let (permit_listener, metrics_listener) = (listen().await, listen().await);
        let extender_listener = listen().await;
        let extender = extender_listener.local_addr().expect("has an address");
        let permits = permit_listener.local_addr().expect("has an address");
        let metrics = metrics_listener.local_addr().expect("has an address");
        let (state, cancel) = (StateHandle::default(), CancellationToken::new());
        let params = Params {
            config,
            client: api.client(),
            permit_listener,
            extender_listener: Some(extender_listener),
            metrics_listener: Some(metrics_listener),
            metrics_token: None,
            embedded_bind,
            count_plugged: true,
            callers,
            leadership: Leadership::Alone,
            takeover_wait: Span(0),
            clock: Clock::new(),
            state: state.clone(),
            log: None,
        };
        let task = tokio::spawn(scheduler::run(params, cancel.clone()));
        Self {
            permits,
            metrics,
            extender,
            state,
            http: http_client(),
            cancel,
            task,
        }
    }

    /// Waits for a state, with a deadline.
    pub(crate) async fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let waiting = async {
            while !holds(self) {
                tokio::task::yield_now().await;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let state = || self.state.dump();
        tokio::time::timeout(PATIENCE, waiting)
            .await
            .unwrap_or_else(|_| panic!("never {what}: {}", state()));
    }

    /// Waits until the metrics page shows every one of these; what is counted is shown after what
    /// was answered.
    pub(crate) async fn until_metrics(&self, lines: &[&str]) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let (_, page) = self.get("/metrics").await;
            let Some(missing) = lines.iter().find(|line| !page.contains(**line)) else {
                return;
            };
            assert!(
                tokio::time::Instant::now() < deadline,
                "{missing} is never shown, but:\n{page}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What a node carries by the state dump, thousandths and bytes.
    pub(crate) fn reserved(&self, node: &str) -> (u64, u64) {
        let dump = self.state.dump();
        let reserved = &dump["nodes"][node]["reserved"];
        (
            reserved["cpu"].as_u64().unwrap_or(0),
            reserved["mem"].as_u64().unwrap_or(0),
        )
    }

    /// Posts a body and gives status, content type and body of the answer.
    pub(crate) async fn post(&self, body: impl Into<reqwest::Body>) -> (u16, String, String) {
        let url = format!("http://{}/", self.permits);
        let answer = self
            .http
            .post(url)
            .body(body)
            .send()
            .await
            .expect("is answered");
        let status = answer.status().as_u16();
        let kind = answer
            .headers()
            .get("content-type")
            .and_then(|v| v.to_str().ok())
            .unwrap_or("")
            .to_owned();
        (status, kind, answer.text().await.expect("reads"))
    }

    /// Asks for a VM as its agent does.
    pub(crate) async fn ask(
        &self,
        vm: &str,
        last_permit: Option<Resources>,
        resources: Resources,
    ) -> Result<Resources, (u16, String)> {
        let (status, _, text) = self
            .post(request(vm, last_permit, resources).to_string())
            .await;
        if status != 200 {
            return Err((status, text));
        }
        let answer: Value = serde_json::from_str(&text).expect("is JSON");
        Ok(serde_json::from_value(answer["permit"].clone()).expect("is a permit"))
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let answer = self
            .http
            .get(format!("http://{}{path}", self.metrics))
            .send()
            .await
            .expect("is answered");
        (
            answer.status().as_u16(),
            answer.text().await.expect("reads"),
        )
    }

    /// Ends as a process does that is killed: nothing is finished.
    pub(crate) async fn kill(self) {
        self.task.abort();
        // It was aborted; there is nothing in the result.
        let _aborted = self.task.await;
    }

    /// Ends in order.
    pub(crate) async fn stop(self) -> Result<(), RunError> {
        self.cancel.cancel();
        self.task.await.expect("does not crash")
    }
}

pub(crate) fn request(vm: &str, last_permit: Option<Resources>, resources: Resources) -> Value {
    json!({"protoVersion": 7, "pod": {"namespace": "default", "name": format!("{vm}-pod")},
        "computeUnit": size(250, 1), "resources": resources, "lastPermit": last_permit, "metrics": {"loadAvg1M": 0.5}})
}
