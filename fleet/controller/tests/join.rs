//! Join scripts of the program itself: no port without settings, and scripts that a shell reads.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for the program on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const JOIN: &str = r#""join": {
    "suiteUrl": "https://127.0.0.1:1/suite/", "suiteKey": "a2V5",
    "channels": {"stable": "https://127.0.0.1:1/", "staging": "https://127.0.0.1:2/"}
}"#;

/// The program with settings; ended on drop.
struct Program {
    child: Child,
    join: SocketAddr,
    folder: tempfile::TempDir,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address")
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "no {what}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

impl Program {
    /// Its API server is away: scripts do not depend on it.
    fn start(settings: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("config.json");
        std::fs::write(&config, format!("{{{settings}}}")).expect("written");
        let kubeconfig = folder.path().join("kubeconfig");
        let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
            clusters: [{name: c, cluster: {server: \"https://127.0.0.1:1\"}}]\n\
            users: [{name: u, user: {token: t}}]\n\
            contexts: [{name: c, context: {cluster: c, user: u}}]\n";
        std::fs::write(&kubeconfig, text).expect("written");
        let (pages, join) = (free(), free());
        let child = Command::new(env!("CARGO_BIN_EXE_bellows-fleet"))
            .args([
                "--listen",
                &pages.to_string(),
                "--join-listen",
                &join.to_string(),
            ])
            .arg("--config")
            .arg(&config)
            .arg("--state-dir")
            .arg(folder.path().join("state"))
            .env("KUBECONFIG", &kubeconfig)
            .env("HOSTNAME", "a")
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        // The scripts' port is listened on before that of the pages.
        until("page", || TcpStream::connect(pages).is_ok());
        Self {
            child,
            join,
            folder,
        }
    }

    /// Status and body of the response to a request's first line.
    fn asked(&self, line: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.join).expect("the port");
        let head = format!("{line} HTTP/1.1\r\nHost: fleet\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("sent");
        let mut answer = BufReader::new(stream);
        let mut first = String::new();
        answer.read_line(&mut first).expect("a line");
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
        let mut rest = String::new();
        answer.read_to_string(&mut rest).expect("a text");
        let (_, body) = rest.split_once("\r\n\r\n").expect("a body");
        (status.expect("a status"), body.to_owned())
    }
}

fn run(script: &Path, words: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.args(words).arg(script);
    command.output().expect("a shell")
}

/// Requirement: R35
#[test]
fn join_scripts_are_served_only_where_they_are_switched_on() {
    let off = Program::start(r#""stuckSeconds": 60"#);
    assert!(
        TcpStream::connect(off.join).is_err(),
        "no port while it is off"
    );
    drop(off);

    let on = Program::start(JOIN);
    for (channel, folder) in [
        ("stable", "https://127.0.0.1:1/"),
        ("staging", "https://127.0.0.1:2/"),
    ] {
        let (status, script) = on.asked(&format!("GET /v1/join/{channel}"));
        assert_eq!(status, 200, "{script}");
        assert!(script.starts_with("#!/bin/sh\n"), "{script}");
        let file = on.folder.path().join("join.sh");
        std::fs::write(&file, &script).expect("written");
        let read = run(&file, &["-n"]);
        assert!(read.status.success(), "{read:?}");
        // It takes its own values: nobody serves that channel, or nobody may install.
        let ran = run(&file, &[]);
        let text = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(69), "{text}");
        let url = format!("failed to read {folder}v1/{channel}/version");
        assert!(
            text.contains(&url) || text.contains("root is needed"),
            "{text}"
        );
    }
    for (line, expected) in [
        ("GET /v1/join/beta", 404),
        ("GET /v1/join/stable/rpm", 404),
        ("GET /v1/join/..%2f..%2fetc", 404),
        ("GET /v1/state", 404),
        ("GET /metrics", 404),
        ("POST /v1/join/stable", 405),
        ("PUT /v1/join/stable", 405),
        ("DELETE /v1/join/stable", 405),
        ("HEAD /v1/join/stable", 200),
    ] {
        assert_eq!(on.asked(line).0, expected, "{line}");
    }
}
