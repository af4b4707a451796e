//! What was answered is on disk: after `kill -9`, after restarts, with a full disk; and damage is
//! named, never hidden.

mod support;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use apiserver::shell::db::DbError;
use apiserver::{Config, StartError, start};
use serde_json::{Value, json};
use support::{Running, VMS, vm, wait_for};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A server in a process of its own.
struct Process {
    child: Child,
    base: String,
    dir: std::path::PathBuf,
}

impl Process {
    fn start(dir: &Path) -> Self {
        Self::run(command(dir), dir)
    }

    fn run(mut command: Command, dir: &Path) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("a line");
        let base = line
            .split_whitespace()
            .nth(1)
            .expect("an address")
            .to_owned();
        Self {
            child,
            base,
            dir: dir.to_owned(),
        }
    }

    fn client(&self) -> (reqwest::Client, String) {
        let token = std::fs::read_to_string(self.dir.join("pki/token")).expect("a token");
        (
            support::client(&self.dir.join("pki/ca.crt")),
            token.trim().to_owned(),
        )
    }

    async fn ask(&self, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
        let (client, token) = self.client();
        let request = client.request(
            method.parse().expect("a method"),
            format!("{}{path}", self.base),
        );
        let answer = request.bearer_auth(token).json(body).send().await.ok()?;
        Some((answer.status().as_u16(), answer.json().await.ok()?))
    }

    fn kill(self) {
        drop(self);
    }
}

impl Drop for Process {
    /// `kill -9`, also when a test fails.
    fn drop(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }
}

fn command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_neonvm-apiserver"));
    command
        .args(["--listen", "127.0.0.1:0", "--state-dir"])
        .arg(dir);
    command
}

