//! Attempts of a program that a guest placed instead of QEMU, with QEMU's confinement.

use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command};

use bellows_tests::attacks::{Outcome, Report};
use bellows_tests::guest_or_skip;
use bellows_tests::site::Site;
use bellows_tests::stand_in::{Attempt, CALLS, REFUSED};

use super::{boot, host_service};

/// The program, in `src/bin/qemu_stand_in`.
const PROGRAM: &str = "qemu-stand-in";

/// Tries something in the place of a QEMU, in a process of its own.
fn tries(qemu: u32, attempt: &Attempt) -> Outcome {
    let output = Command::new(bellows_tests::program(PROGRAM))
        .arg(qemu.to_string())
        .arg(serde_json::to_string(attempt).unwrap())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match (output.status.code(), output.status.signal()) {
        (Some(0), _) => Outcome::Succeeded("done".to_owned()),
        (Some(code), _) if code == i32::from(REFUSED) => Outcome::Refused(said),
        (_, Some(signal)) if signal == nix::libc::SIGSYS => {
            Outcome::Refused("ended by the kernel".to_owned())
        }
        _ => panic!("{attempt:?}: {output:?}"),
    }
}

/// A process of root that ends with the test.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn at_files(site: &Site, rundir: &Path, other: &Path) -> Vec<Attempt> {
    let state = site.state_dir();
    let create = [
        "/etc/cron.d/bellows-test".into(),
        "/root/bellows-test".into(),
        "/tmp/bellows-test".into(),
        "/bellows-test".into(),
        state.join("bellows-test"),
    ];
    let read = [
        "/etc/passwd".into(),
        "/proc/1/status".into(),
        "/dev/mem".into(),
        "/dev/kmsg".into(),
        "/dev/fuse".into(),
        "/dev/userfaultfd".into(),
        state.join("kubeconfig"),
        state.join("instance.json"),
        rundir.join("config.json"),
        rundir.join("runner.json"),
        other.join("root.qcow2"),
        std::env::current_exe().unwrap(),
    ];
    let create = create.into_iter().map(Attempt::Create);
    let read = read.into_iter().map(Attempt::Read);
    let write = [Attempt::Write(other.join("root.qcow2"))];
    create.chain(read).chain(write).collect()
}

fn at_sockets_and_processes(site: &Site, rundir: &Path, qemu: u32, victim: i32) -> Vec<Attempt> {
    let host = host_service(Ipv4Addr::LOCALHOST).to_string();
    let block = site.ready["block"].as_u64().unwrap();
    let program = std::fs::read_link(format!("/proc/{qemu}/exe")).unwrap();
    vec![
        Attempt::Connect(host),
        Attempt::Connect(format!("127.{block}.0.1:6443")),
        Attempt::ConnectUnix(rundir.join("control.sock")),
        Attempt::ConnectUnix(site.state_dir().join("admin.sock")),
        Attempt::Execute(program),
        Attempt::Trace(victim),
        Attempt::Signal(victim),
        Attempt::ReadMemory(victim),
        Attempt::TakeFile(victim),
        Attempt::EnterNamespaces(victim),
    ]
}

/// A file in its runner's directory may lie among its sockets only.
fn leaves_a_file(qemu: u32, rundir: &Path) -> Outcome {
    let path = rundir.join("bellows-test");
    let made = tries(qemu, &Attempt::Leave(path.clone()));
    assert!(matches!(made, Outcome::Succeeded(_)), "{made:?}");
    match std::fs::read(&path) {
        Ok(_) => Outcome::Succeeded("it is there".to_owned()),
        Err(error) => Outcome::Refused(error.to_string()),
    }
}

fn refused_if(holds: bool, why: String) -> Outcome {
    if holds {
        Outcome::Refused(why)
    } else {
        Outcome::Succeeded(why)
    }
}

/// Requirement: W1, S3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stand_in_for_qemu_gets_nothing_of_the_machine() {
    if !guest_or_skip("stand_in_for_qemu_gets_nothing_of_the_machine") {
        return;
    }
    let site = Site::fresh().await.unwrap();
    boot(&site, "attacker").await;
    let qemu = site.runner("attacker").await.unwrap().qemu_pid.unwrap();
    let rundir = site.rundir("attacker").await.unwrap();
    // The disk of a VM beside it.
    let other = site.state_dir().join("vms/default_other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("root.qcow2"), "a disk").unwrap();
    let victim = Victim(Command::new("sleep").arg("60").spawn().unwrap());
    let mut attempts = at_files(&site, &rundir, &other);
    let pid = victim.0.id().cast_signed();
    attempts.extend(at_sockets_and_processes(&site, &rundir, qemu, pid));
    attempts.extend(CALLS.map(|name| Attempt::Call(name.to_owned())));
    let mut report = Report::new("a program in QEMU's place");
    for attempt in attempts {
        let outcome = tries(qemu, &attempt);
        report.record("W1", attempt.target(), attempt.how(), outcome);
    }
    let left = leaves_a_file(qemu, &rundir);
    report.record("W1", "its directory", "make a file for its runner", left);
    let process = procfs::process::Process::new(qemu.cast_signed()).unwrap();
    let status = process.status().unwrap();
    let capabilities = status.capeff | status.capprm | status.capamb.unwrap_or(0);
    let has_none = refused_if(capabilities == 0, format!("{capabilities:x}"));
    report.record("W1", "capabilities", "have one", has_none);
    let is_filtered = status.seccomp == Some(2) && status.nonewprivs == Some(1);
    let filtered = refused_if(is_filtered, format!("seccomp {:?}", status.seccomp));
    report.record("W1", "seccomp", "be without", filtered);
    report.finish();
}
