//! Pods a second that a real kube-scheduler binds on a real API server, with our process as its
//! extender and without.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bellows_tests::cluster::{ControlPlane, Lifetime, Pair, Programs, Tier};
use bellows_tests::patience::wait_for;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;

use super::numbers::as_f64;

/// Nodes. Each has capacity for a hundred VMs.
const NODES: usize = 20;
/// Concurrent creations of pods. The API server accepts them faster than they are bound.
const AT_ONCE: usize = 16;
/// Longest time for all of them.
const PATIENCE: Duration = Duration::from_secs(600);

/// Pods bound a second: by the pair, and by kube-scheduler alone.
pub(super) async fn rates(bin_dir: &Path, pods: usize) -> Result<Option<(f64, f64)>> {
    let Some(programs) = Programs::find() else {
        return Ok(None);
    };
    if pods > NODES * 100 {
        bail!("there is room for {} pods", NODES * 100);
    }
    let dir = tempfile::tempdir()?;
    let mut plane = ControlPlane::start(programs, dir.path(), Tier::Api, Lifetime::WithUs).await?;
    plane.install_kinds()?;
    plane.namespace("default").await?;
    for node in 0..NODES {
        plane.node(&format!("n{node}"), 64, 256).await?;
    }
    let program = bin_dir.join("autoscale-scheduler");
    let pair = Pair::start(&mut plane, &program)?;
    let together = rate(&plane, "autoscale-scheduler", pods).await?;
    pair.kill_kubes(&mut plane)?;
    drop(pair);
    plane.start_scheduler(None)?;
    let alone = rate(&plane, "default-scheduler", pods).await?;
    Ok(Some((together, alone)))
}

async fn rate(plane: &ControlPlane, scheduler: &str, count: usize) -> Result<f64> {
    let pods: Api<Pod> = Api::namespaced(plane.client().await?, "default");
    let pods = &pods;
    // The first shows that everything runs, and is not counted.
    create(pods, scheduler, 0).await?;
    bound(pods, 1).await?;
    let began = Instant::now();
    let made = stream::iter(1..=count).map(|number| create(pods, scheduler, number));
    made.buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    bound(pods, count + 1).await?;
    let took = began.elapsed().as_secs_f64();
    let now = DeleteParams::default().grace_period(0);
    let _listed = pods.delete_collection(&now, &ListParams::default()).await?;
    Ok(as_f64(count) / took)
}

async fn create(pods: &Api<Pod>, scheduler: &str, number: usize) -> Result<()> {
    let guest = json!({"cpus": {"min": "250m", "use": "500m", "max": 4}, "memorySlotSize": "1Gi",
        "memorySlots": {"min": 1, "use": 2, "max": 8}});
    let name = format!("vm-{number}");
    let pod = json!({"metadata": {"name": name,
            "annotations": {"vm.neon.tech/resources": guest.to_string()},
            "ownerReferences": [{"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": name,
                "uid": format!("uid-{number}"), "controller": true}]},
        "spec": {"schedulerName": scheduler, "containers": [{"name": "runner", "image": "runner"}]}});
    let pod = serde_json::from_value(pod)?;
    pods.create(&PostParams::default(), &pod).await?;
    Ok(())
}

/// Waits until `count` pods have a node.
async fn bound(pods: &Api<Pod>, count: usize) -> Result<()> {
    wait_for("every pod on a node", PATIENCE, || async {
        // The response is one page of objects. Only their number is needed.
        let free = ListParams::default().fields("spec.nodeName=").limit(1);
        let free = pods.list_metadata(&free).await.map_err(|e| e.to_string())?;
        let all = ListParams::default().limit(1);
        let all = pods.list_metadata(&all).await.map_err(|e| e.to_string())?;
        let more = all.metadata.remaining_item_count.unwrap_or(0);
        let known = all.items.len() + usize::try_from(more).unwrap_or(0);
        match (free.items.is_empty(), known >= count) {
            (true, true) => Ok(()),
            _ => Err(format!("{known} pods, not all of them bound")),
        }
    })
    .await
}
