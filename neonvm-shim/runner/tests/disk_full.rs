//! A guest that fills the disk of its host.

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use neonvm_runner::shell::guest::{Daemon, checksum, put_files};
use neonvm_runner::shell::record::write_json;
use protocol::runner::{RunnerPhase, RunnerState};
use support::{Bounds, Kit, Vm, kit};
use test_records::{Missing, skip};

const SMALL: Bounds = Bounds {
    cpus: [1000, 1000, 1000],
    slots: [2, 2, 2],
};
/// Size of the host's disk, sufficient to boot.
const DISK: &str = "256m";
/// A directory of the guest's disk.
const WRITTEN: &str = "/var/lib/room";

/// A small file system of the host.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    /// `None` without the permission to mount.
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().expect("a directory");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o"])
            .arg(format!("size={DISK},mode=700"))
            .arg("bellows-test")
            .arg(dir.path())
            .status();
        let is_there = mounted.is_ok_and(|status| status.success());
        is_there.then_some(Self { dir })
    }

    /// A VM whose directory is on this disk.
    fn vm(&self, kit: &Kit) -> Vm {
        let mut vm = Vm::new(kit, &SMALL, |config| {
            // The spec allows pushes into this directory; its secret never exists.
            let disk = serde_json::json!({"name": "room", "mountPath": WRITTEN, "watch": true,
                "secret": {"secretName": "none"}});
            config.spec.disks = vec![serde_json::from_value(disk).expect("a disk")];
        });
        vm.dir = tempfile::tempdir_in(self.dir.path()).expect("a directory on it");
        write_json(&vm.paths().config(), &vm.config).expect("a configuration");
        vm
    }

    /// Fills the disk and returns the file that does.
    fn fill(&self) -> PathBuf {
        let path = self.dir.path().join("filler");
        let mut file = File::create(&path).expect("a file");
        for part in [1 << 20, 4 << 10, 1] {
            let bytes = vec![1; part];
            while file.write_all(&bytes).is_ok() {}
        }
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // All users of the disk are gone: it is dropped last.
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.dir.path())
            .status();
    }
}

/// Lets the guest write several clusters to its disk, without a wait for the response.
fn write_much(daemon: Daemon) {
    let files = BTreeMap::from([("much".to_owned(), noise(2 << 20))]);
    // The guest may be stopped before it responds.
    tokio::spawn(async move { put_files(&daemon, WRITTEN, &files).await.is_ok() });
}

/// Bytes that are not zeros, which would take no space.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..count).map(|_| next()).collect()
}

fn is_full(state: &RunnerState) -> bool {
    let full = state.disk_full.as_ref();
    full.is_some_and(|full| full.disks == ["rootdisk"])
}

fn remove(filler: &Path) {
    fs::remove_file(filler).expect("it is there");
}

#[tokio::test]
async fn guest_on_a_full_host_disk_is_reported_and_resumed_once_there_is_space() {
    let test = "guest_on_a_full_host_disk_is_reported_and_resumed_once_there_is_space";
    let Some(disk) = SmallDisk::new() else {
        return skip(test, Missing::Root, "a small disk is mounted");
    };
    let Some(kit) = kit(test).await else { return };
    let mut vm = disk.vm(&kit);
    vm.start().await;
    let before = vm.running().await;
    assert_eq!(before.disk_full, None);

    let filler = disk.fill();
    write_much(vm.daemon());
    let state = vm.wait("the full disk is told of", is_full).await;
    assert_eq!(state.phase, RunnerPhase::Running);

    // A restarted runner also sees it, and resumes the guest.
    vm.kill_runner().await;
    vm.start().await;
    let state = vm.wait("the next runner tells of it", is_full).await;
    assert_eq!(state.qemu_pid, before.qemu_pid);
    assert_eq!(
        state.guest_silent, None,
        "it is known why it does not answer"
    );

    remove(&filler);
    let goes_on =
        |state: &RunnerState| state.disk_full.is_none() && state.phase == RunnerPhase::Running;
    let after = vm.wait("the guest goes on", goes_on).await;
    assert_eq!(after.boot_id, before.boot_id, "it is the same guest");
    // The guest writes as before.
    let files = BTreeMap::from([("more".to_owned(), noise(1 << 16))]);
    let daemon = vm.daemon();
    put_files(&daemon, WRITTEN, &files)
        .await
        .expect("it writes");
    checksum(&daemon, WRITTEN)
        .await
        .expect("it reads what it wrote");
}
