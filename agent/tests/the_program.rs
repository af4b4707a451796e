//! The program itself: how it starts, what its servers say, and how it ends.

mod peers;

use peers::guest::Page;
use peers::program::{Program, command};
use peers::{Seen, World, address, http, http_get, is_patch, position, until};
use serde_json::{Value, json};

/// Waits until one of its servers answers, and returns the body.
async fn body(program: &Program, port: u16, path: &str) -> String {
    until("the server listens", || {
        std::net::TcpStream::connect(program.at(port)).is_ok()
    })
    .await;
    let answer = http_get(program.at(port), path, "").await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    body.to_owned()
}

/// Requirement: N45
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_shows_its_state_and_ends_on_sigterm() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut world = World::new().await;
    world.config["dumpState"] = json!({"port": 10300, "timeoutSeconds": 5});
    world.guest.set(Page::Good(0.5, 0.0));
    let program = Program::start(folder.path(), &world);
    world
        .trace
        .until("it scales", |all| position(all, is_patch))
        .await;
    let mut dump = Value::Null;
    while dump["pods"][0]["lastDecision"]["reason"] != "cpu" {
        dump = serde_json::from_str(&body(&program, 10300, "/").await).expect("is JSON");
    }
    let pods = dump["pods"].as_array().expect("a list");
    assert_eq!(pods.len(), 1);
    assert_eq!(
        (&pods[0]["podName"]["name"], &dump["stopped"]),
        (&json!("vm-pod"), &json!(false))
    );
    for (method, text, wanted) in [
        ("POST", "{}", "HTTP/1.1 405"),
        ("GET", "no JSON", "HTTP/1.1 400"),
    ] {
        let answer = http(method, program.at(10300), "/", text).await;
        assert!(answer.starts_with(wanted), "{answer}");
    }
    let page = body(&program, 9100, "/metrics").await;
    assert!(
        page.contains("autoscaling_agent_runners_current{"),
        "{page}"
    );
    let page = body(&program, 9101, "/metrics").await;
    assert!(page.contains("autoscaling_vm_cpu_cores{"), "{page}");
    assert_eq!(body(&program, 9100, "/readyz").await, "ok\n");
    assert_eq!(program.terminate().await, Some(0), "drained");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_filter_changes_at_run_time() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let world = World::new().await;
    let program = Program::start(folder.path(), &world);
    body(&program, 9100, "/healthz").await;
    let log = || std::fs::read_to_string(folder.path().join("log")).expect("reads");
    until("it logs", || log().contains("agent runs")).await;
    assert!(!log().contains("\"DEBUG\""), "{}", log());
    let set = async |filter: &str| http("PUT", program.at(9100), "/debug/log", filter).await;
    let bad = set("agent=loud").await;
    assert!(bad.starts_with("HTTP/1.1 400"), "{bad}");
    assert!(set("debug").await.starts_with("HTTP/1.1 200"));
    until("it says more", || log().contains("\"DEBUG\"")).await;
    assert!(set("off").await.starts_with("HTTP/1.1 200"));
    // Who had passed the filter before may still write.
    let mut length = 0;
    while length != log().len() {
        length = log().len();
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    // A VM goes: that would be worth a line.
    world.api.delete_vm("vm");
    while body(&program, 9100, "/debug/state")
        .await
        .contains("vm-pod")
    {}
    assert_eq!(log().len(), length, "{}", &log()[length..]);
    assert_eq!(program.terminate().await, Some(0));
}

