//! The binary as a process: configuration errors, start and orderly end.

mod support;

use std::process::Stdio;
use std::time::Duration;

use support::api::FakeApi;
use support::{http_client, node, request, size, vm, vm_pod};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

const BINARY: &str = env!("CARGO_BIN_EXE_autoscale-scheduler");

/// A file that is gone when the test ends.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bellows-{}-{name}", std::process::id()));
        std::fs::write(&path, text).expect("writes");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It is in the directory for temporary files already.
        let _removed = std::fs::remove_file(&self.0);
    }
}

#[tokio::test]
async fn a_wrong_configuration_is_exit_64_with_every_problem() {
    let file = Scratch::new(
        "bad.json",
        r#"{"watermark": 2, "schedulerName": "", "unknown": 1}"#,
    );
    let output = Command::new(BINARY)
        .arg("--config")
        .arg(&file.0)
        .output()
        .await
        .expect("runs");
    assert_eq!(output.status.code(), Some(64));
    let text = String::from_utf8(output.stderr).expect("is text");
    for problem in [
        "watermark must be",
        "schedulerName must be",
        "unknown is not known",
        "scoring is missing",
    ] {
        assert!(text.contains(problem), "{problem} is not in {text}");
    }
    let missing = Command::new(BINARY)
        .args(["--config", "/nonexistent/x.json"])
        .output()
        .await
        .expect("runs");
    assert_eq!(missing.status.code(), Some(64));
}

#[tokio::test]
async fn the_effective_configuration_is_a_valid_file() {
    let output = Command::new(BINARY)
        .args(["--check-config", "--permits-for-anyone"])
        .output()
        .await
        .expect("runs");
    assert_eq!(output.status.code(), Some(0));
    let file = Scratch::new(
        "good.json",
        &String::from_utf8(output.stdout.clone()).expect("is text"),
    );
    let mut again = Command::new(BINARY);
    again
        .args(["--check-config", "--permits-for-anyone"])
        .arg("--config")
        .arg(&file.0);
    let again = again.output().await.expect("runs");
    assert_eq!(
        (again.status.code(), again.stdout),
        (Some(0), output.stdout)
    );
}

#[tokio::test]
async fn a_port_that_is_taken_is_exit_69() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("binds");
    let address = taken.local_addr().expect("has an address").to_string();
    let output = Command::new(BINARY)
        .args(["--permits-for-anyone", "--listen", &address])
        .output()
        .await
        .expect("runs");
    assert_eq!(output.status.code(), Some(69));
    let text = String::from_utf8(output.stderr).expect("is text");
    assert!(
        text.contains(&format!("could not listen on {address}")),
        "{text}"
    );
}

#[tokio::test]
async fn n01_it_starts_alone_answers_and_drains() {
    let api = FakeApi::start().await;
    api.put("nodes", node("n1", 4_000, 16 << 30));
    api.put("virtualmachines", vm("pg", size(250, 1)));
    api.put("pods", vm_pod("pg", size(250, 1), Some("n1")));
    let kubeconfig = Scratch::new(
        "kubeconfig",
        &format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: t\nclusters: [{{name: t, cluster: {{server: \"http://{}\"}}}}]\n\
         users: [{{name: t, user: {{}}}}]\ncontexts: [{{name: t, context: {{cluster: t, user: t}}}}]\n",
            api.address
        ),
    );
    let mut child = Command::new(BINARY)
        .args([
            "--listen",
            "127.0.0.1:0",
            "--metrics-listen",
            "127.0.0.1:0",
            "--permits-for-anyone",
        ])
        .env("KUBECONFIG", &kubeconfig.0)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("starts");
    let mut lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
    let line = lines
        .next_line()
        .await
        .expect("reads")
        .expect("says its ports");
    let ports: serde_json::Value = serde_json::from_str(&line).expect("is JSON");
    let url = format!("http://{}/", ports["permits"].as_str().expect("is text"));
    let http = http_client();
    let body = request("pg", None, size(250, 1)).to_string();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let answer = http
            .post(&url)
            .body(body.clone())
            .send()
            .await
            .expect("is answered");
        if answer.status() == 200 {
            assert_eq!(
                answer.text().await.expect("reads"),
                r#"{"permit":{"vCPUs":"250m","mem":"1Gi"}}"#
            );
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "never ready");
    }
    let pid = child.id().expect("runs").to_string();
    let killed = Command::new("kill")
        .args(["-TERM", &pid])
        .status()
        .await
        .expect("runs");
    assert!(killed.success());
    let status = tokio::time::timeout(Duration::from_secs(60), child.wait()).await;
    assert_eq!(status.expect("ends in time").expect("ends").code(), Some(0));
}
