use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use neonvm_parts::core::elf::MACHINE;
use protocol::parts::{PROGRAM_BYTES, PartPhase, PartSource};
use sha2::{Digest as _, Sha256};

use super::route::route;
use super::*;

/// Parts of a guest whose folders are below `root`.
pub(in crate::shell) fn parts(root: &Path) -> Parts {
    parts_with(root, mpsc::channel(1).0)
}

fn parts_with(root: &Path, renewals: mpsc::Sender<Renewal>) -> Parts {
    let settings = Settings {
        parts: root.join("parts"),
        run: root.join("run"),
        scripts: root.join("scripts"),
        monitor_control: root.join("control.sock"),
        procfs: root.join("proc"),
    };
    Parts::new(settings, watch::channel(PartStates::new()).0, renewals)
}

/// A guest whose self-test succeeds, at uptime 100.
struct Guest {
    root: tempfile::TempDir,
    parts: Arc<Parts>,
}

impl Guest {
    fn new() -> Self {
        Self::with(mpsc::channel(1).0)
    }

    fn with(renewals: mpsc::Sender<Renewal>) -> Self {
        let root = tempfile::tempdir().expect("a folder");
        for folder in ["run", "scripts", "proc"] {
            fs::create_dir(root.path().join(folder)).expect("made");
        }
        let parts = Arc::new(parts_with(root.path(), renewals));
        let guest = Self { root, parts };
        guest.script("service", "exit 0");
        guest.script("trial", "exit 0");
        guest.clock(100);
        guest
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.root.path().join("scripts").join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("set");
    }

    fn clock(&self, uptime_s: u64) {
        let path = self.root.path().join("proc/uptime");
        fs::write(path, format!("{uptime_s}.5 1.0\n")).expect("written");
    }

    async fn asked(&self, line: &str, body: &[u8]) -> (u16, String) {
        let (client, server) = tokio::io::duplex(1 << 16);
        let parts = self.parts.clone();
        let service = service_fn(move |request| {
            let parts = parts.clone();
            async move { Ok::<_, std::convert::Infallible>(route(&parts, request).await) }
        });
        let server = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(server), service);
        tokio::spawn(server);
        let io = TokioIo::new(client);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io)
            .await
            .expect("a connection");
        tokio::spawn(connection);
        let (method, uri) = line.split_once(' ').expect("a line");
        let request = hyper::Request::builder().method(method).uri(uri);
        let body = Full::new(Bytes::copy_from_slice(body));
        let request = request.header("host", "guest").body(body);
        let request = request.expect("a request");
        let response = sender.send_request(request).await.expect("a response");
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body");
        let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        (status, text)
    }

    async fn bring(&self, token: &str, epoch: u64, program: &[u8]) -> (u16, String) {
        let sha256 = process::hex(&Sha256::digest(program));
        let query = format!("sha256={sha256}&version=0.1.1&token={token}&epoch={epoch}");
        self.asked(&format!("PUT /v1/parts/monitor?{query}"), program)
            .await
    }

    async fn order(&self, verb: &str, body: &str) -> (u16, String) {
        self.asked(&format!("POST /v1/parts/monitor/{verb}"), body.as_bytes())
            .await
    }

    async fn phase(&self) -> PartPhase {
        let (status, text) = self.asked("GET /v1/parts", b"").await;
        assert_eq!(status, 200, "{text}");
        let states: PartStates = serde_json::from_str(&text).expect("states");
        states[&PartName::Monitor].phase
    }
}

