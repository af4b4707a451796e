//! Attacker: root inside a guest. It has its devices, its network, its monitor and its metrics
//! page.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "guest/daemon.rs"]
mod daemon;
#[path = "guest/stand_in.rs"]
mod stand_in;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use bellows_tests::attacks::{Outcome, Report};
use bellows_tests::kubeconfig::{client_of, install_crypto};
use bellows_tests::outside::{self, Outside};
use bellows_tests::patience::wait_for;
use bellows_tests::site::{BOOT_PATIENCE, Site, postgres_vm};
use bellows_tests::vms::Vms;
use bellows_tests::{bellows_bin, guest_or_skip};
use protocol::vm::VmPhase;

/// Response of the host's service.
const SECRET: &str = "host-secret-4711";
/// Response of the outside service.
const SAID: &str = "outside-0815";
/// The guest's gateway.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// A service of the host that sends [`SECRET`] while the test runs.
fn host_service(ip: Ipv4Addr) -> SocketAddrV4 {
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.write_all(SECRET.as_bytes());
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read(&mut [0; 64]);
        }
    });
    SocketAddrV4::new(ip, port)
}

async fn boot(site: &Site, name: &str) -> Ipv4Addr {
    let object = postgres_vm(name, (1000, 1000, 1000), (1, 1, 1), false);
    site.create(&object).await.unwrap();
    let running = |vm: &protocol::vm::VirtualMachine| {
        vm.status
            .as_ref()
            .is_some_and(|status| status.phase == VmPhase::Running)
    };
    let vm = site
        .wait_vm(name, "phase Running", BOOT_PATIENCE, running)
        .await
        .unwrap();
    vm.status.unwrap().pod_ip.parse().unwrap()
}

/// Loopback addresses leave by the guest's device, as only root in it can bring about.
const TAKE_LOOPBACK_OUT: &str = "\
for conf in /proc/sys/net/ipv4/conf/*/route_localnet; do echo 1 > $conf; done; \
ip route del local 127.0.0.0/8 dev lo table local; ip addr del 127.0.0.1/8 dev lo; \
ip route del local 127.0.0.0/8 table local; ip route replace 127.0.0.0/8 via 10.0.2.2 dev eth0; \
ip route get 127.0.0.1 2>&1 | head -n 1";

/// Output of the guest for a TCP address. It contains "connected" if the guest's kernel had a
/// connection, or its program ended as after one.
async fn dial(site: &Site, at: SocketAddrV4, says: &str) -> String {
    let (ip, port) = (at.ip(), at.port());
    // The address as `/proc/net/tcp` spells it. State 02 is a connection that no peer has accepted.
    let in_kernel = format!("{:08X}:{port:04X}", u32::from_le_bytes(ip.octets()));
    let line = format!(
        "((printf '{says}'; sleep 3) | timeout 5 nc {ip} {port} && echo connected) > /tmp/heard 2>&1 & \
         for n in 1 2 3 4 5 6 7 8; do sleep 0.25; \
         grep ' {in_kernel} ' /proc/net/tcp | grep -v ' {in_kernel} 02 ' > /dev/null && echo connected && break; \
         done; wait; cat /tmp/heard"
    );
    site.ssh("attacker", &line, None).await.unwrap()
}

/// An address counts as reached if it accepts a connection.
fn judge(heard: &str) -> Outcome {
    let said: String = heard.trim().chars().take(60).collect();
    if heard.contains("connected") || heard.contains(SECRET) {
        Outcome::Succeeded(said)
    } else if said.is_empty() {
        Outcome::Refused("no answer".to_owned())
    } else {
        Outcome::Refused(said)
    }
}

/// Sends datagrams from the guest to an address of the host, which counts them.
async fn send_datagrams(site: &Site, ip: Ipv4Addr) -> (SocketAddrV4, Outcome) {
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let at = SocketAddrV4::new(ip, socket.local_addr().unwrap().port());
    let line = format!(
        "timeout 5 tftp -g -r x -l /tmp/x {ip} {} 2>&1; true",
        at.port()
    );
    let said = site.ssh("attacker", &line, None).await.unwrap();
    let outcome = match socket.recv(&mut [0; 64]) {
        Ok(bytes) => Outcome::Succeeded(format!("{bytes} bytes arrived")),
        Err(_) => Outcome::Refused(format!("nothing arrived {}", said.trim())),
    };
    (at, outcome)
}

