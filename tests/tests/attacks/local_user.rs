//! Attacker: a local user without groups or capabilities. It has the loopback of the machine and
//! its file system.

#[path = "local_user/permits.rs"]
mod permits;
#[path = "local_user/postgres.rs"]
mod postgres;

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use bellows_tests::attacks::{Outcome, Report};
use bellows_tests::guest_or_skip;
use bellows_tests::local_user::{as_local_user, listening_in, open, tree};
use bellows_tests::site::{BOOT_PATIENCE, Site, postgres_vm};
use protocol::vm::{VirtualMachine, VmPhase};
use serde_json::Value;
use test_network::http::Request;

const VM: &str = "target";
/// Longest wait for a peer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Changes that a local user attempts: request and body.
const CHANGES: [(&str, &str); 8] = [
    (
        "PUT /files/etc/attack",
        r#"{"owned":{"data":"YnkgYSBsb2NhbCB1c2Vy"}}"#,
    ),
    ("PUT /cpu", "1000"),
    ("POST /cpu_change", r#"{"VCPUs":"1000m"}"#),
    (
        "PUT /v1/size",
        r#"{"cpu":1000,"memory":1073741824,"trace":{"vm":"default/target","revision":1}}"#,
    ),
    ("POST /v1/stop", r#"{"grace_ms":0}"#),
    ("PUT /v1/ahead", r#"{"cpu":1000}"#),
    ("GET /v1/state", ""),
    ("GET /files/etc", ""),
];

fn running(vm: &VirtualMachine) -> bool {
    let status = vm.status.as_ref();
    status.is_some_and(|status| status.phase == VmPhase::Running)
}

/// Name of a listener of an instance, by the last two bytes of the address and the port. `None` if
/// no list names it.
fn name_of(at: SocketAddr) -> Option<&'static str> {
    let IpAddr::V4(ip) = at.ip() else { return None };
    let [_, _, high, low] = ip.octets();
    Some(match ([high, low], at.port()) {
        ([0, 1], 6443) => "API, by TLS and token",
        ([0, 2], 10299) => "scheduler's permits",
        ([0, 2], 9100) => "scheduler's metrics",
        ([0, 3], 9100 | 9101) => "agent's metrics",
        ([0, 3], 10300) => "agent's state",
        ([0, 1], 8080) => "metrics of the process",
        ([0, _], _) => return None,
        (_, 25183) => "runner's port",
        (_, 25184) => "guest's daemon",
        (_, 22) => "guest's sshd",
        (_, 5432) => "guest's PostgreSQL",
        (_, 9100) => "guest's metrics",
        (_, 10301) => "guest's monitor",
        _ => return None,
    })
}

/// Outcome of a request. Any success is the attacker's.
fn outcome(answer: std::io::Result<String>) -> Outcome {
    match answer {
        Err(error) => Outcome::Refused(error.to_string()),
        Ok(text) => {
            let line: String = text
                .lines()
                .next()
                .unwrap_or_default()
                .chars()
                .take(60)
                .collect();
            if line.starts_with("HTTP/1.1 2") {
                Outcome::Succeeded(line)
            } else {
                Outcome::Refused(line)
            }
        }
    }
}

fn attack_sockets(report: &mut Report, block: u8) {
    let sockets = listening_in(block).expect("the kernel lists sockets");
    let tried = as_local_user(|| {
        let each = sockets.iter().flat_map(|at| {
            CHANGES.iter().flat_map(|(line, body)| {
                ["", "Authorization: Bearer guessed\r\n"].map(|head| {
                    let how = format!("{line} {}", if head.is_empty() { "" } else { "(guess)" });
                    let head = &format!("Content-Type: application/json\r\n{head}");
                    let request = Request { line, head, body };
                    (*at, how, outcome(request.send(*at, PATIENCE)))
                })
            })
        });
        each.collect::<Vec<_>>()
    });
    for at in sockets {
        if name_of(at).is_none() {
            let what = "it listens, and no list names it".to_owned();
            report.record("W4", at.to_string(), "connect", Outcome::Succeeded(what));
        }
    }
    for (at, how, outcome) in tried.expect("a local user") {
        let wall = if at.port() == 25184 { "W3" } else { "W4" };
        let target = format!("{at} {}", name_of(at).unwrap_or("?"));
        report.record(wall, target, how, outcome);
    }
}

fn attack_files(report: &mut Report, state: &Path) {
    let paths = tree(state).expect("root reads it");
    let tried = as_local_user(|| {
        let each = paths.iter().map(|path| (path, open(path)));
        each.map(|(path, got)| (path.clone(), got.map_err(|error| error.to_string())))
            .collect::<Vec<_>>()
    });
    for (path, got) in tried.expect("a local user") {
        // Written by the test kit, not by bellows. The names in the directory itself are no secret.
        if path == state || path == state.join("up.log") {
            continue;
        }
        let outcome = match got {
            Ok(what) => Outcome::Succeeded(what.to_owned()),
            Err(error) => Outcome::Refused(error),
        };
        let shown = path
            .strip_prefix(state)
            .unwrap_or(&path)
            .display()
            .to_string();
        report.record("W4", shown, "open", outcome);
    }
}

/// Requirement: W3, W4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_user_changes_nothing_by_any_socket_or_file_of_an_instance() {
    if !guest_or_skip("local_user_changes_nothing_by_any_socket_or_file_of_an_instance") {
        return;
    }
    // A state directory in a place that everybody may enter, as /var/lib is.
    let place = tempfile::Builder::new()
        .prefix("bellows-test-")
        .tempdir()
        .expect("a directory");
    let state = place.path().join("state");
    std::fs::create_dir(&state).expect("a directory");
    for dir in [place.path(), &state] {
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir, open).expect("its mode");
    }
    let site = Site::start(&state).await.expect("an instance");
    site.create(&postgres_vm(VM, (1000, 1000, 2000), (1, 1, 2), true))
        .await
        .expect("a VM");
    site.wait_vm(VM, "phase Running", BOOT_PATIENCE, running)
        .await
        .expect("it boots");
    let instance = std::fs::read(state.join("instance.json")).expect("readable");
    let instance: Value = serde_json::from_slice(&instance).expect("JSON");
    let block = instance["block"]
        .as_u64()
        .and_then(|block| u8::try_from(block).ok());

    let mut report = Report::new("local user");
    attack_sockets(&mut report, block.expect("a block"));
    attack_files(&mut report, &state);
    let targets: Vec<&str> = report
        .attempts()
        .iter()
        .map(|one| one.target.as_str())
        .collect();
    for part in [
        "guest's daemon",
        "runner's port",
        "control.sock",
        "guestd.key",
    ] {
        assert!(
            targets.iter().any(|target| target.contains(part)),
            "{part} was attacked"
        );
    }
    report.finish();
}