/// Head of a static program of this machine.
fn program() -> Vec<u8> {
    let mut head = vec![0; 120];
    head[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    head[16] = 2;
    head[18..20].copy_from_slice(&MACHINE.to_le_bytes());
    (head[32], head[54], head[56], head[64]) = (64, 56, 1, 1);
    head
}

const TRY: &str = r#"{"token":"t1","epoch":1,"seconds":60}"#;
const ORDER: &str = r#"{"token":"t1"}"#;

#[tokio::test]
async fn program_is_brought_tried_and_kept() {
    let guest = Guest::new();
    let (status, text) = guest.bring("t1", 1, &program()).await;
    assert_eq!(status, 200, "{text}");
    assert_eq!(guest.phase().await, PartPhase::Staged);
    let (status, text) = guest.order("try", TRY).await;
    assert_eq!(status, 200, "{text}");
    let state: PartState = serde_json::from_str(&text).expect("a state");
    assert_eq!((state.phase, state.left_s), (PartPhase::Trial, 60));
    assert!(guest.root.path().join("run/monitor.fresh").exists());
    let (status, again) = guest.order("try", TRY).await;
    assert_eq!((status, again), (200, text), "the same response");
    assert_eq!(guest.order("keep", ORDER).await.0, 200);
    assert_eq!(guest.phase().await, PartPhase::Settled);
    let link = fs::read_link(guest.root.path().join("parts/monitor/current"));
    assert_eq!(link.expect("a link"), Path::new("a"));
    let installed = fs::read(guest.root.path().join("parts/monitor/a/program"));
    assert_eq!(installed.expect("there"), program());
}

/// Requirement: R09
#[tokio::test]
async fn trial_that_nobody_keeps_ends_at_its_time() {
    let guest = Guest::new();
    guest.bring("t1", 1, &program()).await;
    guest.order("try", TRY).await;
    let tried = || fs::read_to_string(guest.root.path().join("run/monitor.tried"));
    assert_eq!(tried().expect("a note"), "t1 100\n");
    guest.clock(159);
    guest.order("try", TRY).await;
    assert_eq!(tried().expect("a note"), "t1 100\n", "one trial");
    guest.parts.look().await.expect("looked");
    assert_eq!(guest.phase().await, PartPhase::Trial);
    guest.clock(160);
    guest.parts.look().await.expect("looked");
    assert_eq!(guest.phase().await, PartPhase::Back);
    let (status, text) = guest.order("keep", ORDER).await;
    assert_eq!(status, 410);
    assert!(text.contains("the host did not keep it in time"), "{text}");
    let (status, _) = guest.order("back", ORDER).await;
    assert_eq!(status, 200, "it has gone back already");
}

#[tokio::test]
async fn unfit_program_is_refused_and_leaves_nothing() {
    let guest = Guest::new();
    let mut foreign = program();
    foreign[18] ^= 0xff;
    let mut dynamic = program();
    dynamic[64] = 3;
    for (body, reason) in [
        (b"#!/bin/sh\n".to_vec(), "script"),
        (foreign, "another kind of machine"),
        (dynamic, "dynamically"),
        (Vec::new(), "empty"),
    ] {
        let (status, text) = guest.bring("t1", 1, &body).await;
        assert_eq!(status, 422, "{text}");
        assert!(text.contains(reason), "{text}");
    }
    let other = process::hex(&Sha256::digest(b"another"));
    let query = format!("sha256={other}&version=0.1.1&token=t1&epoch=1");
    let line = format!("PUT /v1/parts/monitor?{query}");
    let (status, text) = guest.asked(&line, &program()).await;
    assert_eq!((status, text.contains("SHA-256")), (422, true), "{text}");
    guest.script("service", "echo first; echo no such option >&2; exit 64");
    let (status, text) = guest.bring("t1", 1, &program()).await;
    assert_eq!(status, 422);
    assert!(text.trim_end().ends_with("no such option"), "{text}");
    let left = fs::read_dir(guest.root.path().join("parts/monitor/a"));
    assert_eq!(left.expect("a folder").count(), 0);
    assert_eq!(guest.phase().await, PartPhase::Settled);
}

#[tokio::test]
async fn program_above_the_limit_is_refused() {
    let guest = Guest::new();
    let longest = usize::try_from(PROGRAM_BYTES).expect("it fits");
    let (status, text) = guest.bring("t1", 1, &vec![0; longest + 1]).await;
    assert_eq!(status, 413, "{text}");
}

#[tokio::test]
async fn malformed_requests_are_refused_by_name() {
    let guest = Guest::new();
    for (line, body, status) in [
        ("PUT /v1/parts/sshd", "", 404),
        ("PUT /v1/parts/..%2Fx", "", 404),
        ("POST /v1/parts/monitor/run", "{}", 404),
        ("POST /v1/parts/monitor", "", 405),
        ("GET /v1/parts/monitor/try", "", 405),
        ("PUT /v1/parts/monitor", "", 400),
        ("POST /v1/parts/monitor/try", "", 400),
        (
            "POST /v1/parts/monitor/try",
            r#"{"token":"t","epoch":1,"seconds":5}"#,
            400,
        ),
        ("POST /v1/parts/monitor/try", TRY, 404),
        ("POST /v1/parts/monitor/keep", ORDER, 404),
    ] {
        let (found, text) = guest.asked(line, body.as_bytes()).await;
        assert_eq!(found, status, "{line} {body}: {text}");
    }
    let long = " ".repeat(5 << 10);
    assert_eq!(guest.order("try", &long).await.0, 400);
}

#[tokio::test]
async fn orders_out_of_turn_are_refused() {
    let guest = Guest::new();
    guest.bring("t1", 3, &program()).await;
    assert_eq!(guest.bring("t0", 2, &program()).await.0, 412);
    assert_eq!(guest.order("try", TRY).await.0, 412, "epoch 1");
    let newer = TRY.replace("\"epoch\":1", "\"epoch\":3");
    assert_eq!(guest.order("try", &newer).await.0, 200);
    assert_eq!(guest.bring("t2", 4, &program()).await.0, 409, "on trial");
    let body = TRY.replace("\"epoch\":1", "\"epoch\":4");
    let body = body.as_bytes();
    let (status, _) = guest.asked("POST /v1/parts/guestd/try", body).await;
    assert_eq!(status, 404);
    guest.order("back", ORDER).await;
    assert_eq!(guest.phase().await, PartPhase::Back);
}

#[tokio::test]
async fn one_part_at_a_time_is_on_trial_and_only_with_a_watcher() {
    let (renewals, mut renewed) = mpsc::channel(1);
    let guest = Guest::with(renewals);
    let sha256 = process::hex(&Sha256::digest(program()));
    let query = format!("sha256={sha256}&version=0.1.1&token=t1&epoch=1");
    let line = format!("PUT /v1/parts/guestd?{query}");
    assert_eq!(guest.asked(&line, &program()).await.0, 200);
    guest.bring("t1", 1, &program()).await;
    fs::remove_file(guest.root.path().join("scripts/trial")).expect("removed");
    let (status, text) = guest.order("try", TRY).await;
    assert_eq!(
        (status, text.contains("newer image")),
        (409, true),
        "{text}"
    );
    guest.script("trial", "exit 0");
    let of_guestd = "POST /v1/parts/guestd/try";
    let (status, text) = guest.asked(of_guestd, TRY.as_bytes()).await;
    assert_eq!(status, 200, "{text}");
    let renewal = renewed.recv().await;
    assert!(matches!(renewal, Some(Renewal::Execute(_))), "{renewal:?}");
    let (status, text) = guest.order("try", TRY).await;
    assert_eq!(status, 409);
    assert!(text.contains("busy: guestd is on trial"), "{text}");
    guest.parts.not_executed().expect("undone");
    assert_eq!(guest.order("try", TRY).await.0, 200);
}

#[tokio::test]
async fn busy_monitor_refuses_and_its_program_stays_staged() {
    let guest = Guest::new();
    let listener = tokio::net::UnixListener::bind(guest.root.path().join("control.sock"));
    let listener = listener.expect("bound");
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut asked = [0; 1024];
            let _ = stream.read(&mut asked).await;
            let text = "a shrink is carried out";
            let head = format!(
                "HTTP/1.1 409 Conflict\r\nContent-Length: {}\r\n\r\n",
                text.len()
            );
            let _ = stream.write_all(format!("{head}{text}").as_bytes()).await;
        }
    });
    guest.bring("t1", 1, &program()).await;
    let (status, text) = guest.order("try", TRY).await;
    assert_eq!(status, 409);
    assert_eq!(text, "busy: a shrink is carried out\n");
    assert_eq!(guest.phase().await, PartPhase::Staged);
    let parts = guest.root.path().join("parts/monitor");
    assert!(!parts.join("trial").exists() && parts.join("current").symlink_metadata().is_err());
}

