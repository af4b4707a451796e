//! Requirement: D1. Disks on PersistentVolumeClaims outlive pods, guests and VM objects. A claim
//! serves one VM, and files that another pod puts into it reach nothing of the runner's container.

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{World, minimal, moving, rows};

const VM: &str = "kept";
/// Another VM with the claim of the first.
const OTHER: &str = "other";
/// Directory of the node that the volumes are in.
const VOLUMES: &str = "/var/volumes";
/// Writes to the disk of the database and to the disk beside it, and flushes both.
const WRITE: &str = "psql -h /tmp -U postgres -qc 'drop table if exists kept; create table kept as select 4711 as word' bench \
     && echo 4712 > /data/word && sync && chmod 0750 /data && sync";
/// Commands that print the written data, and the mode of the other disk.
const READ: &str =
    "psql -h /tmp -U postgres -Atc 'select word from kept' bench; cat /data/word; stat -c %a /data";
const WRITTEN: &str = "4711\n4712\n750";

pub(super) async fn check(world: &World) -> Result<()> {
    // One guest at a time.
    rows::end(world)?;
    let nodes = world.cluster.names();
    let node = nodes.first().context("a node")?;
    make_claims(world, node)?;
    waits_for_its_claim(world).await?;

    world.cluster.plane().apply(&vm(VM, None).to_string())?;
    let first = runs(world, None).await?;
    world.guest_says(&first, WRITE).await?;
    in_node(world, node, &format!("test -f {VOLUMES}/root/root.raw"))?;

    let pod = first["status"]["podName"].as_str().context("a pod")?;
    let delete = ["delete", "pod", pod, "--grace-period=0", "--force"];
    world.cluster.plane().ask(&delete)?;
    let second = runs(world, Some(&first)).await.context("after its pod")?;
    has_all(world, &second).await?;

    world.guests_are(1).await?;
    for qemu in world.cluster.qemus() {
        kill(Pid::from_raw(qemu), Signal::SIGKILL)?;
    }
    let third = runs(world, Some(&second)).await.context("after its QEMU")?;
    has_all(world, &third).await?;

    end(world, VM).await?;
    world.cluster.plane().apply(&vm(VM, None).to_string())?;
    says(world, VM, "the claim holds the disk of VM default/kept").await?;
    end(world, VM).await?;
    world
        .cluster
        .plane()
        .apply(&vm(VM, Some("true")).to_string())?;
    let fourth = runs(world, None).await.context("as a VM made anew")?;
    has_all(world, &fourth).await?;
    serves_one_vm(world, &fourth).await?;

    end(world, VM).await?;
    link_is_refused(world, node).await?;
    clear(world)
}

/// A second VM cannot use the claim. The first keeps running, and does not move.
async fn serves_one_vm(world: &World, first: &Value) -> Result<()> {
    let boot = world.guest_says(first, moving::BOOT_ID).await?;
    world.cluster.plane().apply(&vm(OTHER, None).to_string())?;
    says(world, OTHER, "the claim holds the disk of VM default/kept").await?;
    end_now(world, OTHER)?;
    let asks = vm(OTHER, Some("true"));
    world.cluster.plane().apply(&asks.to_string())?;
    says(world, OTHER, "in use by another runner").await?;
    end_now(world, OTHER)?;
    moving::migrate(world, "claimed", &json!({"vmName": VM}))?;
    let over = moving::over(world, "claimed").await?;
    let told = moving::said(&over);
    ensure!(
        told.contains("disks on claims (kept-root, kept-data)"),
        "{told}"
    );
    let plane = world.cluster.plane();
    plane.ask(&["delete", "neonvmm", "claimed", "--timeout=120s"])?;
    ensure!(
        world.guest_says(first, moving::BOOT_ID).await? == boot,
        "it is another guest"
    );
    has_all(world, first).await
}

/// Another pod that mounts the claim puts a link in the place of the disk.
async fn link_is_refused(world: &World, node: &str) -> Result<()> {
    let root = format!("{VOLUMES}/root/root.raw");
    let put = format!("mv {root} {root}.aside && ln -s /vm/images/rootdisk.qcow2 {root}");
    in_node(world, node, &put)?;
    let again = vm(VM, Some("true"));
    world.cluster.plane().apply(&again.to_string())?;
    says(world, VM, "root.raw is a link").await?;
    end(world, VM).await?;
    in_node(world, node, &format!("mv {root}.aside {root}"))
}

