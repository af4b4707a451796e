//! The API's store is lost, replaced or set back while real guests run. `attacks/operator.rs` plays
//! the same with a stand-in.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bellows_tests::guest::Guest;
use bellows_tests::guest_or_skip;
use bellows_tests::patience::wait_for;
use bellows_tests::site::{BOOT_PATIENCE, Site, postgres_vm};
use protocol::vm::{VirtualMachine, VmPhase};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(90);
/// Longer than the node driver needs to end a guest whose pod is gone.
const LONG_ENOUGH: Duration = Duration::from_secs(10);
const GUESTS: [&str; 5] = ["one", "two", "three", "four", "five"];
/// Guests that boot concurrently: one per core.
const AT_A_TIME: usize = 2;

fn running(vm: &VirtualMachine) -> bool {
    let phase = vm.status.as_ref().map(|status| status.phase);
    phase == Some(VmPhase::Running)
}

/// A guest with as much of the machine as is needed for several of them.
async fn create(site: &Site, name: &str) {
    let mut vm = postgres_vm(name, (1000, 1000, 2000), (1, 1, 2), false);
    vm["spec"]["guest"]["memorySlotSize"] = json!("512Mi");
    vm["spec"]["overcommit"] = json!({"cpu": 8});
    site.create(&vm).await.unwrap();
}

async fn booted(site: &Site, name: &str) -> Guest {
    let vm = site
        .wait_vm(name, "phase Running", BOOT_PATIENCE, running)
        .await
        .unwrap();
    let guest = Guest::new(vm.status.unwrap().pod_ip.parse().unwrap()).unwrap();
    guest.answers(BOOT_PATIENCE).await.unwrap();
    guest
}

async fn boot_all(site: &Site) -> Vec<Guest> {
    let mut guests = Vec::new();
    for names in GUESTS.chunks(AT_A_TIME) {
        for name in names {
            create(site, name).await;
        }
        for name in names {
            guests.push(booted(site, name).await);
        }
    }
    guests
}

/// The boot id of each guest, which must be reachable.
async fn boot_ids(guests: &[Guest]) -> Vec<String> {
    let mut ids = Vec::new();
    for guest in guests {
        ids.push(guest.state().await.unwrap().boot_id);
    }
    ids
}

/// Directories that have a root disk.
fn disks(state: &Path) -> BTreeSet<PathBuf> {
    let dirs = std::fs::read_dir(state.join("vms")).unwrap().flatten();
    let dirs = dirs.map(|dir| dir.path());
    dirs.filter(|dir| dir.join("root.qcow2").is_file())
        .collect()
}

/// The objects of a guest are saved a moment after its pod was started.
async fn saved_objects(state: &Path) {
    wait_for("saved objects", PATIENCE, || async {
        let count = std::fs::read_dir(state.join("objects")).map_or(0, Iterator::count);
        (count == GUESTS.len())
            .then_some(())
            .ok_or_else(|| format!("{count} directories"))
    })
    .await
    .unwrap();
}

/// State that must survive each fault.
struct Before {
    boot_ids: Vec<String>,
    disks: BTreeSet<PathBuf>,
}

/// Starts `bellows up` after a fault. Every guest runs on and every disk is there, and one command
/// brings the objects of all guests back.
async fn recovers(site: &mut Site, guests: &[Guest], before: &Before) {
    site.restart_up().await.unwrap();
    tokio::time::sleep(LONG_ENOUGH).await;
    assert_eq!(boot_ids(guests).await, before.boot_ids);
    assert_eq!(disks(site.state_dir()), before.disks);
    for name in GUESTS {
        assert!(site.vm(name).await.is_err(), "the store still has {name}");
    }
    site.bellows(&["adopt"]).await.unwrap();
    for name in GUESTS {
        let vm = site
            .wait_vm(name, "phase Running", PATIENCE, running)
            .await
            .unwrap();
        assert_eq!(vm.status.unwrap().restart_count, 0);
    }
    assert_eq!(boot_ids(guests).await, before.boot_ids);
    assert_eq!(disks(site.state_dir()), before.disks);
}

/// Snapshot that the error about a damaged store suggests.
async fn snapshot_that_is_advised(site: &mut Site) -> String {
    let error = format!("{:#}", site.restart_up().await.unwrap_err());
    let words = error.split_whitespace();
    let mut words = words.skip_while(|word| *word != "restore");
    words.nth(2).expect("a file is named").to_owned()
}

/// Requirement: S7. The store is removed, set back to an older copy, and damaged, one after the
/// other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_guests_outlive_the_loss_the_age_and_the_damage_of_the_store() {
    if !guest_or_skip("five_guests_outlive_the_loss_the_age_and_the_damage_of_the_store") {
        return;
    }
    let mut site = Site::fresh().await.unwrap();
    let state = site.state_dir().to_owned();
    let (store, copy) = (state.join("api.redb"), state.join("older.redb"));
    let older = copy.to_str().unwrap();
    site.bellows(&["backup", "--store", older]).await.unwrap();
    let guests = boot_all(&site).await;
    saved_objects(&state).await;
    let before = Before {
        boot_ids: boot_ids(&guests).await,
        disks: disks(&state),
    };
    assert_eq!(before.disks.len(), GUESTS.len());

    site.kill_up().await.unwrap();
    std::fs::rename(&store, state.join("api.redb.away")).unwrap();
    recovers(&mut site, &guests, &before).await;
    // The key that was let into the guest came back with the VM.
    site.ssh(GUESTS[0], "true", None).await.unwrap();

    site.kill_up().await.unwrap();
    site.bellows(&["restore", "--store", older]).await.unwrap();
    recovers(&mut site, &guests, &before).await;

    site.kill_up().await.unwrap();
    std::fs::write(&store, "not a store").unwrap();
    let advised = snapshot_that_is_advised(&mut site).await;
    let restore = ["restore", "--store", advised.as_str()];
    site.bellows(&restore).await.unwrap();
    recovers(&mut site, &guests, &before).await;
    // The VM is an ordinary one again and can be resized.
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
    create(&site, "still").await;
    booted(&site, "still").await;
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
    status.contains("runner") && status.contains("does not respond")
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