#[tokio::test]
async fn own_process_is_reported_with_its_hash() {
    let root = tempfile::tempdir().expect("a folder");
    let mut parts = parts(root.path());
    parts.settings.procfs = "/proc".into();
    let state = parts.state(PartName::Guestd).await.expect("a state");
    let own = fs::read("/proc/self/exe").expect("readable");
    assert_eq!(state.sha256, process::hex(&Sha256::digest(own)));
    assert_eq!(state.from, PartSource::Package, "no scripts are here");
    assert!(state.resident_bytes > 0);
}

/// The script that starts a part writes its number before the part's program runs.
#[tokio::test]
async fn part_that_begins_is_not_reported_as_the_shell() {
    let guest = Guest::new();
    let root = guest.root.path();
    fs::write(root.join("run/monitor.pid"), "7\n").expect("written");
    let process = root.join("proc/7");
    fs::create_dir(&process).expect("made");
    let shell = Path::new("/bin/sh").canonicalize().expect("a shell");
    std::os::unix::fs::symlink(shell, process.join("exe")).expect("linked");
    let state = guest.parts.state(PartName::Monitor).await.expect("a state");
    assert_eq!((state.sha256.as_str(), state.version.as_str()), ("", ""));
    fs::remove_file(process.join("exe")).expect("removed");
    std::os::unix::fs::symlink("/bin/true", process.join("exe")).expect("linked");
    let state = guest.parts.state(PartName::Monitor).await.expect("a state");
    assert_eq!(state.sha256.len(), 64);
}
