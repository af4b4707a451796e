//! The surroundings of policies are bad: a state directory that is full or gone, a policy that is
//! deleted, a program that cannot be run. VMs are sized all the same.

mod peers;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use agent::StateHandle;
use peers::guest::Page;
use peers::policies::{
    asked, policy, put_version, restart, runs, spec, start_decided, until_decided, world,
};
use peers::{Seen, patched_to, position, until};
use test_records::{Missing, skip};

/// Threads that read the state.
const READERS: usize = 2;
/// Versions that come meanwhile.
const CHANGES: u32 = 100;
/// Reads after the last change: one for each reader at least, by far.
const CHECKED_READS: u64 = 100;
const PATIENCE: Duration = Duration::from_secs(60);

/// The state of a running agent is read all the time while its policy changes.
async fn reads_beside_changes(folder: &Path) {
    let mut world = world(folder, &folder.join("journal")).await;
    world.start_connected().await;
    let (reads, is_over) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    for _ in 0..READERS {
        let (state, reads, is_over) = (world.state.clone(), reads.clone(), is_over.clone());
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Acquire) {
                let _state = state.dump();
                reads.fetch_add(1, Ordering::Release);
            }
        });
    }
    for version in 1..=CHANGES {
        put_version(&world, version);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let before = reads.load(Ordering::Acquire);
    while reads.load(Ordering::Acquire) < before + CHECKED_READS {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    is_over.store(true, Ordering::Release);
    world.stop().await;
}

/// Requirement: V31
#[test]
fn v31_state_is_read_while_policies_change() {
    let (sender, ended) = std::sync::mpsc::channel();
    // A reader that waits for ever holds up the runtime, and its end too.
    std::thread::spawn(move || {
        let folder = tempfile::tempdir().expect("a folder");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(reads_beside_changes(folder.path()));
        // The test may be over.
        let _ = sender.send(());
    });
    let in_time = ended.recv_timeout(PATIENCE);
    assert!(in_time.is_ok(), "a read of the state waits for ever");
}

/// A small file system, full from now on.
struct FullDisk(tempfile::TempDir);

impl FullDisk {
    /// `None` without the permission to mount.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64k,mode=700", "bellows-test"]);
        let mounted = mount.arg(folder.path()).status();
        if !mounted.is_ok_and(|status| status.success()) {
            return None;
        }
        let disk = Self(folder);
        // It fails at the end of the disk.
        let _full = std::fs::write(disk.0.path().join("filler"), vec![1; 1 << 20]);
        Some(disk)
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// Requirement: V32
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v32_policy_decides_while_the_state_directory_is_full() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(disk) = FullDisk::new() else {
        let test = "v32_policy_decides_while_the_state_directory_is_full";
        return skip(test, Missing::Root, "nothing may be mounted");
    };
    let mut world = world(folder.path(), &disk.0.path().join("journal")).await;
    let (version, _) = start_decided(&mut world).await;
    assert!(!disk.0.path().join("journal/policies/known.json").exists());
    // What is lost with the disk is the copy for a start without the API.
    restart(&mut world).await;
    let version = until_decided(&world, version).await;
    std::fs::remove_file(disk.0.path().join("filler")).expect("removed");
    let version = until_decided(&world, version + 1).await;
    until("it is stored where there is room again", || {
        let stored = disk.0.path().join("journal/policies/known.json");
        let text = std::fs::read_to_string(stored).unwrap_or_default();
        text.contains(&spec(version).digest().to_string())
    })
    .await;
    world.stop().await;
}

/// All state is in memory, and lost between two agents: the next one follows the API.
///
/// Requirement: V32
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v32_agent_without_its_state_directory_goes_on_by_the_api() {
    let folder = tempfile::tempdir().expect("a folder");
    let journal = folder.path().join("journal");
    let mut world = world(folder.path(), &journal).await;
    let (version, at) = start_decided(&mut world).await;
    world.stop().await;
    std::fs::remove_dir_all(&journal).expect("removed");
    world.state = StateHandle::new();
    world.start_connected().await;
    until_decided(&world, version).await;
    let is_smaller = |seen: &Seen| matches!(seen, Seen::Patch(_, slots, _) if *slots < 3);
    assert_eq!(position(&world.trace.all()[at..], is_smaller), None);
    world.stop().await;
    let again = runs(&journal);
    assert_eq!(again.len(), 1, "it writes a new journal");
}

/// Requirement: V33
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v33_built_in_goal_decides_at_once_about_vms_whose_policy_is_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut world = world(folder.path(), &folder.path().join("journal")).await;
    let (version, at) = start_decided(&mut world).await;
    world.api.delete_policy("db");
    let shrunk = |all: &[Seen]| position(&all[at..], patched_to(1));
    world.trace.until("the built-in goal's size", shrunk).await;
    until("an event says so", || {
        world.api.events("PolicyUnknown").len() == 1
    })
    .await;
    assert_eq!(policy(&world)["unknown"], "db");
    until_decided(&world, version).await;
    world
        .until_metric("autoscaling_agent_policy_unknown 0")
        .await;
    world.stop().await;
    assert_eq!(world.api.events("PolicyUnknown").len(), 1, "once");
}

/// Requirement: V33. The agent asks no program that it cannot run or of another contract. It sizes
/// by the built-in goal, and says which file is at fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v33_program_that_cannot_be_run_or_has_another_contract_is_named_and_not_asked() {
    let script = |version: &str| format!("#!/bin/sh\necho '{version}'\n");
    for (script, mode, problem) in [
        (
            script("bellows-policy 0.1.0 (contract 1)"),
            0o644,
            "ermission denied",
        ),
        (
            script("bellows-policy 9.0.0 (contract 2)"),
            0o755,
            "is another version",
        ),
        (script("bellows-policy 0.0.1"), 0o755, "is another version"),
        ("\u{1}".repeat(64), 0o755, "--version failed"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut world = world(folder.path(), &folder.path().join("journal")).await;
        let path = folder.path().join("bellows-policy");
        std::fs::write(&path, script).expect("a program");
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&path, mode).expect("a mode");
        world.start_connected().await;
        world.guest.set(Page::Good(0.9, 0.0));
        world
            .trace
            .until("it grows", |all| position(all, patched_to(4)))
            .await;
        let said = || world.state.policy_reports().first()?.problem.clone();
        until("the report names the program", || {
            let said = said().unwrap_or_default();
            said.contains(problem) && said.contains(&path.display().to_string())
        })
        .await;
        let reports = world.state.policy_reports();
        assert_eq!(
            reports[0].alarms.faults_in_a_row, 0,
            "it is no fault of the version"
        );
        assert_eq!(world.state.dump()["policies"]["known"][0]["loaded"], false);
        assert!(asked(folder.path()).is_empty());
        world.stop().await;
    }
}
