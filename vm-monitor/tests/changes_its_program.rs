//! The control socket: root has a running monitor execute another program in the same process.

mod harness;

use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{Agent, DEADLINE, http_get, soon};
use protocol::monitor::{AgentBody, Allocation};
use protocol::parts::control::{EXEC, Exec, PartSelf, SELF};
use protocol::release::RELEASE;
use tempfile::TempDir;
use test_records::{Missing, skip};

/// User without rights, `nobody` of Debian.
const NOBODY: u32 = 65_534;

/// A monitor with a control socket, and copies of its program.
struct Process {
    child: Child,
    folder: TempDir,
    agents: SocketAddr,
    metrics: SocketAddr,
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    // Another user must reach the socket.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("set");
    folder
}

fn command(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vm-monitor"));
    command
        .env_clear()
        .args(["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0"])
        .args(["--without-cgroup=nothing", "--hooks"])
        .arg(folder.join("hooks"))
        .arg("--control")
        .arg(folder.join("control.sock"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

impl Process {
    fn start() -> Self {
        let folder = folder();
        fs::create_dir(folder.path().join("hooks")).expect("made");
        let log = fs::File::create(folder.path().join("log")).expect("made");
        let mut child = command(folder.path()).stderr(log).spawn().expect("started");
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        lines.read_line(&mut line).expect("a line");
        // Later programs write their lines here.
        std::thread::spawn(move || drop(lines.read_to_end(&mut Vec::new())));
        let said: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        let address = |port: &str| {
            let text = said["listening"][port].as_str().expect("an address");
            text.parse().expect("an address")
        };
        Self {
            child,
            agents: address("monitor"),
            metrics: address("metrics"),
            folder,
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    /// Copies of the program under both names, with their digest.
    fn programs(&self) -> ([PathBuf; 2], String) {
        let copies = ["a", "b"].map(|name| {
            let path = self.folder.path().join(name);
            fs::copy(env!("CARGO_BIN_EXE_vm-monitor"), &path).expect("copied");
            path
        });
        (copies, self.asks_itself().sha256)
    }

    fn asks_itself(&self) -> PartSelf {
        let (status, body) = ask(&self.socket(), "GET", SELF, "").expect("answered");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("an answer")
    }

    fn order(&self, path: &Path, sha256: &str) -> Option<(u16, String)> {
        let order = Exec {
            path: path.display().to_string(),
            sha256: sha256.to_owned(),
        };
        let body = serde_json::to_string(&order).expect("JSON");
        ask(&self.socket(), "POST", EXEC, &body)
    }

    /// Has a program executed, and waits until it answers.
    fn execute(&self, path: &Path, sha256: &str) -> PartSelf {
        let execs = self.asks_itself().execs;
        let answer = self.order(path, sha256);
        assert_eq!(answer, None, "a process that changes answers nothing");
        let began = Instant::now();
        loop {
            let now = self.asks_itself();
            if now.execs > execs {
                return now;
            }
            assert!(began.elapsed() < DEADLINE, "{now:?}");
        }
    }

    fn open_files(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.child.id());
        fs::read_dir(folder).expect("there").count()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).expect("text")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Status and body of a request. `None` if the connection ends without an answer.
fn ask(socket: &Path, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = UnixStream::connect(socket).expect("a listener");
    stream.set_read_timeout(Some(DEADLINE)).expect("set");
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: monitor\r\ncontent-length: {length}\r\n");
    let request = format!("{head}connection: close\r\n\r\n{body}");
    // A peer that is refused may be closed before its request is read.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{method} {path}: {error}"),
    }
    let text = String::from_utf8(answer).expect("text");
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().expect("a status");
    Some((status, body.to_owned()))
}

fn is_root(test: &str) -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        skip(test, Missing::Root, "only root gives orders to a monitor");
    }
    is_root
}

/// Requirement: B01
#[test]
fn process_executes_200_programs_and_no_dial_is_refused() {
    const TEST: &str = "process_executes_200_programs_and_no_dial_is_refused";
    const EXECS: u64 = 200;
    if !is_root(TEST) {
        return;
    }
    let process = Process::start();
    let (programs, sha256) = process.programs();
    let first = process.asks_itself();
    assert_eq!((first.execs, first.pid), (0, process.child.id()));
    assert_eq!(first.version, RELEASE);
    assert!(
        first.resident_bytes > 0 && first.sha256.len() == 64,
        "{first:?}"
    );

    let is_done = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&is_done);
    let agents = process.agents;
    let dials = std::thread::spawn(move || {
        let mut count = 0_u64;
        while !until.load(Ordering::Relaxed) {
            TcpStream::connect_timeout(&agents, DEADLINE).expect("no dial is refused");
            count += 1;
            std::thread::park_timeout(Duration::from_millis(2));
        }
        count
    });
    let mut files = 0;
    for n in 1..=EXECS {
        let program = &programs[usize::try_from(n % 2).expect("small")];
        let now = process.execute(program, &sha256);
        assert_eq!((now.execs, now.pid), (n, first.pid));
        assert_eq!(now.sha256, sha256);
        let running = fs::read_link(format!("/proc/{}/exe", first.pid)).expect("a link");
        assert_eq!(running, *program);
        if n == 1 {
            files = process.open_files();
        }
    }
    is_done.store(true, Ordering::Relaxed);
    let count = dials.join().expect("no dial is refused");
    assert!(count >= EXECS, "{count} dials in {EXECS} changes");
    // Few connections of the last dials may still be open.
    let began = Instant::now();
    while process.open_files() > files {
        assert!(
            began.elapsed() < DEADLINE,
            "descriptors leak: {}",
            process.open_files()
        );
    }
}

/// Requirement: B01
#[tokio::test]
async fn agent_is_told_of_the_change_and_the_next_program_serves_it() {
    const TEST: &str = "agent_is_told_of_the_change_and_the_next_program_serves_it";
    if !is_root(TEST) {
        return;
    }
    let process = Process::start();
    let (programs, sha256) = process.programs();
    let mut agent = Agent::connect(process.agents).await;
    assert!(agent.is_alive().await);
    assert!(process.asks_itself().agent_connected);
    let process = Arc::new(process);
    let changing = Arc::clone(&process);
    let change = tokio::task::spawn_blocking(move || changing.execute(&programs[0], &sha256));
    let close = agent.closed().await.expect("a close frame");
    assert_eq!(u16::from(close.code), 1012);
    drop(agent);
    // The dial may be earlier than the program that answers it.
    let mut agent = Agent::connect(process.agents).await;
    assert!(agent.is_alive().await);
    let now = soon("changed", change).await.expect("changed");
    assert_eq!(now.execs, 1);
    let (status, page) = http_get(process.metrics, "/metrics").await;
    assert_eq!(status, 200);
    let sha256 = &now.sha256;
    for line in [
        format!("vm_monitor_build_info{{version=\"{RELEASE}\",sha256=\"{sha256}\"}} 1"),
        "vm_monitor_execs 1".to_owned(),
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
    for name in [
        "process_start_time_seconds",
        "process_resident_memory_bytes",
    ] {
        let mut values = page.lines().filter_map(|line| line.strip_prefix(name));
        let value: Option<f64> = values.find_map(|value| value.trim().parse().ok());
        assert!(value.is_some_and(|value| value > 1e5), "{name}\n{page}");
    }
}

/// Requirement: B01. Bad orders are refused with the rule, and the old program serves on.
#[tokio::test]
async fn bad_order_is_refused_and_the_old_program_serves_on() {
    const TEST: &str = "bad_order_is_refused_and_the_old_program_serves_on";
    if !is_root(TEST) {
        return;
    }
    let process = Process::start();
    let (programs, sha256) = process.programs();
    let at = |name: &str| process.folder.path().join(name);
    let digest_of = |path: &Path| {
        let output = Command::new("sha256sum").arg(path).output().expect("run");
        let text = String::from_utf8(output.stdout).expect("text");
        text.split(' ').next().expect("a digest").to_owned()
    };
    nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("made");
    let big = fs::File::create(at("big")).expect("made");
    big.set_len(33 << 20).expect("set");
    for (path, sha256, status, rule) in [
        (
            programs[0].clone(),
            "0".repeat(64),
            422,
            "not the ordered one",
        ),
        (at("none"), sha256.clone(), 422, "failed to read"),
        (at("pipe"), sha256.clone(), 422, "no file"),
        (at("big"), sha256.clone(), 422, "no file"),
        (PathBuf::from("a"), sha256.clone(), 400, "not absolute"),
        (
            programs[0].clone(),
            "ABC".to_owned(),
            400,
            "64 lower-case hex",
        ),
    ] {
        let answer = process.order(&path, &sha256).expect("refused");
        assert_eq!(answer.0, status, "{answer:?}");
        assert!(answer.1.contains(rule), "{answer:?}");
    }
    let long = "x".repeat(9 << 10);
    for (body, status) in [
        ("", 400),
        ("[]", 400),
        (r#"{"path":"/a","sha256":"","x":1}"#, 400),
        (&long, 413),
    ] {
        let answer = ask(&process.socket(), "POST", EXEC, body).expect("refused");
        assert_eq!(answer.0, status, "{answer:?}");
    }
    for (method, path, status) in [("GET", EXEC, 405), ("POST", SELF, 405), ("GET", "/", 404)] {
        let answer = ask(&process.socket(), method, path, "").expect("answered");
        assert_eq!(answer.0, status, "{answer:?}");
    }
    // The kernel refuses these; until then the agent's connection has been closed.
    fs::write(at("text"), "no program\n").expect("written");
    fs::write(at("script"), "#!/no/such/shell\n").expect("written");
    let elf = fs::read(&programs[0]).expect("read");
    fs::write(at("torn"), &elf[..100]).expect("written");
    for name in ["text", "script", "torn"] {
        let mode = if name == "text" { 0o644 } else { 0o755 };
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).expect("set");
        let mut agent = Agent::connect(process.agents).await;
        assert!(agent.is_alive().await);
        let answered = async { agent.closed().await.map(|close| u16::from(close.code)) };
        let order = process.order(&at(name), &digest_of(&at(name)));
        let (status, text) = order.expect("refused");
        assert_eq!(status, 500, "{name}: {text}");
        assert!(text.contains("failed to execute"), "{text}");
        assert_eq!(answered.await, Some(1012));
        let mut agent = Agent::connect(process.agents).await;
        assert!(agent.is_alive().await, "{name}");
    }
    let now = process.asks_itself();
    assert_eq!((now.execs, now.sha256), (0, sha256));
    assert!(process.log().contains("failed to execute the program"));
}

/// Requirement: B01
#[test]
fn user_other_than_root_is_refused() {
    const TEST: &str = "user_other_than_root_is_refused";
    if !is_root(TEST) {
        return;
    }
    let process = Process::start();
    let socket = process.socket();
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(&socket), 0o600);
    // Even where the file's mode would let others in.
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).expect("set");
    let script = r#"
        use IO::Socket::UNIX;
        my $to = IO::Socket::UNIX->new(Peer => $ARGV[0]) or die "connect: $!";
        print $to "GET $ARGV[1] HTTP/1.1\r\nhost: monitor\r\nconnection: close\r\n\r\n";
        print while <$to>;
    "#;
    for path in [SELF, EXEC] {
        let asked = Command::new("perl")
            .args(["-e", script])
            .arg(&socket)
            .arg(path)
            .current_dir("/")
            .uid(NOBODY)
            .gid(NOBODY)
            .output();
        let Ok(Output { stdout, stderr, .. }) = asked else {
            return skip(TEST, Missing::Tool, "perl");
        };
        let answer = String::from_utf8_lossy(&stdout);
        let errors = String::from_utf8_lossy(&stderr);
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}{errors}");
        assert!(answer.contains("ask as root"), "{answer}");
    }
}

