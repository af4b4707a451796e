//! Root disks that stay, with the real binary and a real guest.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use bellows_tests::durability::{create, database};
use bellows_tests::guest_or_skip;
use bellows_tests::patience::wait_for;
use bellows_tests::qmp::Qmp;
use bellows_tests::site::{BOOT_PATIENCE, Site};
use protocol::vm::{VirtualMachine, VmPhase};
use serde_json::{Value, json};
use test_records::retry::retry_known_tcg_bug;

const PATIENCE: Duration = Duration::from_secs(90);
const VM: &str = "keeper";

fn running_after(restarts: i32) -> impl Fn(&VirtualMachine) -> bool {
    move |vm| {
        let status = vm.status.clone().unwrap_or_default();
        status.phase == VmPhase::Running && status.restart_count >= restarts
    }
}

async fn add_row(site: &Site, text: &str) {
    let database = database(site, VM).await.unwrap();
    let table = "create table if not exists kept(text text)";
    database.batch_execute(table).await.unwrap();
    let insert = "insert into kept values ($1)";
    database.execute(insert, &[&text]).await.unwrap();
}

/// The rows, or the database's error.
async fn rows(site: &Site) -> Vec<String> {
    let database = database(site, VM).await.unwrap();
    match database.query("select text from kept", &[]).await {
        Ok(rows) => rows.iter().map(|row| row.get(0)).collect(),
        Err(error) => vec![format!("{error:?}")],
    }
}

/// Ends the guest by a line of shell in it.
async fn end_by(site: &Site, line: &str) {
    // The connection ends with the guest.
    let _ = site.ssh(VM, line, None).await;
}

fn disk(site: &Site) -> PathBuf {
    site.state_dir().join("disks").join(format!("default_{VM}"))
}

/// Requirement: D1. Before, every one of these ends was the loss of the database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_survive_power_off_panic_and_stop_of_the_guest() {
    if !guest_or_skip("rows_survive_power_off_panic_and_stop_of_the_guest") {
        return;
    }
    let site = Site::fresh().await.unwrap();
    create(&site, VM, &[]).await.unwrap();
    add_row(&site, "first").await;
    for (restarts, line) in [(1, "sync; poweroff"), (2, "echo c > /proc/sysrq-trigger")] {
        end_by(&site, line).await;
        let again = site.wait_vm(VM, "another start", BOOT_PATIENCE, running_after(restarts));
        again.await.unwrap();
        assert_eq!(rows(&site).await, ["first"], "after {line:?}");
    }
    flushes_reach_the_host(&site).await;
    stops_and_starts(&site).await;
    says_what_is_wrong_with_a_disk(&site).await;
    grows_and_is_restored(&site).await;
}

/// Requirement: D1. A guest with a disk that stays moves between pods of one machine and keeps its
/// disk afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_moves_with_its_guest() {
    if !guest_or_skip("disk_moves_with_its_guest") {
        return;
    }
    retry_known_tcg_bug("disk_moves_with_its_guest", moves).await;
}

async fn moves() {
    let site = Site::fresh().await.unwrap();
    create(&site, VM, &[]).await.unwrap();
    add_row(&site, "before").await;
    site.bellows(&["migrate", VM]).await.unwrap();
    add_row(&site, "after").await;
    site.bellows(&["vm", "restart", VM]).await.unwrap();
    assert_eq!(rows(&site).await, ["before", "after"]);
}

async fn flushes_reach_the_host(site: &Site) {
    let rundir = site.rundir(VM).await.unwrap();
    let mut qmp = Qmp::connect(&rundir.join("qmp-manual.sock")).await.unwrap();
    let root = |answer: &Value| {
        let mut drives = answer.as_array().unwrap().iter();
        drives.find(|one| one["device"] == "root").unwrap().clone()
    };
    let drives = qmp.execute("query-block", json!({})).await.unwrap();
    let cache = &root(&drives)["inserted"]["cache"];
    assert_eq!(cache["no-flush"], false, "{cache}");
    let before = qmp.execute("query-blockstats", json!({})).await.unwrap();
    add_row(site, "flushed").await;
    let after = qmp.execute("query-blockstats", json!({})).await.unwrap();
    let flushes = |answer: &Value| root(answer)["stats"]["flush_operations"].as_u64().unwrap();
    assert!(flushes(&after) > flushes(&before), "a commit is flushed");
}

