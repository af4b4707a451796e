//! The binary by itself.

mod support;

use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use support::DEADLINE;
use support::api::FakeApi;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// A running controller and the address of its admin server, read from its log.
async fn start(dir: &Path, server: &str) -> (Child, String) {
    let kubeconfig = dir.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: c, cluster: {{server: \"{server}\"}}}}]\n\
         users: [{{name: u, user: {{token: secret-token}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
    );
    std::fs::write(&kubeconfig, text).expect("writes");
    let mut child = Command::new(env!("CARGO_BIN_EXE_neonvm-controller"))
        .args(["--listen", "127.0.0.1:0", "--state-dir"])
        .arg(dir)
        .env("KUBECONFIG", kubeconfig)
        .env_remove("RUST_LOG")
        .env_remove("BELLOWS_LOG")
        .env_remove("VM_RUNNER_IMAGE")
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("starts");
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
            if let Some(address) = entry["address"].as_str() {
                return address.to_owned();
            }
        }
    });
    let address = address.await.expect("an address in time");
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, address)
}

async fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("writes");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("reads");
    text
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

#[tokio::test]
async fn n01_it_starts_alone_and_says_when_it_is_ready() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    let (child, address) = start(dir.path(), api.url()).await;
    timeout(DEADLINE, async {
        while !get(&address, "/readyz").await.starts_with("HTTP/1.1 200") {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("ready in time");
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
    end(child).await;
}

#[tokio::test]
async fn n01_it_waits_for_an_api_server_that_is_not_there() {
    let dir = tempfile::tempdir().expect("a directory");
    // Bound and closed again: nobody listens here now.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    let server = format!("http://{}", nobody.local_addr().expect("an address"));
    drop(nobody);
    let (child, address) = start(dir.path(), &server).await;
    assert!(get(&address, "/healthz").await.starts_with("HTTP/1.1 200"));
    let ready = get(&address, "/readyz").await;
    assert!(
        ready.starts_with("HTTP/1.1 503") && ready.contains("lists are not synced"),
        "{ready}"
    );
    end(child).await;
}

#[tokio::test]
async fn without_a_configuration_it_says_so_and_ends() {
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
