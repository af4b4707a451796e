//! Rollouts and evictions of schedulers: they end on their own, another replica leads, and sizes
//! follow their bounds.

use anyhow::{Context as _, Result, ensure};
use bellows_tests::cluster::is_ready;
use bellows_tests::patience::wait_for;
use serde_json::{Value, json};

use super::{PATIENCE, World};

/// A pod of the scheduler that is there to stay.
struct Scheduler {
    name: String,
    node: String,
    leads: bool,
}

fn schedulers(world: &World) -> Result<Vec<Scheduler>> {
    let args = [
        "get",
        "pods",
        "-n",
        "kube-system",
        "-l",
        "name=autoscale-scheduler",
        "-o",
        "json",
    ];
    let pods: Value = serde_json::from_str(&world.cluster.plane().ask(&args)?)?;
    let pods = pods["items"].as_array().context("a list")?;
    let staying = pods
        .iter()
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let schedulers = staying.map(|pod| Scheduler {
        name: text(&pod["metadata"]["name"]),
        node: text(&pod["spec"]["nodeName"]),
        leads: is_ready(pod),
    });
    Ok(schedulers.collect())
}

/// Waits for two replicas that are not in `gone`, one of which leads. Returns their nodes.
async fn two_of_which_one_leads(world: &World, gone: &[String]) -> Result<String> {
    wait_for("two schedulers of which one leads", PATIENCE, || async {
        let found = schedulers(world).map_err(|error| format!("{error:#}"))?;
        let are_there: Vec<&Scheduler> = found
            .iter()
            .filter(|one| !gone.contains(&one.name))
            .collect();
        let leaders: Vec<_> = are_there.iter().filter(|one| one.leads).collect();
        match leaders[..] {
            [leader] if found.len() == 2 && are_there.len() == 2 => Ok(leader.node.clone()),
            _ => {
                let shown = found.iter().map(|one| (&one.name, one.leads));
                Err(format!("{:?}", shown.collect::<Vec<_>>()))
            }
        }
    })
    .await
}

/// Has the agents size the VM, within bounds: a guest that load has grown leaves a node of two CPUs
/// no space for another scheduler, which then preempts the guest's pod.
pub(super) async fn begin(world: &World) -> Result<Value> {
    let vm = world.vm().await?;
    // Bounds first: a pod's requests rise at once, and fall later than its guest does.
    bound(world, Some(bounds("250m", "1Gi")))?;
    world.mode("full")?;
    world.is_sized(true)?;
    world.vm_has("250m", "1Gi").await?;
    Ok(vm)
}

pub(super) fn bound(world: &World, bounds: Option<String>) -> Result<()> {
    let annotations = json!({"autoscaling.neon.tech/bounds": bounds});
    world.patch(&json!({"metadata": {"annotations": annotations}}))
}

pub(super) fn bounds(cpu: &str, mem: &str) -> String {
    let size = json!({"cpu": cpu, "mem": mem});
    json!({"min": size, "max": size}).to_string()
}

/// Allows one size only, and waits until the VM has it, permitted by the leader of that time.
pub(super) async fn size(world: &World, cpu: &str, mem: &str) -> Result<()> {
    bound(world, Some(bounds(cpu, mem)))?;
    world.vm_has(cpu, mem).await
}

/// Leaves the VM alone again, which is to be in the same pod as before.
pub(super) async fn end(world: &World, before: &Value) -> Result<()> {
    world.is_sized(false)?;
    bound(world, None)?;
    let after = world.vm().await?;
    for field in ["podName", "restartCount"] {
        ensure!(
            after["status"][field] == before["status"][field],
            "{}",
            after["status"]
        );
    }
    Ok(())
}

/// Requirement: N48. A new version of the scheduler is rolled out while a VM is to grow.
pub(super) async fn rolled_out(world: &World) -> Result<()> {
    let vm = begin(world).await?;
    two_of_which_one_leads(world, &[]).await?;
    let before = schedulers(world)?.into_iter().map(|one| one.name);
    let before: Vec<String> = before.collect();
    let deployment = "deployment/autoscale-scheduler";
    let restart = ["rollout", "restart", "-n", "kube-system", deployment];
    world.cluster.plane().ask(&restart)?;
    size(world, "750m", "3Gi").await?;
    // `rollout status` is no judge: it waits until all are ready, and one alone ever is.
    two_of_which_one_leads(world, &before).await?;
    size(world, "250m", "1Gi").await?;
    end(world, &vm).await
}

/// Requirement: N48. The node of the leading scheduler is drained. Nothing refuses the eviction.
pub(super) async fn drained(world: &World) -> Result<()> {
    let vm = begin(world).await?;
    let node = two_of_which_one_leads(world, &[]).await?;
    let evicted = schedulers(world)?
        .into_iter()
        .filter(|one| one.node == node);
    let evicted: Vec<String> = evicted.map(|one| one.name).collect();
    let plane = world.cluster.plane();
    let drain = [
        "drain",
        &node,
        "--pod-selector=name=autoscale-scheduler",
        "--timeout=120s",
    ];
    let drained = plane.ask(&drain);
    // Whatever came of it, those after this need the node.
    plane.ask(&["uncordon", &node])?;
    drained?;
    two_of_which_one_leads(world, &evicted).await?;
    size(world, "750m", "3Gi").await?;
    size(world, "250m", "1Gi").await?;
    end(world, &vm).await
}
