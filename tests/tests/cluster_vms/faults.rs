//! Faults of a cluster, and their effect on the guests.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bellows_tests::cluster::Part;
use bellows_tests::patience::wait_for;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{PATIENCE, World, minimal, moving, rollout};

/// Kubernetes gives a node up after 50 s, and its pods after another 30 s. Then a guest boots.
const GIVEN_UP: Duration = Duration::from_secs(480);
/// Default time of the API server's absence: longer than the controller's Lease and the timeouts of
/// its requests.
const AWAY_SECONDS: u64 = 20;
/// Variable with another time in seconds.
const AWAY: &str = "BELLOWS_API_AWAY_SECONDS";

/// An image that no node and no registry has. The VM's status reports it.
pub(super) async fn image_that_is_not_there(world: &World) -> Result<()> {
    let mut vm = minimal();
    vm["metadata"]["name"] = json!("absent");
    vm["spec"]["guest"]["rootDisk"]["image"] = json!("bellows/not-there:1");
    world.cluster.plane().apply(&vm.to_string())?;
    let says = |vm: &Value| {
        let conditions = vm["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let degraded = conditions.find(|one| one["type"] == "Degraded" && one["status"] == "True");
        let text = degraded
            .and_then(|one| one["message"].as_str())
            .unwrap_or_default();
        vm["status"]["phase"] == "Pending" && text.contains("ImagePull")
    };
    world
        .that("neonvm", "absent", "says what it lacks", says)
        .await?;
    let args = ["delete", "neonvm", "absent", "--timeout=60s"];
    world.cluster.plane().ask(&args).map(drop)
}

/// Requirement: N48. The schedulers' pods are deleted again and again. Each time the VM gets the
/// size of its bounds, permitted by the scheduler of that time. Its pod stays.
pub(super) async fn schedulers_deleted(world: &World) -> Result<()> {
    let vm = rollout::begin(world).await?;
    let plane = world.cluster.plane();
    let schedulers = ["-n", "kube-system", "-l", "name=autoscale-scheduler"];
    for (cpu, mem) in [
        ("750m", "3Gi"),
        ("250m", "1Gi"),
        ("750m", "3Gi"),
        ("250m", "1Gi"),
    ] {
        let delete = [&["delete", "pods", "--wait=false"], &schedulers[..]].concat();
        plane.ask(&delete)?;
        rollout::size(world, cpu, mem).await?;
    }
    rollout::end(world, &vm).await?;
    // One that waits for the other's end is not ready.
    let ready = "--for=jsonpath={.status.readyReplicas}=1";
    let deployment = "deployment/autoscale-scheduler";
    let wait = [
        "wait",
        "-n",
        "kube-system",
        deployment,
        ready,
        "--timeout=120s",
    ];
    plane.ask(&wait).map(drop)
}

/// The API server does not answer for a while. The guest keeps running and is reachable. Afterwards
/// it is resized as before.
pub(super) async fn api_server_away(world: &World) -> Result<()> {
    let vm = world.vm().await?;
    moving::load(world, &vm).await?;
    let (mut ssh, _key) = world.ssh(&vm)?;
    let away = std::env::var(AWAY).map_or(Ok(AWAY_SECONDS), |text| text.parse());
    let away: u64 = away.context(AWAY)?;
    world.cluster.hold(Part::ApiServer, true)?;
    // No request goes to the API meanwhile. The guest itself records the load.
    let watch = format!(
        "export PATH=$PATH:/usr/lib/postgresql/15/bin; \
         n() {{ psql -h /tmp -U postgres -Atc 'select count(*) from pgbench_history' bench; }}; \
         before=$(n); sleep {away}; after=$(n); test $after -gt $before && echo more"
    );
    let seen = ssh.arg(watch).output();
    world.cluster.hold(Part::ApiServer, false)?;
    let seen = seen?;
    ensure!(
        String::from_utf8_lossy(&seen.stdout).trim() == "more",
        "the guest stood still: {}",
        String::from_utf8_lossy(&seen.stderr)
    );
    for (slots, memory) in [(2, "2Gi"), (1, "1Gi")] {
        wait_for("a patch that is taken", PATIENCE, || async {
            let size = json!({"spec": {"guest": {"memorySlots": {"use": slots}}}});
            world.patch(&size).map_err(|error| format!("{error:#}"))
        })
        .await?;
        let has =
            |vm: &Value| vm["status"]["memorySize"] == memory && vm["status"]["phase"] == "Running";
        world.vm_that(&format!("has {memory}"), has).await?;
    }
    let after = world.vm().await?;
    ensure!(
        after["status"]["podName"] == vm["status"]["podName"]
            && after["status"]["restartCount"] == vm["status"]["restartCount"],
        "{}",
        after["status"]
    );
    moving::goes_on(world, &after).await?;
    moving::unload(world, &after).await
}

/// Requirement: N17. An ended guest restarts in another pod, and so does a guest whose pod is
/// deleted. Both restarts are counted.
pub(super) async fn restarts(world: &World) -> Result<()> {
    let vm = world.vm().await?;
    world.guests_are(1).await?;
    let before = vm["status"]["restartCount"].as_u64().unwrap_or(0);
    for qemu in world.cluster.qemus() {
        kill(Pid::from_raw(qemu), Signal::SIGKILL)?;
    }
    let vm = again(world, &vm, before + 1).await?;
    let pod = vm["status"]["podName"].as_str().context("it has a pod")?;
    let args = ["delete", "pod", pod, "--wait=false"];
    world.cluster.plane().ask(&args)?;
    again(world, &vm, before + 2).await?;
    let plane = world.cluster.plane();
    plane.ask(&["delete", "neonvm", "pg", "--timeout=120s"])?;
    world.pods_are(0).await?;
    world.guests_are(0).await
}

/// A node loses its power, with the guest and any of our leaders on it. Kubernetes gives the node
/// up, and the VM starts on the other node although the state of its pod is unknown.
pub(super) async fn node_gone(world: &World) -> Result<()> {
    let vm = world.vm().await?;
    world.guests_are(1).await?;
    let node = vm["status"]["node"].as_str().context("it has a node")?;
    world.cluster.power_off(node)?;
    world.guests_are(0).await?;
    let (pod, count) = (&vm["status"]["podName"], &vm["status"]["restartCount"]);
    let holds = |vm: &Value| {
        let status = &vm["status"];
        let is_elsewhere = status["node"] != node && status["podName"] != *pod;
        status["phase"] == "Running" && is_elsewhere && status["restartCount"] != *count
    };
    let again = wait_for("a VM that runs elsewhere", GIVEN_UP, || async {
        let vm = world
            .get("neonvm", "pg")
            .map_err(|error| format!("{error:#}"))?;
        if holds(&vm) {
            Ok(vm)
        } else {
            Err(vm["status"].to_string())
        }
    });
    let again = again.await?;
    world.guest_says(&again, "true").await?;
    world.guests_are(1).await
}

/// Waits until the VM runs in another pod than before, and no other guest of it does.
async fn again(world: &World, before: &Value, count: u64) -> Result<Value> {
    let pod = &before["status"]["podName"];
    let holds = |vm: &Value| {
        let status = &vm["status"];
        status["restartCount"] == count && status["phase"] == "Running" && status["podName"] != *pod
    };
    let what = format!("runs again, the {count}. time");
    let vm = world.vm_that(&what, holds).await?;
    world.guest_says(&vm, "true").await?;
    world.pods_are(1).await?;
    world.guests_are(1).await?;
    Ok(vm)
}
