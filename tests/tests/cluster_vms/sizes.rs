//! The VM's default values, patches of its size, revisions, and autoscaling under load.

use anyhow::{Context as _, Result, ensure};
use bellows_tests::cluster::is_ready;
use serde_json::{Value, json};

use super::World;

pub(super) async fn default_values(world: &World) -> Result<()> {
    let vm = world.vm().await?;
    let spec = &vm["spec"];
    for (field, value) in [
        ("qmp", json!(20183)),
        ("qmpManual", json!(20184)),
        ("runnerPort", json!(25183)),
        ("restartPolicy", json!("Always")),
        ("enableAcceleration", json!(true)),
        ("enableSSH", json!(true)),
        ("terminationGracePeriodSeconds", json!(5)),
        ("cpuScalingMode", json!("QmpScaling")),
    ] {
        ensure!(spec[field] == value, "{field} is {}", spec[field]);
    }
    let guest = &spec["guest"];
    ensure!(guest["memorySlotSize"] == "1Gi", "{guest}");
    ensure!(guest["ports"][0]["protocol"] == "TCP", "{guest}");
    let status = &vm["status"];
    ensure!(status["restartCount"] == 0, "{status}");
    let pod = status["podName"].as_str().context("it has a pod")?;
    let pod = world.get("pod", pod)?;
    ensure!(is_ready(&pod), "{}", pod["status"]);
    ensure!(status["podIP"] == pod["status"]["podIP"], "{status}");
    ensure!(status["node"] == pod["spec"]["nodeName"], "{status}");
    ensure!(
        pod["metadata"]["ownerReferences"][0]["name"] == "pg",
        "{pod}"
    );
    out_of_range_is_refused(world)?;
    world.guest_sees(&vm, 1, 1).await
}

/// The API server calls the controller, through the service and the certificate that it created.
fn out_of_range_is_refused(world: &World) -> Result<()> {
    let patch = r#"{"spec": {"guest": {"cpus": {"use": 99}}}}"#;
    let mut kubectl = world.cluster.plane().kubectl();
    kubectl.args(["patch", "neonvm", "pg", "--type=merge", "--patch", patch]);
    let output = kubectl.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success(), "99 CPUs of a few are taken");
    ensure!(said.contains(".spec.guest.cpus.use must not"), "{said}");
    Ok(())
}

pub(super) async fn patch_is_seen(world: &World) -> Result<()> {
    let vm = world.vm().await?;
    let size = |cpus: &str, slots: u32| json!({"spec": {"guest": {"cpus": {"use": cpus}, "memorySlots": {"use": slots}}}});
    for (cpus, whole, slots, memory) in [("1250m", 2, 3, "3Gi"), ("250m", 1, 1, "1Gi")] {
        world.patch(&size(cpus, slots))?;
        world.vm_has(cpus, memory).await?;
        world.guest_sees(&vm, whole, slots.into()).await?;
        let pod = vm["status"]["podName"].as_str().context("it has a pod")?;
        let requests = json!({"cpu": cpus, "memory": memory});
        let holds = |pod: &Value| requested(pod).is_some_and(|held| held == &requests);
        world
            .that("pod", pod, &format!("requests {requests}"), holds)
            .await?;
        // While the pod's requests were written, the guest's kernel started its second CPU.
        let page = world.runner_says(&vm, "GET /metrics")?;
        let ahead = "\nrunner_vm_cpus_ahead_total ";
        let is_counted = page.contains(ahead) && !page.contains(&format!("{ahead}0\n"));
        ensure!(is_counted, "{page}");
        late_change_is_refused(world, pod)?;
        for object in [["neonvm", "pg"], ["pod", pod]] {
            no_field_manager_is_kept(world, object)?;
        }
    }
    Ok(())
}

/// The API server keeps no field managers. They would cost nearly half of each write.
fn no_field_manager_is_kept(world: &World, object: [&str; 2]) -> Result<()> {
    let show = [
        "--show-managed-fields",
        "-o",
        "jsonpath={.metadata.managedFields}",
    ];
    let kept = world
        .cluster
        .plane()
        .ask(&[&["get"], &object[..], &show].concat())?;
    ensure!(kept.is_empty(), "{object:?}: {kept}");
    Ok(())
}

