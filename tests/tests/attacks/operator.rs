//! Attacker: an operator in a hurry, as root. It moves the store away, puts an older copy back, or
//! starts with another one. No guest may lose its data by that. A stand-in plays the runner, so
//! that no guest has to boot; `tests/store_lost.rs` does the same with real guests.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bellows_tests::attacks::{Outcome, Report};
use bellows_tests::patience::wait_for;
use bellows_tests::site::Site;
use protocol::vm::VmPhase;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than the node driver needs to end a guest whose pod is gone.
const LONG_ENOUGH: Duration = Duration::from_secs(8);

/// The directory of a guest that runs, with a disk, and a stand-in for its runner.
struct StandIn {
    dir: PathBuf,
    stops: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl StandIn {
    /// In the state directory of `site`, for a pod that the store of it has never shown.
    async fn new(state: &Path, vm: &str, block: u64) -> Self {
        let dir = state.join(format!("vms/default_{vm}-x"));
        std::fs::create_dir_all(&dir).expect("made");
        let write = |name: &str, value: &Value| {
            std::fs::write(dir.join(name), value.to_string()).expect("written");
        };
        let ip = format!("127.{block}.200.1");
        let record = json!({"namespace": "default", "name": format!("{vm}-x"), "uid": format!("uid-{vm}"), "ip": ip,
            "grace_ms": 1000});
        write("config.json", &config(vm, &ip));
        write("pod.json", &record);
        std::fs::write(dir.join("root.qcow2"), "the only copy of the data").expect("written");
        let listener = UnixListener::bind(dir.join("control.sock")).expect("bound");
        let stops = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(serve(listener, dir.clone(), Arc::clone(&stops)));
        Self { dir, stops, task }
    }

    /// Outcome for the guest.
    fn fate(&self) -> Outcome {
        let stops = self.stops.load(Ordering::SeqCst);
        let disk = std::fs::read(self.dir.join("root.qcow2"));
        match (stops, disk) {
            (0, Ok(data)) if data == b"the only copy of the data" => {
                Outcome::Refused("guest runs, disk is there".into())
            }
            (0, _) => Outcome::Succeeded("the disk is gone".into()),
            (_, Ok(_)) => Outcome::Succeeded("the guest was ended".into()),
            (..) => Outcome::Succeeded("the guest was ended and its disk deleted".into()),
        }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn config(vm: &str, ip: &str) -> Value {
    json!({
        "format": 1, "namespace": "default", "vm": vm, "pod": format!("{vm}-x"), "pod_ip": ip,
        "spec": {"guest": {"cpus": {"min": "250m", "use": "250m", "max": 2}, "memorySlotSize": "1Gi",
            "memorySlots": {"min": 1, "use": 1, "max": 4}, "rootDisk": {"image": "bellows/none:1"}}},
        "programs": {"qemu_system": "/none", "qemu_img": "/none"},
        "image": {"kernel": "/none", "kernel_version": "6", "initrd": null, "root_disk": "/none",
            "root_disk_format": "raw", "root_disk_bytes": 1, "cmdline": "", "cmdline_tcg": "", "ports": []},
        "accel": "tcg", "knowledge_dir": "/none", "cpu_quota_percent": 100, "cgroup_parent": null,
        "ssh_public_key": null,
    })
}

/// State of a runner whose guest has half a CPU and 1 GiB.
fn state() -> Value {
    json!({
        "generation": 1, "phase": "running", "qemu_pid": null, "qemu_version": null, "accel": "tcg",
        "boot_id": "the-same-boot", "guest_kernel": null, "boot_ms": 1, "exit": null, "resize": null,
        "cpus": {"limit": "500m", "plugged": 1, "guest_online": 1},
        "memory": {"base": 1_u64 << 30, "plugged": 0, "requested": 0, "guest_total": null},
    })
}

/// Serves until a stop request, and then writes the final state, as a runner does.
async fn serve(listener: UnixListener, dir: PathBuf, stops: Arc<AtomicUsize>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (dir, stops) = (dir.clone(), Arc::clone(&stops));
        if answer(stream, &dir, &stops).await == Some(()) {
            break;
        }
    }
}

/// `Some` once the stop was ordered.
async fn answer(mut stream: UnixStream, dir: &Path, stops: &AtomicUsize) -> Option<()> {
    let mut head = vec![0; 4096];
    let length = stream.read(&mut head).await.ok()?;
    let head = String::from_utf8_lossy(&head[..length]).into_owned();
    let is_stop = head.starts_with("POST /v1/stop");
    if head.contains("wait_ms") {
        // Nothing changes. Another task answers late, so that other requests are served meanwhile.
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(2)).await;
            say(&mut stream, &state().to_string()).await;
        });
        return None;
    }
    say(&mut stream, &state().to_string()).await;
    if !is_stop {
        return None;
    }
    stops.fetch_add(1, Ordering::SeqCst);
    let exit = json!({"success": true, "reason": "requested", "code": 0, "message": ""});
    std::fs::write(dir.join("exit.json"), exit.to_string()).ok()?;
    Some(())
}

