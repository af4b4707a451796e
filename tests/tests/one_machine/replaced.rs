//! `bellows up` is replaced while a guest works, and everything on the machine ends and begins.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bellows_tests::durability::{kill_all, processes};
use bellows_tests::guest::Guest;
use bellows_tests::patience::wait_for;
use bellows_tests::site::{BOOT_PATIENCE, Site, postgres_vm};
use bellows_tests::{bellows_bin, guest_or_skip, other_build};
use serde_json::json;
use tokio::task::JoinHandle;

use super::{PATIENCE, boot, running, sees};

const REPLACED: &str = "replaced";
const REPLACEMENTS: usize = 20;
/// Bytes that go to the guest and come back in one exchange.
const EXCHANGED: usize = 64 << 10;
/// VMs of the machine that ends.
const BOTH: [&str; 2] = ["left", "right"];

/// One TCP session that sends and gets bytes all the time.
struct Traffic {
    /// Exchanges that are done.
    done: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    task: JoinHandle<Result<(), String>>,
}

impl Traffic {
    fn start(session: tokio_postgres::Client) -> Self {
        let (done, ends) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (counted, ended) = (Arc::clone(&done), Arc::clone(&ends));
        let exchange = async move {
            while !ended.load(Ordering::Relaxed) {
                let number = counted.load(Ordering::Relaxed);
                let sent = format!("{number:020}").repeat(EXCHANGED / 20);
                let row = session.query_one("select $1::text", &[&sent]).await;
                let got: String = row.map_err(|error| error.to_string())?.get(0);
                if got != sent {
                    return Err(format!("exchange {number} came back altered"));
                }
                counted.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let task = tokio::spawn(exchange);
        Self { done, ends, task }
    }

    /// Waits for two more exchanges: the second began after the call.
    async fn goes_on(&self) {
        assert!(!self.task.is_finished(), "the session has ended");
        let before = self.done.load(Ordering::Relaxed);
        wait_for("bytes of the session", PATIENCE, || async {
            let done = self.done.load(Ordering::Relaxed);
            let is_further = done >= before + 2;
            is_further
                .then_some(())
                .ok_or_else(|| format!("{done} exchanges"))
        })
        .await
        .unwrap();
    }

    async fn end(self) -> u64 {
        self.ends.store(true, Ordering::Relaxed);
        self.task.await.unwrap().unwrap();
        self.done.load(Ordering::Relaxed)
    }
}

/// The program that runs as `bellows up`.
fn program_of(site: &Site) -> PathBuf {
    let pid = site.pid().expect("bellows up runs");
    std::fs::read_link(format!("/proc/{pid}/exe")).unwrap()
}

async fn qemu_of(site: &Site, vm: &str) -> Option<u32> {
    site.runner(vm).await.unwrap().qemu_pid
}

/// Every second replacement is orderly, the others are `kill -9`.
async fn replace(site: &mut Site, number: usize, next: Option<PathBuf>, traffic: &Traffic) {
    if number.is_multiple_of(2) {
        site.replace_up(next).await.unwrap();
    } else {
        site.kill_up().await.unwrap();
        traffic.goes_on().await;
        site.restart_up_as(next).await.unwrap();
    }
}

/// Requirement: V31
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v31_bellows_is_replaced_by_another_build_twenty_times_under_load() {
    if !guest_or_skip("v31_bellows_is_replaced_by_another_build_twenty_times_under_load") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let other = other_build(folder.path()).unwrap();
    let mut site = Site::fresh().await.unwrap();
    let guest = boot(&site, REPLACED, (1000, 1000, 2000), (1, 1, 2), false).await;
    let before = guest.state().await.unwrap();
    let qemu = qemu_of(&site, REPLACED).await;
    assert!(qemu.is_some(), "the runner knows its QEMU");
    let traffic = Traffic::start(guest.postgres().await.unwrap());
    for number in 0..REPLACEMENTS {
        let is_other = number.is_multiple_of(4) || number % 4 == 1;
        let next = is_other.then(|| other.clone());
        let program = next.clone().unwrap_or_else(bellows_bin);
        replace(&mut site, number, next, &traffic).await;
        assert_eq!(program_of(&site), program.canonicalize().unwrap());
        traffic.goes_on().await;
        assert_eq!(qemu_of(&site, REPLACED).await, qemu, "{number}");
        assert_eq!(guest.state().await.unwrap().boot_id, before.boot_id);
    }
    let adopted = site.wait_vm(REPLACED, "phase Running", PATIENCE, running);
    assert_eq!(adopted.await.unwrap().status.unwrap().restart_count, 0);
    site.patch_size(REPLACED, 2000, 2, 1).await.unwrap();
    guest
        .wait("2 CPUs and 2 GiB", PATIENCE, |state| {
            sees(state, 2, before.mem_total.0, 1)
        })
        .await
        .unwrap();
    assert_eq!(qemu_of(&site, REPLACED).await, qemu);
    let exchanges = traffic.end().await;
    assert!(exchanges >= 2 * REPLACEMENTS as u64, "{exchanges}");
}

async fn create(site: &Site, name: &str) {
    let mut vm = postgres_vm(name, (1000, 1000, 1000), (1, 1, 1), false);
    vm["spec"]["guest"]["memorySlotSize"] = json!("512Mi");
    vm["spec"]["overcommit"] = json!({"cpu": 4});
    site.create(&vm).await.unwrap();
}

/// The boot id of a VM's guest, other than one of `known`.
async fn boot_id(site: &Site, name: &str, known: &BTreeSet<String>) -> String {
    wait_for("a guest that booted", BOOT_PATIENCE, || async {
        let vm = site.vm(name).await.map_err(|error| format!("{error:#}"))?;
        let is_running = running(&vm);
        let status = vm.status.unwrap_or_default();
        let ip = status.pod_ip.parse().map_err(|error| format!("{error}"))?;
        let guest = Guest::new(ip).map_err(|error| format!("{error:#}"))?;
        let state = guest.state().await.map_err(|error| format!("{error:#}"))?;
        let is_new = is_running && !known.contains(&state.boot_id);
        let phase = status.phase;
        is_new
            .then_some(state.boot_id)
            .ok_or_else(|| format!("{phase:?}"))
    })
    .await
    .unwrap()
}

async fn boot_ids(site: &Site, known: &BTreeSet<String>) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for name in BOTH {
        ids.insert(boot_id(site, name, known).await);
    }
    ids
}

/// Ends every process of the machine's VMs, and `bellows up`.
async fn end_all(site: &mut Site) {
    site.kill_up().await.unwrap();
    kill_all(site.state_dir()).unwrap();
    wait_for("the end of all processes", PATIENCE, || async {
        let left = processes(site.state_dir()).map_err(|error| format!("{error:#}"))?;
        let is_over = left.is_empty();
        is_over.then_some(()).ok_or_else(|| format!("{left:?}"))
    })
    .await
    .unwrap();
}

/// Removes what is in a folder, as a reboot does with a file system in memory.
fn empty(folder: &Path) {
    std::fs::remove_dir_all(folder).unwrap();
    std::fs::create_dir(folder).unwrap();
}

/// Every process of the machine ends. With the state directory all VMs start again by themselves,
/// without it none does.
///
/// Requirement: V32
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v32_vms_start_again_with_the_state_directory_and_not_without_it() {
    if !guest_or_skip("v32_vms_start_again_with_the_state_directory_and_not_without_it") {
        return;
    }
    let mut site = Site::fresh().await.unwrap();
    for name in BOTH {
        create(&site, name).await;
    }
    let first = boot_ids(&site, &BTreeSet::new()).await;
    assert_eq!(first.len(), BOTH.len(), "each guest has its own");

    end_all(&mut site).await;
    site.restart_up().await.unwrap();
    let second = boot_ids(&site, &first).await;
    assert_eq!(second.len(), BOTH.len(), "all of them started again");

    end_all(&mut site).await;
    empty(site.state_dir());
    site.restart_up().await.unwrap();
    tokio::time::sleep(super::LOOKS_LAST).await;
    let started = processes(site.state_dir()).unwrap();
    assert!(started.is_empty(), "{started:?}");
    let left = site.kubectl(&["get", "neonvm", "-A", "-o", "name"]);
    assert_eq!(left.await.unwrap().trim(), "");
}

/// When the database was started.
async fn database_began(guest: &Guest) -> Result<String, String> {
    let session = guest.postgres().await;
    let session = session.map_err(|error| format!("{error:#}"))?;
    let began = "select pg_postmaster_start_time()::text";
    let row = session.query_one(began, &[]).await;
    row.map(|row| row.get(0)).map_err(|error| error.to_string())
}

/// While `bellows up` is away, the database of a guest is killed. Init of the guest starts another.
///
/// Requirement: V32
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v32_program_that_crashes_while_bellows_is_away_is_started_again() {
    if !guest_or_skip("v32_program_that_crashes_while_bellows_is_away_is_started_again") {
        return;
    }
    let mut site = Site::fresh().await.unwrap();
    let guest = boot(&site, "alone", (1000, 1000, 1000), (1, 1, 1), false).await;
    let before = guest.state().await.unwrap();
    let began = database_began(&guest).await.unwrap();
    let session = guest.postgres().await.unwrap();
    site.kill_up().await.unwrap();
    // Programs of the database run in its folder.
    let kill = "copy (select 1) to program 'kill -9 $(head -n 1 postmaster.pid)'";
    session.batch_execute(kill).await.unwrap();
    // A backend outlives its server while its session is open.
    drop(session);
    wait_for("another start of the database", PATIENCE, || async {
        let now = database_began(&guest).await?;
        let is_another = now != began;
        is_another.then_some(()).ok_or(now)
    })
    .await
    .unwrap();
    assert_eq!(guest.state().await.unwrap().boot_id, before.boot_id);
    site.restart_up().await.unwrap();
    let adopted = site.wait_vm("alone", "phase Running", PATIENCE, running);
    assert_eq!(adopted.await.unwrap().status.unwrap().restart_count, 0);
}
