//! The binary as a process: configuration errors, start and orderly end.

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use support::api::FakeApi;
use support::{http_client, node, request, size, vm, vm_pod};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpSocket;
use tokio::process::{Child, Command};

const BINARY: &str = env!("CARGO_BIN_EXE_autoscale-scheduler");
/// Longest wait for any state. Lists that failed are asked for again after some seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// What VM `pg` may have at first contact.
const PERMIT: &str = r#"{"permit":{"vCPUs":"250m","mem":"1Gi"}}"#;

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

/// The program, for an API server at this address.
fn program(kubeconfig: &Scratch) -> Command {
    let mut command = Command::new(BINARY);
    command
        .args([
            "--listen",
            "127.0.0.1:0",
            "--metrics-listen",
            "127.0.0.1:0",
            "--permits-for-anyone",
        ])
        .env("KUBECONFIG", &kubeconfig.0)
        .env_remove("BELLOWS_LOG")
        .env_remove("RUST_LOG")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    command
}

fn kubeconfig(name: &str, api: SocketAddr) -> Scratch {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: t\n\
         clusters: [{{name: t, cluster: {{server: \"http://{api}\"}}}}]\n\
         users: [{{name: t, user: {{}}}}]\n\
         contexts: [{{name: t, context: {{cluster: t, user: t}}}}]\n"
    );
    Scratch::new(name, &text)
}

/// URLs of the permit server and of the admin server, from the first line of a program.
async fn urls(child: &mut Child) -> [String; 2] {
    let mut lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
    let line = lines
        .next_line()
        .await
        .expect("reads")
        .expect("says its ports");
    let ports: serde_json::Value = serde_json::from_str(&line).expect("is JSON");
    ["permits", "metrics"].map(|name| format!("http://{}", ports[name].as_str().expect("is text")))
}

/// Asks for the first permit of VM `pg`; status and body.
async fn ask(permits: &str) -> (u16, String) {
    let body = request("pg", None, size(250, 1)).to_string();
    let answer = http_client().post(permits).body(body).send().await;
    let answer = answer.expect("is answered");
    let status = answer.status().as_u16();
    (status, answer.text().await.expect("reads"))
}

/// Asks until there is a permit.
async fn until_permitted(permits: &str) -> String {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match ask(permits).await {
            (200, text) => return text,
            (status, text) => assert!(
                tokio::time::Instant::now() < deadline,
                "never ready: {status} {text}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn get(url: &str) -> (u16, String) {
    let answer = http_client().get(url).send().await.expect("is answered");
    let status = answer.status().as_u16();
    (status, answer.text().await.expect("reads"))
}

async fn drain(mut child: Child) {
    let pid = child.id().expect("runs").to_string();
    let killed = Command::new("kill")
        .args(["-TERM", &pid])
        .status()
        .await
        .expect("runs");
    assert!(killed.success());
    let status = tokio::time::timeout(PATIENCE, child.wait()).await;
    assert_eq!(status.expect("ends in time").expect("ends").code(), Some(0));
}

fn put_vm(api: &FakeApi) {
    api.put("nodes", node("n1", 4_000, 16 << 30));
    api.put("virtualmachines", vm("pg", size(250, 1)));
    api.put("pods", vm_pod("pg", size(250, 1), Some("n1")));
}

#[tokio::test]
async fn n01_it_starts_alone_answers_and_drains() {
    let api = FakeApi::start().await;
    put_vm(&api);
    let kubeconfig = kubeconfig("kubeconfig", api.address());
    let mut child = program(&kubeconfig).spawn().expect("starts");
    let [permits, _] = urls(&mut child).await;
    assert_eq!(until_permitted(&permits).await, PERMIT);
    drain(child).await;
}

/// N01: without an API server the scheduler waits and says so. It works once there is one.
#[tokio::test]
async fn n01_it_waits_for_an_api_server_that_is_not_there_yet() {
    // A socket that is bound and does not listen refuses, and keeps its port from everybody else.
    let nobody = TcpSocket::new_v4().expect("a socket");
    let any_port = (Ipv4Addr::LOCALHOST, 0).into();
    nobody.bind(any_port).expect("binds");
    let address = nobody.local_addr().expect("has an address");
    let kubeconfig = kubeconfig("kubeconfig-of-nobody", address);
    let mut child = program(&kubeconfig)
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let [permits, admin] = urls(&mut child).await;
    let mut log = BufReader::new(child.stderr.take().expect("is piped")).lines();
    let complaint = tokio::time::timeout(PATIENCE, async {
        loop {
            let line = log.next_line().await.expect("reads").expect("goes on");
            if line.contains("watch failed") {
                return line;
            }
        }
    });
    let complaint = complaint.await.expect("says so in time");
    assert!(complaint.contains("refused"), "{complaint}");
    tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
    assert_eq!(get(&format!("{admin}/healthz")).await.0, 200);
    let (status, why) = get(&format!("{admin}/readyz")).await;
    assert_eq!(status, 503, "{why}");
    for kind in ["nodes", "pods", "virtualmachines"] {
        assert!(why.contains(kind), "{kind} are not waited for: {why}");
    }
    assert_eq!(ask(&permits).await, (503, "not ready".to_owned()));
    assert!(child.try_wait().expect("asks").is_none(), "it runs on");

    let api = FakeApi::serve_on(nobody.listen(64).expect("listens"));
    put_vm(&api);
    assert_eq!(until_permitted(&permits).await, PERMIT);
    assert_eq!(get(&format!("{admin}/readyz")).await.0, 200);
    drain(child).await;
}