async fn say(stream: &mut UnixStream, body: &str) {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
    let text = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.shutdown().await;
}

fn block(site: &Site) -> u64 {
    site.ready["block"].as_u64().expect("a block")
}

/// Requirement: D5. The store is moved away while guests run, as the text about a damaged store
/// once advised.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_that_was_moved_away_costs_no_guest() {
    let mut report = Report::new("operator");
    let mut site = Site::fresh().await.unwrap();
    let state = site.state_dir().to_owned();
    site.kill_up().await.unwrap();
    std::fs::rename(state.join("api.redb"), state.join("api.redb.away")).unwrap();
    let guest = StandIn::new(&state, "pg", block(&site)).await;
    site.restart_up().await.unwrap();
    tokio::time::sleep(LONG_ENOUGH).await;
    report.record("D5", "api.redb", "moved away, bellows up", guest.fate());
    site.kill_up().await.unwrap();
    site.restart_up().await.unwrap();
    tokio::time::sleep(LONG_ENOUGH).await;
    report.record(
        "D5",
        "api.redb",
        "the new store, a second start",
        guest.fate(),
    );
    report.finish();
}

/// Requirement: D5. One command brings the objects of such a guest back, and the guest is the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guest_without_objects_is_adopted_or_let_go_by_one_command() {
    let mut site = Site::fresh().await.unwrap();
    let state = site.state_dir().to_owned();
    site.kill_up().await.unwrap();
    let kept = StandIn::new(&state, "kept", block(&site)).await;
    let left = StandIn::new(&state, "left", block(&site)).await;
    site.restart_up().await.unwrap();
    let listed = wait_for("both guests in the status", PATIENCE, || async {
        let status = site
            .bellows(&["status"])
            .await
            .map_err(|e| format!("{e:#}"))?;
        let has_both = status.contains("default/kept-x") && status.contains("default/left-x");
        has_both.then_some(status.clone()).ok_or(status)
    });
    assert!(listed.await.unwrap().contains("bellows adopt"));
    // The node's object follows with its next heartbeat.
    wait_for("the condition of the node", PATIENCE, || async {
        let node = site
            .kubectl(&["get", "nodes", "-o", "json"])
            .await
            .map_err(|e| format!("{e:#}"))?;
        let is_told = node.contains("GuestsWithoutObjects");
        is_told.then_some(()).ok_or(node)
    })
    .await
    .unwrap();

    site.bellows(&["adopt", "kept"]).await.unwrap();
    let vm = site.vm("kept").await.unwrap();
    let status = vm.status.unwrap();
    assert_eq!(status.phase, VmPhase::Running);
    assert_eq!(status.pod_name, "kept-x");
    assert_eq!(
        vm.spec.guest.cpus.r#use.0, 500,
        "the size that the guest has"
    );
    assert!(
        matches!(kept.fate(), Outcome::Refused(_)),
        "{:?}",
        kept.fate()
    );

    site.bellows(&["adopt", "--release", "left"]).await.unwrap();
    let trash = wait_for("the directory in the trash", PATIENCE, || async {
        let entries = std::fs::read_dir(state.join("trash")).map_err(|e| e.to_string())?;
        let mut paths = entries.flatten().map(|entry| entry.path());
        let of_left = |path: &PathBuf| path.to_string_lossy().contains("default_left-x_");
        paths.find(of_left).ok_or_else(|| "not there".to_owned())
    });
    let disk = trash.await.unwrap().join("root.qcow2");
    assert_eq!(std::fs::read(disk).unwrap(), b"the only copy of the data");
    assert_eq!(left.stops.load(Ordering::SeqCst), 1);
    assert!(!left.dir.exists());

    // After another start the adopted guest is an ordinary one.
    site.kill_up().await.unwrap();
    site.restart_up().await.unwrap();
    tokio::time::sleep(LONG_ENOUGH).await;
    assert!(
        matches!(kept.fate(), Outcome::Refused(_)),
        "{:?}",
        kept.fate()
    );
    // A VM that its owner deletes is removed as usual.
    site.kubectl(&["delete", "neonvm", "kept", "--wait=false"])
        .await
        .unwrap();
    wait_for("the end of the deleted VM's guest", PATIENCE, || async {
        let is_gone = !kept.dir.exists();
        is_gone
            .then_some(())
            .ok_or_else(|| "its directory is there".to_owned())
    })
    .await
    .unwrap();
}

