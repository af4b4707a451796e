//! The API's store is lost, replaced or set back while real guests run. `attacks/operator.rs` plays the same with a stand-in.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::time::Duration;

use bellows_tests::guest::Guest;
use bellows_tests::guest_or_skip;
use bellows_tests::patience::wait_for;
use bellows_tests::site::{BOOT_PATIENCE, Site, postgres_vm};
use protocol::vm::{VirtualMachine, VmPhase};

const PATIENCE: Duration = Duration::from_secs(90);
/// Longer than the node driver needs to end a guest whose pod is gone.
const LONG_ENOUGH: Duration = Duration::from_secs(10);
/// Two, because a core is translated at a time here; the store does not know how many there are.
const GUESTS: [&str; 2] = ["one", "two"];

fn running(vm: &VirtualMachine) -> bool {
    let phase = vm.status.as_ref().map(|status| status.phase);
    phase == Some(VmPhase::Running)
}

async fn boot(site: &Site, name: &str) -> Guest {
    let vm = postgres_vm(name, (1000, 1000, 2000), (1, 1, 2), false);
    site.create(&vm).await.unwrap();
    let vm = site
        .wait_vm(name, "phase Running", BOOT_PATIENCE, running)
        .await
        .unwrap();
    let guest = Guest::new(vm.status.unwrap().pod_ip.parse().unwrap()).unwrap();
    wait_for("an answer of the daemon", BOOT_PATIENCE, || async {
        guest.state().await.map_err(|error| format!("{error:#}"))
    })
    .await
    .unwrap();
    guest
}

/// The boot id of each guest, which must be reachable.
async fn boot_ids(guests: &[Guest]) -> Vec<String> {
    let mut ids = Vec::new();
    for guest in guests {
        ids.push(guest.state().await.unwrap().boot_id);
    }
    ids
}

fn disks(state: &Path) -> usize {
    let dirs = std::fs::read_dir(state.join("vms")).unwrap().flatten();
    let files = dirs.flat_map(|dir| std::fs::read_dir(dir.path()).unwrap().flatten());
    files
        .filter(|file| file.file_name() == "root.qcow2")
        .count()
}

async fn adopts_all(site: &Site) {
    site.bellows(&["adopt"]).await.unwrap();
    for name in GUESTS {
        let vm = site
            .wait_vm(name, "phase Running", PATIENCE, running)
            .await
            .unwrap();
        assert_eq!(vm.status.unwrap().restart_count, 0);
    }
}

/// Requirement: S7. The store is removed, and an older copy is put back. The guests run on, their disks are there, and one
/// command brings their objects back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guests_outlive_the_loss_of_the_store() {
    if !guest_or_skip("guests_outlive_the_loss_of_the_store") {
        return;
    }
    let mut site = Site::fresh().await.unwrap();
    let state = site.state_dir().to_owned();
    let copy = state.join("older.redb");
    let older = copy.to_str().unwrap();
    site.bellows(&["backup", "--store", older]).await.unwrap();
    let mut guests = Vec::new();
    for name in GUESTS {
        guests.push(boot(&site, name).await);
    }
    let before = boot_ids(&guests).await;
    // The objects of a guest are saved a moment after its pod was started.
    wait_for("saved objects", PATIENCE, || async {
        let count = std::fs::read_dir(state.join("objects")).map_or(0, Iterator::count);
        (count == GUESTS.len())
            .then_some(())
            .ok_or_else(|| format!("{count} directories"))
    })
    .await
    .unwrap();
    let disks_before = disks(&state);
    assert!(disks_before >= GUESTS.len());

    site.kill_up().await.unwrap();
    std::fs::rename(state.join("api.redb"), state.join("api.redb.away")).unwrap();
    site.restart_up().await.unwrap();
    tokio::time::sleep(LONG_ENOUGH).await;
    assert_eq!(boot_ids(&guests).await, before);
    assert_eq!(disks(&state), disks_before);
    adopts_all(&site).await;
    assert_eq!(boot_ids(&guests).await, before);
    // The key that was let into the guest came back with the VM.
    site.ssh(GUESTS[0], "true", None).await.unwrap();

    site.kill_up().await.unwrap();
    site.bellows(&["restore", "--store", older]).await.unwrap();
    site.restart_up().await.unwrap();
    tokio::time::sleep(LONG_ENOUGH).await;
    assert_eq!(boot_ids(&guests).await, before);
    assert_eq!(disks(&state), disks_before);
    adopts_all(&site).await;
    assert_eq!(boot_ids(&guests).await, before);
    // It is a VM like any other again: it can be resized.
    site.patch_size(GUESTS[0], 2000, 2, 1).await.unwrap();
    guests[0]
        .wait("2 CPUs", PATIENCE, |state| state.cpus_online == 2)
        .await
        .unwrap();
}

/// Requirement: D6. A runner that stands still is reported in the VM's condition within 10 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runner_that_stands_still_shows_in_the_condition_within_ten_seconds() {
    if !guest_or_skip("runner_that_stands_still_shows_in_the_condition_within_ten_seconds") {
        return;
    }
    let site = Site::fresh().await.unwrap();
    boot(&site, "still").await;
    // The first command after "runs" finds an SSH server.
    site.ssh("still", "true", None).await.unwrap();
    let dir = site.rundir("still").await.unwrap();
    let runner = runner_of(&dir);
    nix::sys::signal::kill(runner, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let began = std::time::Instant::now();
    let reported = site
        .wait_vm("still", "a word about the runner", PATIENCE, is_reported)
        .await;
    let took = began.elapsed();
    nix::sys::signal::kill(runner, nix::sys::signal::Signal::SIGCONT).unwrap();
    reported.unwrap();
    assert!(took < Duration::from_secs(10), "{took:?}");
    site.wait_vm("still", "no word about it", PATIENCE, |vm| !is_reported(vm))
        .await
        .unwrap();
}

fn is_reported(vm: &VirtualMachine) -> bool {
    let status = serde_json::to_string(&vm.status).unwrap();
    status.contains("runner") && status.contains("does not answer")
}

/// The process that serves a runner's directory.
fn runner_of(dir: &Path) -> nix::unistd::Pid {
    let processes = procfs::process::all_processes().unwrap().flatten();
    let of_dir = |process: &procfs::process::Process| {
        let args = process.cmdline().unwrap_or_default();
        let names_dir = args.iter().any(|arg| Path::new(arg) == dir);
        names_dir && args.iter().any(|arg| arg == "--rundir")
    };
    let runner = processes.into_iter().find(of_dir);
    nix::unistd::Pid::from_raw(runner.expect("a runner").pid())
}