/// Requirement: B01
#[tokio::test]
async fn order_is_refused_while_a_hook_runs() {
    const TEST: &str = "order_is_refused_while_a_hook_runs";
    if !is_root(TEST) {
        return;
    }
    let process = Process::start();
    let (programs, sha256) = process.programs();
    let at = |name: &str| process.folder.path().join(name);
    let hook = at("hooks/10-wait");
    let (begun, go) = (at("begun"), at("go"));
    let script = format!(
        "#!/bin/sh\n: > {}\nwhile [ ! -e {} ]; do sleep 0.01; done\n",
        begun.display(),
        go.display()
    );
    fs::write(&hook, script).expect("written");
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).expect("set");
    let mut agent = Agent::connect(process.agents).await;
    let granted = Allocation {
        cpu: 1.0,
        mem: 1 << 30,
    };
    agent.ask(AgentBody::UpscaleNotification { granted }).await;
    soon("the hook runs", async {
        while !begun.exists() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let (status, reason) = process.order(&programs[0], &sha256).expect("refused");
    assert_eq!(status, 409, "{reason}");
    assert!(
        reason.contains("hooks are running after a growth"),
        "{reason}"
    );
    fs::write(&go, "").expect("written");
    agent.frame().await;
    assert!(agent.is_alive().await, "the connection is as before");
    let changing =
        tokio::task::spawn_blocking(move || process.execute(&programs[0], &sha256).execs);
    assert_eq!(
        u16::from(agent.closed().await.expect("a close frame").code),
        1012
    );
    assert_eq!(soon("changed", changing).await.expect("changed"), 1);
}

#[test]
fn socket_of_a_dead_process_is_replaced_and_any_other_file_is_left() {
    let folder = folder();
    let socket = folder.path().join("control.sock");
    drop(UnixListener::bind(&socket).expect("bound"));
    let listener = vm_monitor::shell::control::bind(&socket).expect("replaced");
    assert!(
        fs::metadata(&socket)
            .expect("there")
            .file_type()
            .is_socket()
    );
    let taken = vm_monitor::shell::control::bind(&socket).expect_err("taken");
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    drop(listener);
    fs::remove_file(&socket).expect("removed");
    fs::write(&socket, "mine").expect("written");
    let output = command(folder.path()).output().expect("started");
    assert_eq!(output.status.code(), Some(69));
    let text = String::from_utf8(output.stderr).expect("text");
    assert!(
        text.contains("no socket") && text.contains("control.sock"),
        "{text}"
    );
    assert_eq!(fs::read_to_string(&socket).expect("there"), "mine");
}

/// Requirement: B01
#[test]
fn self_test_binds_nothing_and_names_what_is_missing() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = taken.local_addr().expect("bound").to_string();
    let folder = folder();
    let test = |more: &[&str]| {
        let mut command = command(folder.path());
        let output = command
            .arg("--self-test")
            .args(more)
            .output()
            .expect("started");
        let said = String::from_utf8([output.stdout, output.stderr].concat()).expect("text");
        (output.status.code(), said)
    };
    let (code, said) = test(&[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(RELEASE), "{said}");
    assert!(
        !folder.path().join("control.sock").exists(),
        "nothing is bound"
    );
    let mut alone = Command::new(env!("CARGO_BIN_EXE_vm-monitor"));
    let alone = alone.args(["--self-test", "--addr", &addr]).env_clear();
    assert!(
        alone.status().expect("started").success(),
        "{addr} is taken"
    );
    let (code, said) = test(&["--agent-token-file=/no/token", "--proc-root=/no/proc"]);
    assert_eq!(code, Some(69), "{said}");
    assert!(
        said.contains("/no/token") && said.contains("memory of the machine"),
        "{said}"
    );
    // A file that is never read to its end.
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("made");
    let (code, said) = test(&["--agent-token-file", &pipe.display().to_string()]);
    assert_eq!(code, Some(69), "{said}");
    assert!(said.contains("within 10 s"), "{said}");
    assert_eq!(test(&["--control=relative.sock"]).0, Some(64));
}
