//! A guest moves between nodes that share only the pods' network.

use anyhow::{Context as _, Result, ensure};
use bellows_tests::patience::wait_for;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use test_records::retry::Attempts;

use super::{PATIENCE, World};

/// Another one after each boot.
pub(super) const BOOT_ID: &str = "cat /proc/sys/kernel/random/boot_id";
/// Load in the guest: sessions of the database without an outside connection.
const LOAD: &str = "PATH=$PATH:/usr/lib/postgresql/15/bin; cd /root; \
     sh -c 'trap \"\" HUP; exec pgbench -h /tmp -U postgres -n -c 2 -R 20 -T 100000 bench' >load.log 2>&1 </dev/null & \
     echo $! >/root/load.pid";
/// Prints the number of transactions while the load runs.
const DONE: &str = "kill -0 $(cat /root/load.pid) && psql -h /tmp -U postgres -Atc 'select count(*) from pgbench_history' bench";
pub(super) const READY: &str = "psql -h /tmp -U postgres -Atc 'select 1' bench";

/// Ends the load. Other cases expect an idle guest.
const END: &str = "kill $(cat /root/load.pid) 2>/dev/null; rm -f /root/load.pid";

/// Waits until the load has done more, and checks that it has lost nothing.
pub(super) async fn goes_on(world: &World, vm: &Value) -> Result<()> {
    let log = world.guest_says(vm, "cat /root/load.log").await?;
    ensure!(!log.contains("aborted") && !log.contains("error"), "{log}");
    let done = async || -> Result<u64> { Ok(world.guest_says(vm, DONE).await?.parse()?) };
    let before = done().await?;
    wait_for("the load inside to go on", PATIENCE, || async {
        match done().await {
            Ok(now) if now > before => Ok(()),
            other => Err(format!("{other:?} after {before}")),
        }
    })
    .await
}

/// Starts the load, unless it runs already.
pub(super) async fn load(world: &World, vm: &Value) -> Result<()> {
    world.guest_says(vm, READY).await?;
    if world
        .guest_says(vm, "test -e /root/load.pid || echo none")
        .await?
        == "none"
    {
        world.guest_says(vm, LOAD).await?;
    }
    goes_on(world, vm).await
}

pub(super) async fn unload(world: &World, vm: &Value) -> Result<()> {
    world.guest_says(vm, END).await.map(drop)
}

/// Creates a migration.
pub(super) fn migrate(world: &World, name: &str, spec: &Value) -> Result<()> {
    let object = json!({"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration",
        "metadata": {"name": name}, "spec": spec});
    world.cluster.plane().apply(&object.to_string())
}

/// Waits until a migration has ended, well or not.
pub(super) async fn over(world: &World, name: &str) -> Result<Value> {
    let is_over = |found: &Value| {
        let phase = found["status"]["phase"].as_str();
        matches!(phase, Some("Succeeded" | "Failed"))
    };
    world.that("neonvmm", name, "is over", is_over).await
}

