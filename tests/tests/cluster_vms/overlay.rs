//! Guests of two nodes in the overlay network, with everything of it deployed as it is shipped but for multus, for which a plugin of the
//! test's stands.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use bellows_tests::api::foreign_kind;
use bellows_tests::checkout;
use bellows_tests::patience::wait_for;
use serde_json::{Value, json};

use super::{PATIENCE, World, minimal};

/// Stands for multus; what it is called in the nodes' list of plugins, which begins with the pods' own.
const PLUGIN: &str = include_str!("second.sh");
const INSTALL: &str = r#"set -eu
cat > /usr/lib/cni/second
chmod 755 /usr/lib/cni/second
grep -q second /etc/cni/net.d/10-pods.conflist ||
    sed -i 's/"plugins": \[/"plugins": [{"type": "second"},/' /etc/cni/net.d/10-pods.conflist"#;
const NAMES: [&str; 2] = ["over-one", "over-two"];
const SPACE: &str = "neonvm-system";

/// Runs a program that must succeed, with something to read.
fn feed(mut command: Command, input: &str) -> Result<()> {
    use std::io::Write as _;
    let mut child = command.stdin(std::process::Stdio::piped()).spawn()?;
    child
        .stdin
        .take()
        .context("it reads")?
        .write_all(input.as_bytes())?;
    let status = child.wait()?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// Everything that `docs/overlay.md` asks for.
async fn deploy(world: &World) -> Result<()> {
    let plane = world.cluster.plane();
    for node in world.cluster.names() {
        let mut install = world.cluster.in_node(&node, "sh")?;
        install.args(["-c", INSTALL]);
        feed(install, PLUGIN)?;
    }
    let names = [
        "NetworkAttachmentDefinition",
        "network-attachment-definitions",
        "network-attachment-definition",
    ];
    plane.apply(&foreign_kind("k8s.cni.cncf.io", names, false).to_string())?;
    let kind = "crd/network-attachment-definitions.k8s.cni.cncf.io";
    plane.ask(&[
        "wait",
        "--for=condition=Established",
        "--timeout=120s",
        kind,
    ])?;
    let folder = checkout().join("deploy/overlay");
    plane.ask(&["apply", "-k", &folder.display().to_string()])?;
    let options = [
        "--nad-ipam-name=overlay-ipam",
        "--nad-ipam-namespace=neonvm-system",
        "--nad-runner-name=overlay-for-vms",
        "--nad-runner-namespace=neonvm-system",
    ];
    let add = |option| json!({"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": option});
    let patch = Value::from(options.map(add).to_vec()).to_string();
    plane.ask(&[
        "patch",
        "deployment",
        "neonvm-controller",
        "-n",
        SPACE,
        "--type=json",
        "-p",
        &patch,
    ])?;
    for part in [
        "daemonset/neonvm-vxlan-controller",
        "deployment/neonvm-controller",
    ] {
        let what = format!("{part} to be rolled out");
        let args = ["rollout", "status", "-n", SPACE, "--timeout=5s", part];
        let done = wait_for(&what, PATIENCE, || async {
            plane.ask(&args).map_err(|error| format!("{error:#}"))
        });
        done.await?;
    }
    Ok(())
}

pub(super) async fn between_nodes(world: &World) -> Result<()> {
    deploy(world).await?;
    let plane = world.cluster.plane();
    for (name, node) in NAMES.into_iter().zip(world.cluster.names()) {
        let mut vm = minimal();
        vm["metadata"]["name"] = json!(name);
        vm["spec"]["extraNetwork"] = json!({"enable": true});
        vm["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        plane.apply(&vm.to_string())?;
    }
    let mut vms = Vec::new();
    for name in NAMES {
        let runs = |vm: &Value| vm["status"]["phase"] == "Running";
        vms.push(world.that("neonvm", name, "runs", runs).await?);
    }
    ensure!(
        vms[0]["status"]["node"] != vms[1]["status"]["node"],
        "{vms:?}"
    );
    for (vm, other) in [(&vms[0], &vms[1]), (&vms[1], &vms[0])] {
        let own = vm["status"]["extraNetIP"].as_str().context("an address")?;
        let seen = world
            .guest_says(vm, "ip -o -4 address show dev eth1")
            .await?;
        ensure!(seen.contains(&format!("{own}/16")), "{seen}");
        let there = other["status"]["extraNetIP"]
            .as_str()
            .context("an address")?;
        // Waits for frames that find their way only once both bridges are whole.
        world
            .guest_says(vm, &format!("ping -c 1 -W 5 {there}"))
            .await?;
    }
    for name in NAMES {
        plane.ask(&["delete", "neonvm", name, "--timeout=240s"])?;
    }
    for name in NAMES {
        let pods = [
            "get",
            "pods",
            "-l",
            &format!("vm.neon.tech/name={name}"),
            "-o",
            "name",
        ];
        let gone = wait_for("the pods to be gone", PATIENCE, || async {
            let pods = plane.ask(&pods).map_err(|error| format!("{error:#}"))?;
            if pods.is_empty() { Ok(()) } else { Err(pods) }
        });
        gone.await?;
    }
    Ok(())
}
