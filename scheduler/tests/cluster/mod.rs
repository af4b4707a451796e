//! Two real replicas as processes, the real API server, a proxy between them that can hold a write,
//! and agents that ask all the time and check every answer.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod agents;
pub(crate) mod proxy;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use proxy::Proxy;

/// The node's name.
pub(crate) const NODE: &str = "n1";
/// Longest wait for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// A Lease's duration here: the shortest there is.
pub(crate) const LEASE_SECONDS: &str = "4";

const SCHEDULER: &str = env!("CARGO_BIN_EXE_autoscale-scheduler");

/// The embedded API server's binary, beside the scheduler's.
fn api_server() -> PathBuf {
    let path = Path::new(SCHEDULER).with_file_name("neonvm-apiserver");
    assert!(
        path.is_file(),
        "neonvm-apiserver is not built: run `cargo build -p apiserver`"
    );
    path
}

/// A child that is killed with its owner, and its first line of output.
async fn start(command: &mut Command) -> (Child, String) {
    let mut child = command
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("starts");
    let output = child.stdout.take().expect("is piped");
    let mut lines = BufReader::new(output).lines();
    let line = lines.next_line().await.expect("reads");
    // What it says later must not fill the pipe.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, line.expect("says where it listens"))
}

/// The API server and the proxy before it.
pub(crate) struct Cluster {
    dir: tempfile::TempDir,
    pub(crate) client: kube::Client,
    pub(crate) proxy: Proxy,
    _api: Child,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        // A second installation changes nothing.
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().expect("makes a directory");
        let (api, _) = start(
            Command::new(api_server())
                .arg("--state-dir")
                .arg(dir.path())
                .args(["--listen", "127.0.0.1:0"])
                .env("RUST_LOG", "warn"),
        )
        .await;
        let kubeconfig = kube::config::Kubeconfig::read_from(dir.path().join("kubeconfig"));
        let options = kube::config::KubeConfigOptions::default();
        let config =
            kube::Config::from_custom_kubeconfig(kubeconfig.expect("is written"), &options);
        let mut config = config.await.expect("is usable");
        // Watches last longer than any time-out a client would have by default.
        config.read_timeout = None;
        let client = kube::Client::try_from(config).expect("connects");
        let proxy = Proxy::start(client.clone()).await;
        Self {
            dir,
            client,
            proxy,
            _api: api,
        }
    }

    /// A node of that many units of 250m and 1 GiB.
    pub(crate) async fn node(&self, units: u32) {
        let (cpu, mem) = (format!("{}m", 250 * units), format!("{units}Gi"));
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE},
            "status": {"allocatable": {"cpu": cpu, "memory": mem, "pods": "100"}}});
        self.create("Node", &node).await;
    }

    /// A running VM of the smallest size.
    pub(crate) async fn vm(&self, name: &str) {
        let guest = json!({"cpus": {"min": "250m", "max": 16, "use": "250m"}, "memorySlotSize": "1Gi",
            "memorySlots": {"min": 1, "max": 64, "use": 1}, "rootDisk": {"image": "x"}});
        let vm = json!({"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
            "metadata": {"name": name, "namespace": "default", "labels": {"autoscaling.neon.tech/enabled": "true"}},
            "spec": {"schedulerName": "autoscale-scheduler", "guest": guest}});
        let made = self.create("VirtualMachine", &vm).await;
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("{name}-pod"), "namespace": "default",
                "labels": {"autoscaling.neon.tech/enabled": "true", "vm.neon.tech/name": name},
                "annotations": {"vm.neon.tech/resources": guest.to_string()},
                "ownerReferences": [{"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": name,
                    "uid": made.metadata.uid, "controller": true}]},
            "spec": {"schedulerName": "autoscale-scheduler", "nodeName": NODE,
                "containers": [{"name": "runner", "image": "runner"}]},
            "status": {"phase": "Running"}});
        self.create("Pod", &pod).await;
    }

    pub(crate) fn api(&self, kind: &str) -> Api<DynamicObject> {
        let (group, namespace) = match kind {
            "VirtualMachine" | "VirtualMachineMigration" => ("vm.neon.tech", Some("default")),
            "Lease" => ("coordination.k8s.io", Some("kube-system")),
            "Node" => ("", None),
            _ => ("", Some("default")),
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    async fn create(&self, kind: &str, object: &Value) -> DynamicObject {
        let api = self.api(kind);
        let parsed = serde_json::from_value(object.clone()).expect("is an object");
        let made: DynamicObject = api
            .create(&PostParams::default(), &parsed)
            .await
            .expect("is created");
        if let Some(status) = object.get("status") {
            let name = made.metadata.name.clone().unwrap_or_default();
            let status = Patch::Merge(json!({ "status": status }));
            api.patch_status(&name, &PatchParams::default(), &status)
                .await
                .expect("has a status");
        }
        made
    }

    /// Starts a replica that takes part in the election.
    pub(crate) async fn replica(&self, name: &str) -> Replica {
        self.replica_with(name, &["--lease", "own", "--lease-seconds", LEASE_SECONDS])
            .await
    }

    pub(crate) async fn replica_with(&self, name: &str, options: &[&str]) -> Replica {
        let kubeconfig = self.dir.path().join(format!("{name}.kubeconfig"));
        std::fs::write(&kubeconfig, self.proxy.kubeconfig()).expect("writes");
        let log = self.dir.path().join(format!("{name}.log"));
        let log = std::fs::File::options().create(true).append(true).open(log);
        let (child, line) = start(
            Command::new(SCHEDULER)
                .args(["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"])
                .arg("--permits-for-anyone")
                .args(["--lease-host", name])
                .args(options)
                .env("KUBECONFIG", &kubeconfig)
                .stderr(log.expect("opens")),
        )
        .await;
        let said: Value = serde_json::from_str(&line).expect("is JSON");
        let address = |key: &str| said[key].as_str().expect("is text").to_owned();
        Replica {
            name: name.to_owned(),
            permits: format!("http://{}/", address("permits")),
            ready: format!("http://{}/readyz", address("metrics")),
            metrics: format!("http://{}/metrics", address("metrics")),
            http: reqwest::Client::new(),
            child,
        }
    }

    /// What the replicas logged, for whoever has to find out why a test failed.
    pub(crate) fn logs(&self) -> String {
        let entries = std::fs::read_dir(self.dir.path()).into_iter().flatten();
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let logs = paths.filter(|path| path.extension().is_some_and(|end| end == "log"));
        let texts = logs.map(|path| {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            format!("== {}\n{text}", path.display())
        });
        texts.collect()
    }
}

/// One process of the scheduler.
pub(crate) struct Replica {
    pub(crate) name: String,
    pub(crate) permits: String,
    ready: String,
    metrics: String,
    http: reqwest::Client,
    child: Child,
}

impl Replica {
    /// Whether it is ready, and what it says.
    pub(crate) async fn readiness(&self) -> (bool, String) {
        match self
            .http
            .get(&self.ready)
            .timeout(Duration::from_secs(5))
            .send()
            .await
        {
            Ok(answer) => {
                let is_ready = answer.status() == 200;
                (is_ready, answer.text().await.unwrap_or_default())
            }
            Err(error) => (false, error.to_string()),
        }
    }

    pub(crate) async fn until_ready(&self) {
        self.until("ready", true).await;
    }

    pub(crate) async fn until(&self, what: &str, ready: bool) {
        let end = Instant::now() + PATIENCE;
        loop {
            let (is_ready, text) = self.readiness().await;
            if is_ready == ready {
                return;
            }
            assert!(Instant::now() < end, "{} never {what}: {text}", self.name);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until it could take over without lists.
    pub(crate) async fn until_listed(&self) {
        let end = Instant::now() + PATIENCE;
        loop {
            let (_, text) = self.readiness().await;
            if text.contains("all is listed for a hand-over") {
                return;
            }
            assert!(Instant::now() < end, "{} never listed: {text}", self.name);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Lists that it has taken.
    pub(crate) async fn lists(&self) -> u64 {
        let answer = self.http.get(&self.metrics).send().await.expect("answers");
        let text = answer.text().await.expect("is text");
        let lines = text
            .lines()
            .filter(|line| line.contains(r#"method="List""#));
        let count = |line: &str| line.rsplit(' ').next()?.parse::<u64>().ok();
        lines.filter_map(count).sum()
    }

    pub(crate) async fn signal(&self, signal: &str) {
        let pid = self.child.id().expect("runs").to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().await;
        assert!(sent.expect("runs").success());
    }

    pub(crate) async fn kill(mut self) {
        self.child.kill().await.expect("is killed");
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn ended(mut self) -> Option<i32> {
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        ended.expect("ends in time").expect("ends").code()
    }
}