async fn stops_and_starts(site: &Site) {
    site.bellows(&["vm", "stop", VM]).await.unwrap();
    let shown = site.bellows(&["get", "vms", VM]).await.unwrap();
    assert!(shown.contains("Stopped"), "{shown}");
    let vms = std::fs::read_dir(site.state_dir().join("vms")).unwrap();
    assert_eq!(vms.count(), 0, "no runner is left");
    site.bellows(&["vm", "start", VM]).await.unwrap();
    assert_eq!(rows(site).await, ["first", "flushed"]);
    site.bellows(&["vm", "restart", VM]).await.unwrap();
    assert_eq!(rows(site).await, ["first", "flushed"]);
}

/// Requirement: D4. The backup is made while the guest runs, and the VM that is made of it has its
/// rows.
async fn grows_and_is_restored(site: &Site) {
    let size = || async {
        let line = "blockdev --getsize64 /dev/vda || cat /sys/class/block/vda/size";
        site.ssh(VM, line, None).await.unwrap()
    };
    let before = size().await;
    site.bellows(&["vm", "resize-disk", VM, "4Gi"])
        .await
        .unwrap();
    assert_ne!(size().await, before);
    let too_much = site.bellows(&["vm", "resize-disk", VM, "900Ti"]).await;
    let said = format!("{:#}", too_much.unwrap_err());
    assert!(said.contains("free"), "{said}");
    let file = site.state_dir().join("keeper.backup");
    let file = file.to_str().unwrap();
    site.bellows(&["vm", "backup", VM, file]).await.unwrap();
    add_row(site, "after the backup").await;
    site.bellows(&["vm", "delete", VM]).await.unwrap();
    site.bellows(&["vm", "restore", VM, file, "--wait"])
        .await
        .unwrap();
    assert_eq!(rows(site).await, ["first", "flushed"]);
}

/// An unusable disk keeps the VM from starting. The VM reports why, and the disk stays unchanged.
async fn says_what_is_wrong_with_a_disk(site: &Site) {
    site.bellows(&["vm", "stop", VM]).await.unwrap();
    let file = disk(site).join("root.qcow2");
    let aside = file.with_file_name("moved");
    std::fs::rename(&file, &aside).unwrap();
    start_is_refused(site, "root.qcow2 is missing").await;
    assert!(!file.exists(), "no fresh disk was made");
    let whole = std::fs::read(&aside).unwrap();
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    start_is_refused(site, "is damaged").await;
    assert_eq!(
        std::fs::metadata(&file).unwrap().len(),
        whole.len() as u64 / 2
    );
    std::fs::rename(&aside, &file).unwrap();
    site.bellows(&["vm", "start", VM]).await.unwrap();
    assert_eq!(rows(site).await, ["first", "flushed"]);
}

async fn start_is_refused(site: &Site, reason: &str) {
    site.bellows(&["vm", "start", VM, "--no-wait"])
        .await
        .unwrap();
    let told = wait_for(reason, PATIENCE, || async {
        let vm = site.bellows(&["get", "vms", VM, "-o", "json"]).await;
        let vm = vm.map_err(|error| format!("{error:#}"))?;
        if vm.contains(reason) { Ok(()) } else { Err(vm) }
    });
    told.await.unwrap();
    site.bellows(&["vm", "stop", VM]).await.unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Requirement: D1. Only the end of its VM removes a disk. `--keep-disk` keeps it for the next VM
/// of the name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_goes_with_its_vm_unless_it_is_kept() {
    if !guest_or_skip("disk_goes_with_its_vm_unless_it_is_kept") {
        return;
    }
    let site = Site::fresh().await.unwrap();
    create(&site, VM, &[]).await.unwrap();
    add_row(&site, "kept").await;
    let delete = ["vm", "delete", VM, "--keep-disk"];
    site.bellows(&delete).await.unwrap();
    assert!(disk(&site).join("root.qcow2").exists());
    let unaware = ["vm", "create", VM, "--no-autoscale"];
    site.bellows(&unaware).await.unwrap();
    let told = wait_for("the pod to say why it waits", PATIENCE, || async {
        let events = site.kubectl(&["get", "events", "-o", "json"]).await;
        let events = events.map_err(|error| format!("{error:#}"))?;
        if events.contains("--use-disk") {
            Ok(())
        } else {
            Err(events)
        }
    });
    told.await.unwrap();
    site.bellows(&["vm", "delete", VM]).await.unwrap();
    create(&site, VM, &["--use-disk"]).await.unwrap();
    assert_eq!(rows(&site).await, ["kept"]);
    site.bellows(&["vm", "delete", VM]).await.unwrap();
    assert!(!disk(&site).exists());
    let trash = names(&site.state_dir().join("trash"));
    assert_eq!(trash.len(), 1, "{trash:?}");
    assert!(trash[0].starts_with(&format!("default_{VM}_")), "{trash:?}");
}
