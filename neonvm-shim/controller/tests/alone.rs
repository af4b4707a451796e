//! The binary by itself.

mod support;

use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use support::DEADLINE;
use support::api::FakeApi;
use test_network::http::Request;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// The program, for an API server.
fn program(dir: &Path, server: &str, args: &[String]) -> Command {
    let kubeconfig = dir.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: c, cluster: {{server: \"{server}\"}}}}]\n\
         users: [{{name: u, user: {{token: secret-token}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
    );
    std::fs::write(&kubeconfig, text).expect("writes");
    let mut command = Command::new(env!("CARGO_BIN_EXE_neonvm-controller"));
    command
        .args(args)
        .args(["--listen", "127.0.0.1:0", "--state-dir"])
        .arg(dir)
        .env("KUBECONFIG", kubeconfig)
        .env_remove("RUST_LOG")
        .env_remove("BELLOWS_LOG")
        .env_remove("VM_RUNNER_IMAGE")
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// A running controller and the address of its admin server, read from its log.
async fn start(dir: &Path, server: &str, args: &[String]) -> (Child, String) {
    let mut child = program(dir, server, args).spawn().expect("starts");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let address = timeout(DEADLINE, async {
        loop {
            let line = lines
                .next_line()
                .await
                .expect("reads")
                .expect("a line before the end");
            assert!(!line.contains("secret-token"), "a token in the log: {line}");
            let entry: Value = serde_json::from_str(&line).expect("JSON lines");
            let address = entry["address"].as_str();
            if let Some(address) = address.filter(|_| line.contains("admin server listens")) {
                return address.to_owned();
            }
        }
    });
    let address = address.await.expect("an address in time");
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, address)
}

/// The arguments of the shipped manifest, at ports that are free here.
fn shipped() -> Vec<String> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy/chart/bellows/parts/controller/deployment.yaml");
    let manifest = std::fs::read_to_string(manifest).expect("reads");
    let lines = manifest.lines().map(str::trim);
    let args: Vec<String> = lines
        .filter_map(|line| line.strip_prefix("- --"))
        .filter(|arg| !arg.starts_with("listen="))
        .map(|arg| format!("--{}", arg.replace("0.0.0.0:9443", "127.0.0.1:0")))
        .collect();
    for one in ["--true-requests=auto", "--webhook-listen=127.0.0.1:0"] {
        assert!(args.iter().any(|arg| arg == one), "{args:?}");
    }
    args
}

/// Arguments that have the overlay's addresses read.
fn with_overlay() -> Vec<String> {
    let args = [
        "--leader-elect",
        "--nad-ipam-name=overlay",
        "--nad-ipam-namespace=default",
    ];
    args.map(str::to_owned).to_vec()
}

async fn is_ready(address: &str) {
    let ready = timeout(DEADLINE, async {
        while !get(address, "/readyz").await.starts_with("HTTP/1.1 200") {
            tokio::task::yield_now().await;
        }
    });
    ready.await.expect("ready in time");
}

/// Waits until a path was asked for so often.
async fn is_asked(api: &FakeApi, line: &str, times: usize) {
    loop {
        let requests = api.lines();
        if requests.iter().filter(|asked| *asked == line).count() >= times {
            return;
        }
        api.wait_calls(requests.len() + 1).await;
    }
}

async fn get(address: &str, path: &str) -> String {
    ask(address, "GET", path, "").await
}

async fn ask(address: &str, method: &str, path: &str, body: &str) -> String {
    let line = &format!("{method} {path}");
    let request = Request {
        body,
        ..Request::new(line)
    };
    let address = address.parse().expect("an address");
    request.ask(address).await.expect("answers")
}

async fn end(mut child: Child) {
    let pid = i32::try_from(child.id().expect("it runs")).expect("a pid");
    kill(Pid::from_raw(pid), Signal::SIGTERM).expect("signals");
    let status = timeout(DEADLINE, child.wait())
        .await
        .expect("ends in time")
        .expect("waits");
    assert_eq!(status.code(), Some(0), "drained");
}