/// Requirement: D5. A copy that is older than the guest, put back by `bellows restore --store`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_copy_of_the_store_costs_no_guest() {
    let mut report = Report::new("operator");
    let mut site = Site::fresh().await.unwrap();
    let state = site.state_dir().to_owned();
    let copy = state.join("copy.redb");
    let name = copy.to_str().unwrap();
    site.bellows(&["backup", "--store", name]).await.unwrap();
    let refused = site.bellows(&["backup", "--store", name]).await;
    assert!(format!("{:#}", refused.unwrap_err()).contains("exists already"));
    let guest = StandIn::new(&state, "pg", block(&site)).await;
    site.kill_up().await.unwrap();
    site.restart_up().await.unwrap();
    site.bellows(&["adopt"]).await.unwrap();
    let held = site.bellows(&["restore", "--store", name]).await;
    assert!(format!("{:#}", held.unwrap_err()).contains("is in use"));
    site.kill_up().await.unwrap();
    let said = site.bellows(&["restore", "--store", name]).await.unwrap();
    assert!(said.contains("api.redb.replaced-1"), "{said}");
    for how in ["first start", "second start"] {
        site.restart_up().await.unwrap();
        tokio::time::sleep(LONG_ENOUGH).await;
        report.record("D5", "an older api.redb", how, guest.fate());
        site.kill_up().await.unwrap();
    }
    report.finish();
    site.restart_up().await.unwrap();
    site.bellows(&["adopt"]).await.unwrap();
    let status = site.vm("pg").await.unwrap().status.unwrap();
    assert_eq!(
        (status.phase, status.pod_name.as_str()),
        (VmPhase::Running, "pg-x")
    );
    let snapshots = std::fs::read_dir(state.join("snapshots")).unwrap().count();
    assert!(snapshots >= 2, "one of each of the stores");
}

/// Requirement: D5. The text about a damaged store names the newest snapshot and the command, and
/// no way to lose a disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_store_is_answered_with_the_newest_snapshot() {
    let mut report = Report::new("operator");
    let mut site = Site::fresh().await.unwrap();
    let state = site.state_dir().to_owned();
    wait_for("a snapshot", PATIENCE, || async {
        let entries = std::fs::read_dir(state.join("snapshots")).map_err(|e| e.to_string())?;
        let count = entries.flatten().count();
        (count > 0)
            .then_some(())
            .ok_or_else(|| "none so far".to_owned())
    })
    .await
    .unwrap();
    let guest = StandIn::new(&state, "pg", block(&site)).await;
    site.kill_up().await.unwrap();
    std::fs::write(state.join("api.redb"), "not a store").unwrap();
    let said = format!("{:#}", site.restart_up().await.unwrap_err());
    assert!(
        !said.contains("move it away") && !said.contains("--purge"),
        "{said}"
    );
    let mut words = said
        .split_whitespace()
        .skip_while(|word| *word != "restore");
    let file = words.nth(2).expect("a file is named").to_owned();
    site.bellows(&["restore", "--store", &file]).await.unwrap();
    site.restart_up().await.unwrap();
    tokio::time::sleep(LONG_ENOUGH).await;
    report.record(
        "D5",
        "api.redb",
        "damaged, then as the text says",
        guest.fate(),
    );
    report.finish();
}
