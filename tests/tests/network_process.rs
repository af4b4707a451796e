//! The network process of a guest ends, or its guest stands still under connection attempts.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::Path;
use std::time::Duration;

use bellows_tests::guest::Guest;
use bellows_tests::guest_or_skip;
use bellows_tests::patience::wait_for;
use bellows_tests::qmp::Qmp;
use bellows_tests::site::{BOOT_PATIENCE, Site, postgres_vm};
use protocol::vm::VmPhase;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
/// Port of a service in the guest.
const POSTGRES: u16 = 5432;
/// More connection attempts than the kernel's own measure of waiting frames holds.
const ATTEMPTS: usize = 500;

/// Process id of the guest's network process.
fn network_process(rundir: &Path) -> i32 {
    let record = std::fs::read_to_string(rundir.join("runner.json")).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    let pid = record["passt"]["pid"].as_i64();
    i32::try_from(pid.expect("a guest behind passt")).unwrap()
}

/// Requirement: W2. The guest stays reachable. A new network process replaces an old one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guest_is_reached_after_its_network_process_was_killed_and_after_it_stood_still() {
    if !guest_or_skip(
        "guest_is_reached_after_its_network_process_was_killed_and_after_it_stood_still",
    ) {
        return;
    }
    let site = Site::fresh().await.unwrap();
    let vm = postgres_vm("pg", (1000, 1000, 1000), (1, 1, 1), false);
    site.create(&vm).await.unwrap();
    let vm = site
        .wait_vm("pg", "phase Running", BOOT_PATIENCE, |vm| {
            let status = vm.status.as_ref();
            status.is_some_and(|status| status.phase == VmPhase::Running)
        })
        .await
        .unwrap();
    let address: Ipv4Addr = vm.status.unwrap().pod_ip.parse().unwrap();
    let guest = Guest::new(address.into()).unwrap();
    guest.answers(PATIENCE).await.unwrap();
    let rundir = site.rundir("pg").await.unwrap();

    let mut killed = Vec::new();
    for _ in 0..2 {
        let pid = network_process(&rundir);
        assert!(!killed.contains(&pid), "{pid} was killed before");
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGKILL,
        )
        .unwrap();
        killed.push(pid);
        wait_for("another network process", PATIENCE, || async {
            let pid = network_process(&rundir);
            (!killed.contains(&pid))
                .then_some(())
                .ok_or(pid.to_string())
        })
        .await
        .unwrap();
        guest.answers(PATIENCE).await.unwrap();
    }

    let mut qmp = Qmp::connect(&rundir.join("qmp-manual.sock")).await.unwrap();
    qmp.execute("stop", json!({})).await.unwrap();
    for _ in 0..ATTEMPTS {
        drop(TcpStream::connect(SocketAddrV4::new(address, POSTGRES)).unwrap());
    }
    qmp.execute("cont", json!({})).await.unwrap();
    guest.answers(PATIENCE).await.unwrap();
}