/// Requirement: W2, S1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guest_reaches_the_outside_and_nothing_of_its_host() {
    if !guest_or_skip("guest_reaches_the_outside_and_nothing_of_its_host") {
        return;
    }
    let outside = Outside::new(SAID).unwrap();
    let site = Site::fresh().await.unwrap();
    let own = boot(&site, "attacker").await;
    let block = own.octets()[1];
    let at = |x, y, port| SocketAddrV4::new(Ipv4Addr::new(127, block, x, y), port);
    let local = host_service(Ipv4Addr::LOCALHOST);
    let gateway = SocketAddrV4::new(GATEWAY, local.port());
    let metadata = SocketAddrV4::new(Ipv4Addr::new(169, 254, 169, 254), 80);
    let another = host_service(Ipv4Addr::new(127, block, 200, 7));
    let targets = [
        (local, "a service on the host's 127.0.0.1"),
        (gateway, "the same by the gateway's address"),
        (another, "a published port of another guest"),
        (
            host_service(outside::HOST),
            "a service on the host's own address",
        ),
        (at(0, 1, 6443), "the API server"),
        (at(0, 2, 10299), "the permit server"),
        (at(0, 3, 9100), "the agent's metrics"),
        (SocketAddrV4::new(own, 25183), "its runner's port"),
        (SocketAddrV4::new(own, 25184), "its own daemon, by the host"),
        (metadata, "a cloud's metadata"),
    ];
    let taken = site.ssh("attacker", TAKE_LOOPBACK_OUT, None).await.unwrap();
    assert!(
        taken.contains("eth0"),
        "loopback addresses leave the guest: {taken}"
    );
    let mut report = Report::new("root in a guest");
    for (target, what) in targets {
        let heard = dial(&site, target, "GET / HTTP/1.0\\r\\n\\r\\n").await;
        report.record("W2", target.to_string(), what, judge(&heard));
    }
    for ip in [Ipv4Addr::LOCALHOST, outside::HOST] {
        let (at, outcome) = send_datagrams(&site, ip).await;
        report.record("W2", at.to_string(), "datagrams to the host", outcome);
    }
    let there = SocketAddrV4::new(outside::OTHER, outside::HTTP_PORT);
    let heard = dial(&site, there, "GET /said HTTP/1.0\\r\\n\\r\\n").await;
    assert!(
        heard.contains("connected") && heard.contains(SAID),
        "the outside at {there} answers: {heard}"
    );
    drop(outside);
    report.finish();
}

/// Processes of a detached `bellows up`. They end with the test.
struct Detached(std::path::PathBuf);

impl Drop for Detached {
    fn drop(&mut self) {
        let _ = Command::new(bellows_bin())
            .args(["down", "--stop-vms", "--state-dir"])
            .arg(&self.0)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

/// Processes that have the state directory on their command line, with that.
fn processes_of(state: &Path) -> Vec<(procfs::process::Process, String)> {
    let state = state.display().to_string();
    let all = procfs::process::all_processes().unwrap().flatten();
    all.filter_map(|process| {
        let line = process.cmdline().ok()?.join(" ");
        line.contains(&state).then_some((process, line))
    })
    .collect()
}

/// Files that a process has open. A number alone tells nothing: programs reuse them.
fn files_at(process: &procfs::process::Process) -> impl Iterator<Item = PathBuf> {
    let open = process.fd().unwrap().flatten();
    open.filter_map(|one| match one.target {
        procfs::process::FDTarget::Path(path) => Some(path),
        _ => None,
    })
}

/// Control: a process that inherits the file is seen to hold it.
fn assert_search_finds(file: &Path) {
    let mut shell = Command::new("bash")
        .args(["-c", "exec 77<\"$0\"; echo; read"])
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = shell.stdout.as_mut().unwrap();
    output.read_exact(&mut [0]).unwrap();
    let pid = i32::try_from(shell.id()).unwrap();
    let holder = procfs::process::Process::new(pid).unwrap();
    let is_found = files_at(&holder).any(|path| path == file);
    shell.kill().unwrap();
    shell.wait().unwrap();
    assert!(is_found, "the search misses an inherited file");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_the_caller_are_not_inherited_by_lasting_processes() {
    if !guest_or_skip("files_of_the_caller_are_not_inherited_by_lasting_processes") {
        return;
    }
    install_crypto();
    let (dir, caller) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let state = dir.path().to_owned();
    let _detached = Detached(state.clone());
    let kept = caller.path().canonicalize().unwrap().join("open");
    std::fs::write(&kept, "of the caller").unwrap();
    let script = "exec 77<open; exec \"$0\" up --detach --state-dir \"$1\"";
    let up = Command::new("bash")
        .args(["-c", script])
        .arg(bellows_bin())
        .arg(&state)
        .current_dir(caller.path())
        .env("SECRET", "of-the-caller")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        up.status.success(),
        "{}",
        String::from_utf8_lossy(&up.stderr)
    );
    assert_search_finds(&kept);
    let vms = Vms::new(client_of(&state.join("kubeconfig")).await.unwrap());
    let object = postgres_vm("attacker", (1000, 1000, 1000), (1, 1, 1), false);
    vms.create(&object).await.unwrap();
    let kinds = ["up", "runner run", "qemu-system-x86_64", "passt"];
    let found = wait_for("all processes of a VM", BOOT_PATIENCE, || async {
        let found = processes_of(&state);
        let has = |kind: &str| found.iter().any(|(_, line)| line.contains(kind));
        match kinds.iter().find(|kind| !has(kind)) {
            None => Ok(found),
            Some(kind) => Err(format!("no process of {kind}")),
        }
    })
    .await
    .unwrap();
    let mut report = Report::new("a program started by the same shell");
    for (process, line) in found {
        let Some(kind) = kinds.iter().rev().find(|kind| line.contains(*kind)) else {
            continue;
        };
        let held = |has: bool, what: &str| {
            if has {
                Outcome::Succeeded(what.to_owned())
            } else {
                Outcome::Refused("not there".to_owned())
            }
        };
        let pid = process.pid();
        let file = files_at(&process).any(|path| path == kept);
        report.record("W11", *kind, "inherits a file", held(file, "the file"));
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
        let secret = String::from_utf8_lossy(&environ).contains("of-the-caller");
        report.record("W11", *kind, "inherits a variable", held(secret, "SECRET"));
        let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
        let stays = cwd == std::fs::canonicalize(caller.path()).unwrap();
        report.record(
            "W11",
            *kind,
            "stays in its directory",
            held(stays, "the directory"),
        );
    }
    report.finish();
}