/// A VM with a missing claim reports which claim it waits for.
async fn waits_for_its_claim(world: &World) -> Result<()> {
    let mut vm = vm(OTHER, None);
    vm["spec"]["guest"]["rootDisk"]["persistentVolumeClaim"] = json!({"claimName": "not-there"});
    world.cluster.plane().apply(&vm.to_string())?;
    says(
        world,
        OTHER,
        "persistentvolumeclaim \"not-there\" not found",
    )
    .await?;
    end_now(world, OTHER)
}

/// Runs a command of the shell in a node, as a pod that mounts its volumes would.
fn in_node(world: &World, node: &str, command: &str) -> Result<()> {
    let mut shell = world.cluster.in_node(node, "sh")?;
    let status = shell.args(["-c", command]).status()?;
    ensure!(status.success(), "{command}: {status}");
    Ok(())
}

/// The claims of the VM, and a volume of the node for each.
fn make_claims(world: &World, node: &str) -> Result<()> {
    for name in ["root", "data"] {
        let path = format!("{VOLUMES}/{name}");
        in_node(world, node, &format!("mkdir -p {path}"))?;
        let name = format!("{VM}-{name}");
        let on = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
        let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": {
            "capacity": {"storage": "8Gi"}, "accessModes": ["ReadWriteOnce"], "local": {"path": path},
            "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "",
            "claimRef": {"namespace": "default", "name": name},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on]}]}}}});
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": name,
            "resources": {"requests": {"storage": "8Gi"}}}});
        world.cluster.plane().apply(&volume.to_string())?;
        world.cluster.plane().apply(&claim.to_string())?;
    }
    Ok(())
}

fn vm(name: &str, use_disk: Option<&str>) -> Value {
    let mut vm = minimal();
    vm["metadata"]["name"] = json!(name);
    if let Some(of) = use_disk {
        vm["metadata"]["annotations"] = json!({"bellows.dev/use-disk": of});
    }
    let root = &mut vm["spec"]["guest"]["rootDisk"];
    root["persistent"] = json!(true);
    root["persistentVolumeClaim"] = json!({"claimName": format!("{VM}-root")});
    vm["spec"]["disks"] = json!([{"name": "data", "mountPath": "/data",
        "persistentVolumeClaim": {"claimName": format!("{VM}-data"), "size": "64Mi"}}]);
    vm
}

/// Waits until the VM runs, in another pod than before.
async fn runs(world: &World, before: Option<&Value>) -> Result<Value> {
    let pod = before.map(|vm| vm["status"]["podName"].clone());
    let holds = |vm: &Value| {
        let status = &vm["status"];
        status["phase"] == "Running" && pod.as_ref().is_none_or(|pod| status["podName"] != *pod)
    };
    world.that("neonvm", VM, "runs", holds).await
}

/// The guest has the written data.
async fn has_all(world: &World, vm: &Value) -> Result<()> {
    world.guest_says(vm, moving::READY).await?;
    let read = world.guest_says(vm, READ).await?;
    ensure!(read == WRITTEN, "{read:?}");
    Ok(())
}

/// Waits until the condition of a VM contains `words`.
async fn says(world: &World, vm: &str, words: &str) -> Result<()> {
    let holds = |vm: &Value| {
        vm["status"]["conditions"]
            .to_string()
            .replace("\\\"", "\"")
            .contains(words)
    };
    world
        .that("neonvm", vm, &format!("says {words:?}"), holds)
        .await
        .map(drop)
}

fn end_now(world: &World, vm: &str) -> Result<()> {
    let delete = ["delete", "neonvm", vm, "--timeout=120s"];
    world.cluster.plane().ask(&delete).map(drop)
}

/// Deletes a VM, and waits until no guest is left.
async fn end(world: &World, vm: &str) -> Result<()> {
    end_now(world, vm)?;
    world.guests_are(0).await
}

fn clear(world: &World) -> Result<()> {
    for kind in ["persistentvolumeclaim", "persistentvolume"] {
        for name in ["root", "data"] {
            let name = format!("{VM}-{name}");
            let plane = world.cluster.plane();
            plane.ask(&["delete", kind, &name, "--timeout=120s"])?;
        }
    }
    Ok(())
}
