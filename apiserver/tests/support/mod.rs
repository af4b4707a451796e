//! A real server on a free port of loopback, and `kubectl` against it.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use apiserver::{Config, start};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Longest wait for anything in these tests.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Name of the audit log in the state directory.
pub(crate) const AUDIT_LOG: &str = "audit.log";

/// A server in this process.
pub(crate) struct Running {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) base: String,
    pub(crate) token: String,
    stop: CancellationToken,
    served: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    /// Starts a server with an empty store.
    pub(crate) fn start() -> Self {
        Self::start_in(tempfile::tempdir().expect("a directory"))
    }

    /// Starts a server on the state in `dir`. It has a runtime of its own, so that blocking tests
    /// do not starve it.
    pub(crate) fn start_in(dir: tempfile::TempDir) -> Self {
        let stop = CancellationToken::new();
        let (sender, receiver) = std::sync::mpsc::channel();
        let (state_dir, stopped) = (dir.path().to_owned(), stop.clone());
        let served = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build();
            runtime.expect("a runtime").block_on(async {
                let listen = "127.0.0.1:0".parse().expect("an address");
                let config = Config {
                    audit_log: Some(state_dir.join(AUDIT_LOG)),
                    state_dir,
                    listen,
                    names: vec!["localhost".to_owned()],
                    seen: Vec::new(),
                };
                let server = start(config).await.expect("the server starts");
                let told = (
                    server.addr,
                    server.kubeconfig_path.clone(),
                    server.token().to_owned(),
                );
                sender.send(told).expect("the test waits");
                server.run(stopped).await.expect("the server ends well");
            });
        });
        let (addr, kubeconfig, token) = receiver.recv_timeout(DEADLINE).expect("the server is up");
        let base = format!("https://{addr}");
        Self {
            dir,
            kubeconfig,
            base,
            token,
            stop,
            served: Some(served),
        }
    }

    /// Stops the server and gives the state back.
    pub(crate) fn stop(mut self) -> tempfile::TempDir {
        self.end();
        std::mem::replace(&mut self.dir, tempfile::tempdir().expect("a directory"))
    }

    fn end(&mut self) {
        self.stop.cancel();
        if let Some(served) = self.served.take() {
            served.join().expect("the server's thread ends well");
        }
    }

    /// A client that trusts the server but says nothing of itself.
    pub(crate) fn anonymous(&self) -> reqwest::Client {
        client(&self.dir.path().join("pki/ca.crt"))
    }

    /// One request with the token; the answer's code and JSON.
    pub(crate) async fn ask(
        &self,
        method: &str,
        path: &str,
        content: &str,
        body: &str,
    ) -> (u16, Value) {
        let (code, text) = self
            .ask_as(method, path, content, body, "application/json")
            .await;
        (
            code,
            serde_json::from_str(&text).unwrap_or(Value::String(text)),
        )
    }

    /// Status of the response to a body that is too large. The server responds while it is being
    /// sent and closes, so a request may end by a broken pipe; then it is sent again.
    pub(crate) async fn post_too_large(&self, path: &str, body: &str) -> u16 {
        for _ in 0..20 {
            let request = self.anonymous().post(format!("{}{path}", self.base));
            let request = request.header("content-type", "application/json");
            let sent = request.bearer_auth(&self.token).body(body.to_owned());
            if let Ok(response) = sent.send().await {
                return response.status().as_u16();
            }
        }
        panic!("20 requests had no response");
    }

    /// The same with an `Accept` header; the answer's text.
    pub(crate) async fn ask_as(
        &self,
        method: &str,
        path: &str,
        content: &str,
        body: &str,
        accept: &str,
    ) -> (u16, String) {
        let method = method.parse().expect("a method");
        let mut request = self
            .anonymous()
            .request(method, format!("{}{path}", self.base))
            .header("accept", accept)
            .bearer_auth(&self.token);
        if !content.is_empty() {
            request = request
                .header("content-type", content)
                .body(body.to_owned());
        }
        let answer = request.send().await.expect("an answer");
        (
            answer.status().as_u16(),
            answer.text().await.expect("a text"),
        )
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        self.ask("GET", path, "", "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.ask("POST", path, "application/json", &body.to_string())
            .await
    }

    pub(crate) async fn merge(&self, path: &str, body: &Value) -> (u16, Value) {
        self.ask(
            "PATCH",
            path,
            "application/merge-patch+json",
            &body.to_string(),
        )
        .await
    }

    pub(crate) async fn delete(&self, path: &str) -> (u16, Value) {
        self.ask("DELETE", path, "", "").await
    }

    /// A kube-rs client from the kubeconfig the server wrote.
    pub(crate) async fn kube(&self) -> kube::Client {
        let kubeconfig =
            kube::config::Kubeconfig::read_from(&self.kubeconfig).expect("a kubeconfig");
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .expect("a config");
        let _ = rustls::crypto::ring::default_provider().install_default();
        kube::Client::try_from(config).expect("a client")
    }

    /// `kubectl` with the kubeconfig the server wrote; its discovery cache is this server's alone.
    pub(crate) fn kubectl_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .arg("--cache-dir")
            .arg(self.dir.path().join("kubectl-cache"))
            .args(args)
            .stdin(Stdio::null());
        command
    }

    /// Runs `kubectl` to its end.
    pub(crate) fn kubectl_output(&self, args: &[&str]) -> Output {
        self.kubectl_command(args).output().expect(KUBECTL_HINT)
    }

    /// Runs `kubectl`, which must succeed; its output.
    pub(crate) fn kubectl(&self, args: &[&str]) -> String {
        let output = self.kubectl_output(args);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {args:?}: {text}{errors}");
        text
    }

    /// Runs `kubectl`, which must fail; its complaint.
    pub(crate) fn kubectl_fails(&self, args: &[&str]) -> String {
        let output = self.kubectl_output(args);
        assert!(!output.status.success(), "kubectl {args:?} succeeded");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Writes a file into the state directory and gives its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

const KUBECTL_HINT: &str = "these tests need kubectl on PATH: `apt-get install kubectl` or see kubernetes.io/docs/tasks/tools";

/// An HTTP client that trusts the authority in `ca`.
pub(crate) fn client(ca: &Path) -> reqwest::Client {
    // A second install is refused, which is fine: it is the same provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let pem = std::fs::read(ca).expect("the authority's certificate");
    let certificate = reqwest::Certificate::from_pem(&pem).expect("a certificate");
    reqwest::Client::builder()
        .tls_certs_only([certificate])
        .build()
        .expect("a client")
}

/// Asks `probe` until it answers, or fails at the deadline.
pub(crate) fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(Instant::now() < end, "no {what} within {DEADLINE:?}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

pub(crate) const VMS: &str = "/apis/vm.neon.tech/v1/namespaces/default/virtualmachines";

/// A VM that passes all checks.
pub(crate) fn vm(name: &str) -> Value {
    json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "metadata": {"name": name},
        "spec": {"guest": {
            "cpus": {"min": 0.25, "use": 1, "max": 4},
            "memorySlots": {"min": 1, "use": 2, "max": 8},
            "rootDisk": {"image": "pg:16"},
        }},
    })
}

/// The same as a file for `kubectl`.
pub(crate) const VM_YAML: &str = "\
apiVersion: vm.neon.tech/v1
kind: VirtualMachine
metadata:
  name: pg
  labels: {autoscaling.neon.tech/enabled: \"true\"}
spec:
  schedulerName: autoscale-scheduler
  guest:
    cpus: {min: 0.25, use: 1, max: 4}
    memorySlotSize: 1Gi
    memorySlots: {min: 1, use: 2, max: 8}
    rootDisk: {image: \"pg:16\"}
    ports: [{port: 5432}]
";