#[tokio::test]
async fn failed_start_names_the_cause_and_sets_the_exit_code() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let good = World::new().await;
    let ip = address();
    let run = async |change: &dyn Fn(&mut tokio::process::Command)| {
        let mut command = command(folder.path(), &good, ip);
        change(&mut command);
        command.stderr(std::process::Stdio::piped());
        let ended = tokio::time::timeout(std::time::Duration::from_secs(30), command.output());
        let output = ended.await.expect("in time").expect("runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text)
    };
    for name in ["CONFIG_PATH", "K8S_NODE_NAME", "K8S_POD_IP"] {
        let empty = run(&|command| {
            command.env(name, "");
        })
        .await;
        assert_eq!(
            empty,
            (Some(64), format!("autoscaler-agent: {name} is not set\n"))
        );
    }
    let (code, text) = run(&|command| {
        command.env("K8S_POD_IP", "here");
    })
    .await;
    assert!(
        code == Some(64) && text.contains("K8S_POD_IP \"here\" is no address"),
        "{text}"
    );
    std::fs::write(
        folder.path().join("bad.json"),
        r#"{"monitor":{"serverPort":0}}"#,
    )
    .expect("writes");
    let bad = folder.path().join("bad.json");
    let (code, text) = run(&|command| {
        command.env("CONFIG_PATH", &bad);
    })
    .await;
    assert_eq!(code, Some(64), "{text}");
    assert!(
        text.contains("monitor.serverPort = 0: must be a whole number above 0"),
        "{text}"
    );
    let gone = folder.path().join("gone.json");
    let (code, text) = run(&|command| {
        command.env("CONFIG_PATH", &gone);
    })
    .await;
    assert!(code == Some(64) && text.contains("gone.json"), "{text}");
    let _taken = tokio::net::TcpListener::bind((ip, 9100))
        .await
        .expect("binds");
    let (code, text) = run(&|_| ()).await;
    assert!(
        code == Some(69) && text.contains(&format!("{ip}:9100")),
        "{text}"
    );
    let (code, text) = run(&|command| {
        command.arg("--check-config");
    })
    .await;
    assert_eq!((code, text.as_str()), (Some(0), ""), "it binds nothing");
}

/// A pod that is deleted by force ends beside its successor.
///
/// Requirement: N40
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_starts_once_no_other_writes_its_events() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut world = World::new().await;
    world.config["billing"]["clients"] = json!({"http": {
        "url": "http://127.0.0.1:1", "pushEverySeconds": 1, "pushRequestTimeoutSeconds": 1,
        "maxBatchSize": 1,
    }});
    let events = folder.path().join("events");
    let held = daemon_kit::state_folder::lock(&events).expect("is free");
    let program = Program::start(folder.path(), &world);
    let log = || std::fs::read_to_string(folder.path().join("log")).expect("reads");
    let waits = "another process writes the folder";
    until("it waits", || log().contains(waits)).await;
    assert!(!log().contains("agent runs"), "{}", log());
    drop(held);
    until("it runs", || log().contains("agent runs")).await;
    assert_eq!(program.terminate().await, Some(0));
}

#[test]
fn folder_of_state_is_prepared_or_refused_with_a_reason() {
    use std::os::unix::fs::MetadataExt as _;
    let dir = tempfile::tempdir().expect("makes a folder");
    let path = dir.path().join("agent");
    let me = dir.path().metadata().expect("is there").uid();
    let prepare = |user: u32| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_autoscaler-agent"))
            .arg("--prepare-state")
            .arg(&path)
            .args(["--state-user", &user.to_string()])
            .output()
            .expect("runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text)
    };
    assert_eq!(prepare(me), (Some(0), String::new()));
    assert_eq!(path.metadata().expect("is there").mode() & 0o7777, 0o700);
    std::fs::write(path.join("events"), "").expect("writes");
    let (code, text) = prepare(me + 1);
    let wanted = format!("holds \"events\" and does not belong to user {}", me + 1);
    assert!(code == Some(64) && text.contains(&wanted), "{text}");
}

/// Requirement: B01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn monitor_that_changes_its_program_is_dialled_at_once_and_is_no_fault() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut world = World::new().await;
    // Longer than the test waits for anything.
    world.config["monitor"]["connectionRetryMinWaitSeconds"] = json!(600);
    let program = Program::start(folder.path(), &world);
    for connection in 1..=3 {
        let connected = |seen: &Seen| *seen == Seen::Connected(connection);
        world
            .trace
            .until("the agent connects", |all| position(all, connected))
            .await;
        if connection < 3 {
            world.guest.restart();
        }
    }
    let log = std::fs::read_to_string(folder.path().join("log")).expect("reads");
    assert!(log.contains("the monitor changes its program"), "{log}");
    assert!(!log.contains("no connection to the monitor"), "{log}");
    assert_eq!(program.terminate().await, Some(0));
}