/// A change of a pod's requests that is based on an older state has no effect. The server counts
/// the changes and refuses it with the code that the controller expects.
fn late_change_is_refused(world: &World, pod: &str) -> Result<()> {
    let before = world.get("pod", pod)?;
    let generation = before["metadata"]["generation"].as_i64();
    let generation = generation.context("its changes are counted")?;
    let late = json!([
        {"op": "test", "path": "/metadata/generation", "value": generation - 1},
        {"op": "add", "path": "/spec/containers/0/resources/requests/cpu", "value": "1m"},
    ]);
    let late = late.to_string();
    let patch = ["patch", "pod", pod, "--subresource=resize", "--type=json"];
    let args = [&patch[..], &["-p", &late, "-v=6"]].concat();
    let said = world.cluster.plane().ask(&args);
    let said = said.err().context("it was carried out")?;
    let said = format!("{said:#}");
    ensure!(said.contains("422 Unprocessable"), "{said}");
    Ok(())
}

/// Requests of the runner's container, as its node reports them.
fn requested(pod: &Value) -> Option<&Value> {
    let statuses = pod["status"]["containerStatuses"].as_array()?;
    let runner = statuses.iter().find(|it| it["name"] == "neonvm-runner")?;
    runner["resources"].get("requests")
}

pub(super) async fn revisions(world: &World) -> Result<()> {
    world.vm().await?;
    // Only equality matters. A smaller revision is accepted.
    for value in [7, 3] {
        let revision = json!({"value": value, "flags": 1});
        let target = json!({"revision": revision, "updatedAt": "2026-01-01T00:00:00Z"});
        world.patch(&json!({"spec": {"targetRevision": target}}))?;
        let holds = |vm: &Value| vm["status"]["currentRevision"]["revision"] == revision;
        world
            .vm_that(&format!("is at revision {value}"), holds)
            .await?;
    }
    Ok(())
}

pub(super) async fn autoscaling(world: &World) -> Result<()> {
    let vm = world.vm().await?;
    // As they are deployed, the agents only observe.
    world.is_sized(true)?;
    let spin = "echo $$ >> /tmp/load; while :; do :; done";
    let mut loads = Vec::new();
    for _ in 0..2 {
        let (mut ssh, key) = world.ssh(&vm)?;
        loads.push((ssh.arg(spin).spawn()?, key));
    }
    world.is_held_by("observe_mode").await?;
    ensure!(world.get("neonvm", "pg")?["spec"]["guest"]["cpus"]["use"] == "250m");
    world.mode("grow")?;
    let grown = |vm: &Value| vm["status"]["cpus"] == "1250m" && vm["status"]["memorySize"] == "5Gi";
    let vm = world
        .vm_that("has grown to its largest size", grown)
        .await?;
    let approved = "internal.autoscaling.neon.tech/resources-approved";
    let permit = vm["metadata"]["annotations"][approved].as_str();
    let permit: Value = serde_json::from_str(permit.context("it has a permit")?)?;
    ensure!(
        permit == json!({"vCPUs": "1250m", "mem": "5Gi"}),
        "{permit}"
    );
    world.guest_sees(&vm, 2, 5).await?;
    world.guest(&vm, "kill $(cat /tmp/load)")?;
    for (mut load, _key) in loads {
        load.wait()?;
    }
    world.is_held_by("grow_mode").await?;
    ensure!(world.get("neonvm", "pg")?["spec"]["guest"]["cpus"]["use"] == "1250m");
    world.mode("full")?;
    let shrunk = |vm: &Value| {
        let (spec, status) = (&vm["spec"]["guest"], &vm["status"]);
        spec["cpus"]["use"] != "1250m" && status["cpus"] == spec["cpus"]["use"]
    };
    world.vm_that("is smaller again", shrunk).await?;
    world.is_sized(false)
}
