//! Files, secrets and settings that a VM's spec gives its guest, in pods of a kubelet. Volumes of
//! the VM are files of the runner.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bellows_tests::patience::wait_for;
use serde_json::{Value, json};

use super::{PATIENCE, World};

/// Creates a file system as the runner does for an empty disk, with the programs of its image.
const MAKE: &str = "busybox truncate -s 16M /tmp/made && mke2fs -q -F -t ext4 -O project,quota /tmp/made && echo made";

/// Adds them to a VM's spec. The guest cannot write to any: such disks are not copied to another
/// node.
pub(super) fn add(spec: &mut Value) {
    spec["guest"]["settings"] = json!({"sysctl": ["vm.overcommit_ratio=61"]});
    spec["disks"] = json!([
        {"name": "config", "mountPath": "/etc/config", "configMap": {"name": "config"}},
        {"name": "sync", "mountPath": "/var/sync/example", "watch": true, "secret": {"secretName": "password"}},
        {"name": "scratch", "mountPath": "/scratch", "tmpfs": {"size": "64Mi"}},
    ]);
}

/// Creates the objects that the VM needs.
pub(super) fn make(world: &World) -> Result<()> {
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config"}, "data": {"key": "value"}});
    world.cluster.plane().apply(&config.to_string())?;
    set(world, "old")
}

fn set(world: &World, word: &str) -> Result<()> {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "password"},
        "data": {"foo": STANDARD.encode(word)}});
    world.cluster.plane().apply(&secret.to_string())
}

/// Tests vm-secret-sync and vm-ssh of NeonVM's suite, and other properties of the same guest.
pub(super) async fn check(world: &World) -> Result<()> {
    let vm = world.vm().await?;
    let key = world.guest_says(&vm, "cat /etc/config/key").await?;
    ensure!(key == "value", "{key}");
    let ratio = world
        .guest_says(&vm, "cat /proc/sys/vm/overcommit_ratio")
        .await?;
    ensure!(ratio == "61", "{ratio}");
    let mounts = world
        .guest_says(&vm, "grep -E ' /(scratch|mnt/ssh) ' /proc/mounts")
        .await?;
    ensure!(
        mounts.contains("size=65536k") && mounts.contains("iso9660 ro"),
        "{mounts}"
    );
    // `kubectl exec` needs a capability that nodes lack. The files of a pod are those of its QEMU.
    world.guests_are(1).await?;
    let qemu = world.cluster.qemus().into_iter().next();
    let pod = PathBuf::from(format!("/proc/{}/root", qemu.context("it has a QEMU")?));
    let mut make = Command::new("chroot");
    let made = make.arg(&pod).args(["/bin/sh", "-c", MAKE]).output()?;
    ensure!(made.stdout == b"made\n", "{made:?}");
    is_everywhere(world, &vm, &pod, "old").await?;
    set(world, "new")?;
    is_everywhere(world, &vm, &pod, "new").await?;
    // The guest has its files shortly before its runner has them.
    wait_for("a runner that knows", PATIENCE, || async {
        let page = world.runner_says(&vm, "GET /metrics");
        let page = page.map_err(|error| format!("{error:#}"))?;
        let is_known = page.contains("\nrunner_vm_file_sync_stale_directories 0\n");
        is_known.then_some(()).ok_or(page)
    })
    .await
}

/// The log of the pod holds the output of the guest's kernel and services.
pub(super) async fn output_is_in_the_pods_log(world: &World) -> Result<()> {
    let vm = world.vm().await?;
    let pod = vm["status"]["podName"].as_str().context("it has a pod")?;
    world.guest(&vm, "logger -t teller the services speak")?;
    world.guest(&vm, "echo the console speaks > /dev/console")?;
    wait_for("the guest's words in its pod's log", PATIENCE, || async {
        let log = world
            .cluster
            .plane()
            .ask(&["logs", pod, "-c", "neonvm-runner"]);
        let log = log.map_err(|error| format!("{error:#}"))?;
        let has = |words: &str| log.lines().any(|line| line.contains(words));
        if has("teller: the services speak") && has("the console speaks") {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await
}

/// Its QEMU has no privilege of its container's.
pub(super) async fn is_confined(world: &World) -> Result<()> {
    world.guests_are(1).await?;
    let qemu = world.cluster.qemus().into_iter().next();
    let qemu = qemu.context("it has a QEMU")?;
    let status = std::fs::read_to_string(format!("/proc/{qemu}/status"))?;
    for line in [
        "CapEff:\t0000000000000000",
        "CapPrm:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
    ] {
        ensure!(status.lines().any(|told| told == line), "{line}\n{status}");
    }
    Ok(())
}

/// Waits until the secret's value is in pod and guest.
async fn is_everywhere(world: &World, vm: &Value, pod: &Path, word: &str) -> Result<()> {
    let file = pod.join("vm/mounts/var/sync/example/foo");
    wait_for(&format!("{word} in pod and guest"), PATIENCE, || async {
        let in_pod = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
        let in_guest = world.guest(vm, "cat /var/sync/example/foo");
        let in_guest = in_guest.map_err(|error| format!("{error:#}"))?;
        if in_pod == word && in_guest == word {
            Ok(())
        } else {
            Err(format!("{in_pod} in the pod, {in_guest} in the guest"))
        }
    })
    .await
}
