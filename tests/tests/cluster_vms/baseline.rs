//! A VM in a namespace of Pod Security level `baseline`: its pod has no privileges, and it boots,
//! is reached and is resized all the same.

use anyhow::{Context as _, Result, ensure};
use bellows_tests::patience::wait_for;
use serde_json::{Value, json};

use super::{PATIENCE, World, minimal, rows};

const SPACE: &str = "confined";

pub(super) async fn check(world: &World) -> Result<()> {
    // One guest at a time.
    rows::end(world)?;
    let plane = world.cluster.plane();
    plane.namespace(SPACE).await?;
    let level = "pod-security.kubernetes.io/enforce=baseline";
    plane.ask(&["label", "namespace", SPACE, level])?;
    let mut vm = minimal();
    vm["metadata"]["namespace"] = json!(SPACE);
    plane.apply(&vm.to_string())?;
    let vm = that(world, "runs", |status| status["phase"] == "Running").await?;
    let pod = vm["status"]["podName"].as_str().context("it has a pod")?;
    let pod = get(world, &["pod", pod])?;
    let text = pod["spec"].to_string();
    for word in ["\"privileged\":true", "NET_ADMIN", "SYS_ADMIN", "hostPath"] {
        ensure!(!text.contains(word), "{word} in {text}");
    }
    let address = vm["status"]["podIP"].as_str().context("an address")?;
    let greeting = format!("exec 3<>/dev/tcp/{address}/22; timeout 20 head -c 4 <&3");
    wait_for("a guest that greets", PATIENCE, || async {
        let mut bash = world.cluster.on_network("bash");
        let output = bash.args(["-c", &greeting]).output();
        let output = output.map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if said == "SSH-" {
            Ok(())
        } else {
            Err(format!("{output:?}"))
        }
    })
    .await?;
    let size = json!({"spec": {"guest": {"cpus": {"use": 1}, "memorySlots": {"use": 2}}}});
    let patch = [
        "patch",
        "neonvm",
        "pg",
        "--type=merge",
        "--namespace",
        SPACE,
    ];
    plane.ask(&[&patch[..], &["--patch", &size.to_string()]].concat())?;
    let has_it = |status: &Value| status["cpus"] == 1 && status["memorySize"] == "2Gi";
    that(world, "has 1 CPU and 2Gi", has_it).await?;
    plane.ask(&["delete", "namespace", SPACE, "--timeout=120s"])?;
    Ok(())
}

fn get(world: &World, words: &[&str]) -> Result<Value> {
    let all = [&["get", "-o", "json", "--namespace", SPACE], words].concat();
    Ok(serde_json::from_str(&world.cluster.plane().ask(&all)?)?)
}

/// Waits until the VM has such a status.
async fn that(world: &World, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
    wait_for(&format!("a VM that {what}"), PATIENCE, || async {
        let vm = get(world, &["neonvm", "pg"]).map_err(|error| format!("{error:#}"))?;
        if holds(&vm["status"]) {
            Ok(vm)
        } else {
            Err(vm["status"].to_string())
        }
    })
    .await
}
