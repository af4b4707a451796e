//! A node fills up, and the scheduler sends a VM to the other one: the agent it leaves stops sizing
//! it, and the agent of its new node goes on.

use anyhow::{Context as _, Result, ensure};
use bellows_tests::patience::wait_for;
use serde_json::{Value, json};
use test_records::retry::Attempts;

use super::moving::{BOOT_ID, again_with_another_guest};
use super::rollout::{begin, bound, bounds, size};
use super::{PATIENCE, World};

/// The pod that fills the VM's node.
const FILLER: &str = "filler";
/// Part of a node's CPUs from which VMs are sent away, as deployed, and what the node is filled to.
const FILLED: f64 = 0.94;

/// Again with a new guest where QEMU without KVM broke the first one.
pub(super) async fn moved_by_the_scheduler(world: &World) -> Result<()> {
    let mut attempts =
        Attempts::of("a_vm_that_the_scheduler_moves_is_sized_by_the_agent_of_its_new_node");
    loop {
        let ended = story(world).await;
        may_migrate(world, false)?;
        let plane = world.cluster.plane();
        plane.ask(&["delete", "pod", FILLER, "--ignore-not-found", "--now"])?;
        // Cases after this one find agents that observe, as they are deployed.
        plane.ask(&[
            "label",
            "namespace",
            "default",
            "autoscaling.neon.tech/mode-",
        ])?;
        if !again_with_another_guest(world, &mut attempts, &ended).await? {
            return ended;
        }
    }
}

/// Requirement: N15.
async fn story(world: &World) -> Result<()> {
    let vm = begin(world).await?;
    let boot = world.guest_says(&vm, BOOT_ID).await?;
    let node = text(&vm, "/status/node")?;
    may_migrate(world, true)?;
    fill(world, &node)?;
    let (name, migration) = migration_of_the_scheduler(world).await?;
    ensure!(migration["spec"]["vmName"] == "pg", "{migration}");
    // From here on the agent would grow the VM, if it were still its own.
    bound(world, Some(bounds("750m", "2Gi")))?;
    let moved = not_sized_until_it_has_moved(world, &name, &node).await?;
    ensure!(
        world.guest_says(&moved, BOOT_ID).await? == boot,
        "it is another guest"
    );
    size(world, "750m", "2Gi").await?;
    let sized = world.vm().await?;
    ensure!(text(&sized, "/status/node")? != node, "{}", sized["status"]);
    may_migrate(world, false)?;
    size(world, "250m", "1Gi").await?;
    world.is_sized(false)?;
    bound(world, None)
}

/// Lets the scheduler move the VM, or not.
fn may_migrate(world: &World, may: bool) -> Result<()> {
    let may = may.then_some("true");
    let labels = json!({"autoscaling.neon.tech/auto-migration-enabled": may});
    world.patch(&json!({"metadata": {"labels": labels}}))
}

/// Puts a pod on a node that requests what is free of its CPUs, up to [`FILLED`].
fn fill(world: &World, node: &str) -> Result<()> {
    let capacity = milli_cpus(&world.get("node", node)?["status"]["allocatable"]["cpu"])?;
    let plane = world.cluster.plane();
    let selector = format!("--field-selector=spec.nodeName={node}");
    let pods: Value =
        serde_json::from_str(&plane.ask(&["get", "pods", "-A", &selector, "-o", "json"])?)?;
    let mut used = 0.0;
    for container in pods["items"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|pod| pod["spec"]["containers"].as_array().into_iter().flatten())
    {
        let requested = &container["resources"]["requests"]["cpu"];
        if !requested.is_null() {
            used += milli_cpus(requested)?;
        }
    }
    let cpu = capacity * FILLED - used;
    ensure!(cpu >= 1.0, "{node} is full: {used} of {capacity}");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": FILLER},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [{
            "name": "c", "image": "bellows/busybox:1", "imagePullPolicy": "Never",
            "command": ["sleep", "100000"],
            "resources": {"requests": {"cpu": format!("{cpu:.0}m")}}}]}});
    plane.apply(&pod.to_string())
}

/// Thousandths of a CPU of a quantity.
fn milli_cpus(quantity: &Value) -> Result<f64> {
    let text = quantity.as_str().context("a quantity")?;
    Ok(match text.strip_suffix('m') {
        Some(thousandths) => thousandths.parse()?,
        None => 1_000.0 * text.parse::<f64>()?,
    })
}

/// Waits until the scheduler has made a migration.
async fn migration_of_the_scheduler(world: &World) -> Result<(String, Value)> {
    let label = "autoscaling.neon.tech/created-by-scheduler=true";
    wait_for("a migration of the scheduler", PATIENCE, || async {
        let plane = world.cluster.plane();
        let found = plane.ask(&["get", "neonvmm", "-l", label, "-o", "json"]);
        let found = found.map_err(|error| format!("{error:#}"))?;
        let found: Value = serde_json::from_str(&found).map_err(|error| error.to_string())?;
        let first = found["items"][0].clone();
        match first["metadata"]["name"].as_str() {
            Some(name) => Ok((name.to_owned(), first.clone())),
            None => Err("none".to_owned()),
        }
    })
    .await
}

/// Watches the VM until it runs on another node, and the size of its object while its migration is
/// not over. The scheduler deletes one that is.
async fn not_sized_until_it_has_moved(world: &World, name: &str, node: &str) -> Result<Value> {
    let plane = world.cluster.plane();
    let moved = wait_for("the VM on another node", PATIENCE, || async {
        // The object is read first: what it says was so while the migration was there.
        let vm = world.get("neonvm", "pg");
        let vm = vm.map_err(|error| format!("{error:#}"))?;
        let is_there = plane.ask(&["get", "neonvmm", name]).is_ok();
        let used = &vm["spec"]["guest"]["cpus"]["use"];
        if is_there && vm["status"]["phase"] == "Migrating" && used != "250m" {
            return Ok(Err(format!("its agent set {used} while it moved")));
        }
        let is_moved = vm["status"]["phase"] == "Running" && vm["status"]["node"] != node;
        if is_moved {
            Ok(Ok(vm))
        } else {
            Err(vm["status"].to_string())
        }
    });
    moved.await?.map_err(anyhow::Error::msg)
}

fn text(object: &Value, pointer: &str) -> Result<String> {
    let found = object.pointer(pointer).and_then(Value::as_str);
    Ok(found.with_context(|| format!("no {pointer}"))?.to_owned())
}