/// Message of its condition `Available`.
pub(super) fn said(migration: &Value) -> &str {
    let conditions = migration["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let found = conditions.find(|one| one["type"] == "Available");
    found
        .and_then(|one| one["message"].as_str())
        .unwrap_or_default()
}

/// N44, again with a new guest where QEMU without KVM broke the first one.
pub(super) async fn between_nodes(world: &World) -> Result<()> {
    let mut attempts = Attempts::of("a_guest_with_a_database_moves_to_the_other_node");
    loop {
        let ended = moves(world).await;
        if !again_with_another_guest(world, &mut attempts, &ended).await? {
            return ended;
        }
    }
}

/// Whether a scenario that ended so is run again, for the known fault of QEMU without KVM. Its VM
/// is deleted then.
pub(super) async fn again_with_another_guest(
    world: &World,
    attempts: &mut Attempts,
    ended: &Result<()>,
) -> Result<bool> {
    let panic = ended
        .as_ref()
        .err()
        .and_then(|_| world.cluster.known_panic("pg"));
    if !attempts.again(panic) {
        return Ok(false);
    }
    let plane = world.cluster.plane();
    plane.ask(&["delete", "neonvmm", "--all", "--timeout=120s"])?;
    plane.ask(&["delete", "neonvm", "pg", "--timeout=120s"])?;
    world.pods_are(0).await?;
    Ok(true)
}

/// The target dies during the migration, and the guest stays. Then it moves to the other node, and
/// its disk is copied.
async fn moves(world: &World) -> Result<()> {
    let vm = world.vm().await?;
    let boot = world.guest_says(&vm, BOOT_ID).await?;
    load(world, &vm).await?;
    strangers_give_no_orders(world, &vm)?;
    world.guests_are(1).await?;
    target_dies(world, &vm).await?;
    ensure!(
        world.guest_says(&vm, BOOT_ID).await? == boot,
        "it is another guest"
    );

    let (node, pod) = (&vm["status"]["node"], &vm["status"]["podName"]);
    migrate(world, "goes", &json!({"vmName": "pg"}))?;
    let moved = over(world, "goes").await?;
    ensure!(
        moved["status"]["phase"] == "Succeeded",
        "{}",
        moved["status"]
    );
    ensure!(
        moved["status"]["sourceNode"] == *node && moved["status"]["info"]["encrypted"] == true,
        "{}",
        moved["status"]
    );
    let vm = world
        .vm_that("runs", |vm| vm["status"]["phase"] == "Running")
        .await?;
    let status = &vm["status"];
    ensure!(
        status["node"] != *node && status["podName"] != *pod,
        "{status}"
    );
    ensure!(status["node"] == moved["status"]["targetNode"], "{status}");
    let home = world.get("pod", status["podName"].as_str().context("it has a pod")?)?;
    ensure!(status["podIP"] == home["status"]["podIP"], "{status}");
    ensure!(status["node"] == home["spec"]["nodeName"], "{status}");
    ensure!(status["restartCount"] == 0, "{status}");
    world.pods_are(1).await?;
    world.guests_are(1).await?;
    ensure!(
        world.guest_says(&vm, BOOT_ID).await? == boot,
        "it is another guest"
    );
    goes_on(world, &vm).await?;
    say(&moved);
    unload(world, &vm).await
}

/// The target's QEMU ends while memory is sent. The guest stays, and nothing is left of the target.
async fn target_dies(world: &World, vm: &Value) -> Result<()> {
    let source = world.cluster.qemus();
    migrate(
        world,
        "fails",
        &json!({"vmName": "pg", "maxBandwidth": "4Mi"}),
    )?;
    let is_sent = |found: &Value| found["status"]["info"]["ram"]["transferred"].as_u64() > Some(0);
    world
        .that("neonvmm", "fails", "sends memory", is_sent)
        .await?;
    for qemu in world.cluster.qemus().difference(&source) {
        kill(Pid::from_raw(*qemu), Signal::SIGKILL)?;
    }
    let failed = |found: &Value| found["status"]["phase"] == "Failed";
    world.that("neonvmm", "fails", "has failed", failed).await?;
    let home = &vm["status"]["podName"];
    let stays = |vm: &Value| vm["status"]["phase"] == "Running" && vm["status"]["podName"] == *home;
    world.vm_that("stays", stays).await?;
    world.pods_are(1).await?;
    world.guests_are(1).await?;
    ensure!(world.cluster.qemus() == source, "another QEMU than before");
    goes_on(world, vm).await
}

/// A client without the controller's token reads and changes nothing at the runner's port.
fn strangers_give_no_orders(world: &World, vm: &Value) -> Result<()> {
    for request in ["GET /v1/state", "POST /cpu_change"] {
        let text = world.runner_says(vm, request)?;
        ensure!(text.contains(" 401 "), "{request}: {text}");
    }
    Ok(())
}

/// Prints the times of a migration.
#[expect(clippy::print_stdout, reason = "measured")]
fn say(migration: &Value) {
    println!("{:?}", said(migration));
}