async fn start_error(dir: &Path) -> StartError {
    let listen = "127.0.0.1:0".parse().expect("an address");
    let config = Config {
        state_dir: dir.to_owned(),
        listen,
        names: Vec::new(),
        seen: Vec::new(),
        audit_log: None,
    };
    start(config).await.expect_err("it does not start")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_answered_before_a_kill_is_there_after_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let process = Arc::new(Process::start(dir.path()));
    let answered: Vec<Arc<AtomicU64>> = (0..4).map(|_| Arc::new(AtomicU64::new(0))).collect();
    let writers: Vec<_> = answered
        .iter()
        .enumerate()
        .map(|(writer, answered)| {
            let (process, answered) = (Arc::clone(&process), Arc::clone(answered));
            tokio::spawn(async move {
                for number in 0_u64.. {
                    let body = json!({"metadata": {"name": format!("w{writer}-{number}")}});
                    match process.ask("POST", MAPS, &body).await {
                        Some((201, _)) => answered.store(number + 1, Ordering::SeqCst),
                        _ => return,
                    }
                }
            })
        })
        .collect();
    let total = || {
        answered
            .iter()
            .map(|count| count.load(Ordering::SeqCst))
            .sum::<u64>()
    };
    tokio::task::block_in_place(|| {
        wait_for("two hundred answers", || (total() >= 200).then_some(()))
    });
    let pid = nix::unistd::Pid::from_raw(process.child.id().try_into().expect("a pid"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("killed");
    for writer in writers {
        writer.await.expect("no panic");
    }
    Arc::into_inner(process)
        .expect("the writers are done")
        .kill();

    let server = Running::start_in(dir);
    let (_, list) = server.get(MAPS).await;
    let items = list["items"].as_array().expect("items");
    let names: std::collections::BTreeSet<&str> = items
        .iter()
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect();
    for (writer, answered) in answered.iter().enumerate() {
        for number in 0..answered.load(Ordering::SeqCst) {
            assert!(
                names.contains(format!("w{writer}-{number}").as_str()),
                "w{writer}-{number} was answered and is lost"
            );
        }
    }
    let newest = items
        .iter()
        .filter_map(|item| {
            item["metadata"]["resourceVersion"]
                .as_str()?
                .parse::<u64>()
                .ok()
        })
        .max();
    let (_, made) = server
        .post(MAPS, &json!({"metadata": {"name": "next"}}))
        .await;
    let next = made["metadata"]["resourceVersion"]
        .as_str()
        .and_then(|text| text.parse().ok());
    assert!(
        next > newest,
        "revisions only grow: {next:?} after {newest:?}"
    );
}

#[tokio::test]
async fn a_restart_keeps_objects_kinds_token_and_revision() {
    let server = Running::start();
    server.post(VMS, &vm("pg")).await;
    let definition = json!({"metadata": {"name": "things.example.org"}, "spec": {
        "group": "example.org", "scope": "Cluster", "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    server
        .post(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            &definition,
        )
        .await;
    server
        .post(
            "/apis/example.org/v1/things",
            &json!({"metadata": {"name": "a"}}),
        )
        .await;
    server
        .post(MAPS, &json!({"metadata": {"name": "short"}}))
        .await;
    server.delete(&format!("{MAPS}/short")).await;
    let (_, before) = server.get(VMS).await;
    let token = server.token.clone();
    let ca = std::fs::read(server.dir.path().join("pki/ca.crt")).expect("readable");
    let server = Running::start_in(server.stop());
    let (_, after) = server.get(VMS).await;
    assert_eq!(
        before, after,
        "also the revision, which the last removal had moved"
    );
    assert_eq!(server.get("/apis/example.org/v1/things/a").await.0, 200);
    assert_eq!(server.token, token);
    assert_eq!(
        std::fs::read(server.dir.path().join("pki/ca.crt")).expect("readable"),
        ca
    );
}

#[tokio::test]
async fn secrets_on_disk_are_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let server = Running::start();
    for name in ["kubeconfig", "api.redb", "pki/ca.key", "pki/token"] {
        let mode = std::fs::metadata(server.dir.path().join(name))
            .expect(name)
            .permissions()
            .mode();
        assert_eq!(mode & 0o077, 0, "{name} is {mode:o}");
    }
}

#[tokio::test]
async fn a_truncated_store_opens_whole_or_is_named() {
    let server = Running::start();
    for number in 0..50 {
        let body =
            json!({"metadata": {"name": format!("m{number}")}, "data": {"k": "x".repeat(2000)}});
        server.post(MAPS, &body).await;
    }
    let state = server.stop();
    let path = state.path().join("api.redb");
    let whole = std::fs::read(&path).expect("readable");
    let last = whole
        .iter()
        .rposition(|byte| *byte != 0)
        .expect("not empty");
    let lengths = [
        0,
        1,
        100,
        320,
        4096,
        8192,
        whole.len() / 4,
        whole.len() / 2,
        whole.len() * 3 / 4,
        last - 5000,
        last,
        whole.len() - 1,
    ];
    for length in lengths {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("pki")).expect("made");
        let cut = dir.path().join("api.redb");
        std::fs::write(&cut, &whole[..length]).expect("written");
        let listen = "127.0.0.1:0".parse().expect("an address");
        let config = Config {
            state_dir: dir.path().to_owned(),
            listen,
            names: Vec::new(),
            seen: Vec::new(),
            audit_log: None,
        };
        match start(config).await {
            Err(StartError::Store(error @ DbError::Damaged { .. })) => {
                let text = error.to_string();
                assert!(
                    text.contains("api.redb")
                        && text.contains("bellows restore --store")
                        && !text.contains("move it away"),
                    "{text}"
                );
                assert_eq!(
                    std::fs::read(&cut).expect("readable").len(),
                    length,
                    "the evidence is left alone"
                );
            }
            Err(other) => panic!("cut at {length}: {other}"),
            Ok(server) => {
                drop(server);
                let server = Running::start_in(dir);
                let (_, list) = server.get(MAPS).await;
                assert_eq!(
                    list["items"].as_array().map(Vec::len),
                    Some(50),
                    "cut at {length}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_flipped_byte_never_empties_the_store() {
    let server = Running::start();
    for number in 0..20 {
        server.post(MAPS, &json!({"metadata": {"name": format!("m{number}")}, "data": {"k": "x".repeat(2000)}})).await;
    }
    let state = server.stop();
    let whole = std::fs::read(state.path().join("api.redb")).expect("readable");
    let last = whole
        .iter()
        .rposition(|byte| *byte != 0)
        .expect("not empty");
    for part in 0..16 {
        let dir = tempfile::tempdir().expect("a directory");
        let mut damaged = whole.clone();
        for byte in &mut damaged[last * part / 16..][..64] {
            *byte ^= 0xa5;
        }
        std::fs::write(dir.path().join("api.redb"), damaged).expect("written");
        let listen = "127.0.0.1:0".parse().expect("an address");
        let config = Config {
            state_dir: dir.path().to_owned(),
            listen,
            names: Vec::new(),
            seen: Vec::new(),
            audit_log: None,
        };
        match start(config).await {
            Err(StartError::Store(DbError::Damaged { .. } | DbError::Format { .. })) => {}
            Err(other) => panic!("damage in part {part}: {other}"),
            Ok(server) => {
                drop(server);
                let server = Running::start_in(dir);
                let (_, list) = server.get(MAPS).await;
                assert_eq!(
                    list["items"].as_array().map(Vec::len),
                    Some(20),
                    "damage in part {part}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_store_that_is_no_store_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("api.redb"), "this is no store".repeat(1000)).expect("written");
    let error = start_error(dir.path()).await;
    assert!(
        matches!(error, StartError::Store(DbError::Damaged { .. })),
        "{error}"
    );
}

#[tokio::test]
async fn a_store_in_use_and_a_taken_port_are_named() {
    let server = Running::start();
    let error = start_error(server.dir.path()).await;
    assert!(
        matches!(error, StartError::Store(DbError::InUse { .. })),
        "{error}"
    );
    let dir = tempfile::tempdir().expect("a directory");
    let listen = server
        .base
        .trim_start_matches("https://")
        .parse()
        .expect("an address");
    let config = Config {
        state_dir: dir.path().to_owned(),
        listen,
        names: Vec::new(),
        seen: Vec::new(),
        audit_log: None,
    };
    let error = start(config).await.expect_err("the port is taken");
    assert!(
        matches!(error, StartError::AddressInUse { addr } if addr == listen),
        "{error}"
    );
    assert!(!dir.path().join("api.redb").exists(), "nothing was made");
}

#[test]
fn the_program_says_what_is_wrong_and_exits_69() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("api.redb"), "").expect("written");
    let mut child = command(dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut text = String::new();
    child
        .stderr
        .take()
        .expect("piped")
        .read_to_string(&mut text)
        .expect("readable");
    let status = child.wait().expect("ended");
    assert_eq!(status.code(), Some(69), "{text}");
    assert!(
        text.contains("api.redb") && text.contains("damaged"),
        "{text}"
    );
}

/// The limit on the size of files stands in for a full disk: the system refuses to let the store
/// grow.
#[tokio::test]
async fn a_full_disk_refuses_writes_and_loses_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    Process::start(dir.path()).kill();
    let size = std::fs::metadata(dir.path().join("api.redb"))
        .expect("there")
        .len();
    let limit = size + (1 << 20);
    let script = format!(
        "trap '' XFSZ; ulimit -S -f {}; exec \"$0\" \"$@\"",
        limit / 1024
    );
    let program = command(dir.path());
    let mut limited = Command::new("bash");
    limited
        .args(["-c", &script])
        .arg(program.get_program())
        .args(program.get_args());
    let process = Process::run(limited, dir.path());
    let (mut kept, mut refusal) = (0, None);
    for number in 0..400 {
        let body =
            json!({"metadata": {"name": format!("m{number}")}, "data": {"k": "x".repeat(20_000)}});
        match process.ask("POST", MAPS, &body).await.expect("an answer") {
            (201, _) => kept += 1,
            refused => {
                refusal = Some(refused);
                break;
            }
        }
    }
    let (code, status) = refusal.expect("the limit is reached");
    assert_eq!(
        (code, &status["reason"]),
        (507, &json!("InsufficientStorage")),
        "{status}"
    );
    assert!(
        status["message"]
            .as_str()
            .is_some_and(|text| text.contains("free some space")),
        "{status}"
    );
    let (_, list) = process
        .ask("GET", MAPS, &Value::Null)
        .await
        .expect("an answer");
    assert_eq!(
        list["items"].as_array().map(Vec::len),
        Some(kept),
        "readers see what was kept"
    );
    let freed = Command::new("prlimit")
        .args([
            "--fsize=unlimited",
            "--pid",
            &process.child.id().to_string(),
        ])
        .status()
        .expect("this test needs prlimit: `apt-get install util-linux`");
    assert!(freed.success());
    let body = json!({"metadata": {"name": "after"}});
    let (code, status) = process.ask("POST", MAPS, &body).await.expect("an answer");
    assert_eq!(code, 201, "writes work again without a restart: {status}");
    kept += 1;
    process.kill();
    let server = Running::start_in(dir);
    let (_, list) = server.get(MAPS).await;
    assert_eq!(
        list["items"].as_array().map(Vec::len),
        Some(kept),
        "nothing is lost"
    );
}