/// Requirement: N01
#[tokio::test]
async fn controller_starts_alone_and_reports_when_it_is_ready() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    let (child, address) = start(dir.path(), &api.url(), &[]).await;
    is_ready(&address).await;
    assert!(
        get(&address, "/metrics")
            .await
            .contains("vm_restarts_count 0")
    );
    for path in ["/", "/debug/state"] {
        let state = get(&address, path).await;
        for name in ["virtualmachine", "virtualmachinemigration"] {
            let entry = format!(r#""controllerName":"{name}""#);
            assert!(state.contains(&entry), "{state}");
        }
    }
    // An order, from its own machine.
    let order = ask(&address, "PUT", "/debug/log", "debug").await;
    assert!(order.starts_with("HTTP/1.1 200"), "{order}");
    end(child).await;
}

/// Requirement: N01
#[tokio::test]
async fn controller_waits_for_absent_api_server() {
    for args in [vec![], shipped(), with_overlay()] {
        let dir = tempfile::tempdir().expect("a directory");
        // Bound and closed again: nobody listens here now.
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        let server = format!("http://{}", nobody.local_addr().expect("an address"));
        drop(nobody);
        let (child, address) = start(dir.path(), &server, &args).await;
        assert!(get(&address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let ready = get(&address, "/readyz").await;
        assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
        let why = ["lists are not synced", "the webhook does not serve yet"];
        assert!(why.iter().any(|why| ready.contains(why)), "{ready}");
        end(child).await;
    }
}

/// Two requests of the start: with the shipped arguments, whether the API server resizes pods;
/// with an overlay, its address ranges.
/// Requirement: N01
#[tokio::test]
async fn start_requests_are_repeated_until_late_api_server_answers() {
    let overlay = json!({
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "overlay", "namespace": "default"},
        "spec": {"config": r#"{"ipam": {"ipRanges": [{"range": "10.100.0.0/16"}]}}"#},
    });
    let definitions = "network-attachment-definitions";
    let path = format!("/apis/k8s.cni.cncf.io/v1/namespaces/default/{definitions}/overlay");
    for (args, path) in [(shipped(), "/api/v1"), (with_overlay(), &path)] {
        let (api, dir) = (
            FakeApi::start().await,
            tempfile::tempdir().expect("a directory"),
        );
        for kind in ["Mutating", "Validating"] {
            let lower = kind.to_lowercase();
            api.create(
                &format!("{lower}webhookconfigurations"),
                json!({
                    "apiVersion": "admissionregistration.k8s.io/v1",
                    "kind": format!("{kind}WebhookConfiguration"),
                    "metadata": {"name": format!("neonvm-{lower}-webhook-configuration")},
                    "webhooks": [],
                }),
            );
        }
        api.create(definitions, overlay.clone());
        api.refuse("", u32::MAX, 500);
        let (child, address) = start(dir.path(), &api.url(), &args).await;
        is_asked(&api, &format!("GET {path}"), 3).await;
        let ready = get(&address, "/readyz").await;
        assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
        api.take_all_back();
        api.say_that_it_resizes_pods();
        is_ready(&address).await;
        end(child).await;
    }
}

#[tokio::test]
async fn permanent_refusal_ends_controller_with_error() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    api.refuse("GET /api/v1", u32::MAX, 403);
    let output = program(dir.path(), &api.url(), &shipped()).output();
    let output = timeout(DEADLINE, output)
        .await
        .expect("ends in time")
        .expect("runs");
    assert_eq!(output.status.code(), Some(69));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("whether the API server resizes pods"),
        "{text}"
    );
}

#[tokio::test]
async fn missing_configuration_ends_controller_with_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = Command::new(env!("CARGO_BIN_EXE_neonvm-controller"))
        .env("KUBECONFIG", dir.path().join("missing"))
        .output();
    let output = timeout(DEADLINE, output)
        .await
        .expect("ends in time")
        .expect("runs");
    assert_eq!(output.status.code(), Some(69));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("no API server is configured"), "{text}");
}
