//! Guests of two nodes in the overlay network, deployed as shipped, with the published multus.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use bellows_tests::api::attachment_kind;
use bellows_tests::checkout;
use bellows_tests::cluster::is_ready;
use bellows_tests::patience::wait_for;
use serde_json::{Value, json};

use super::{PATIENCE, World, minimal};

/// Directory of the pods' network plugins in a node.
const PLUGINS: &str = "/usr/lib/cni";
const SETTINGS: &str = "/etc/cni/net.d";
/// Account and rights of multus: it reads pods and networks, and writes its result into a pod.
const ACCOUNT: &str = include_str!("multus.yaml");
/// Has it called for every pod, in the place of the plugins of before, which it calls for the first
/// interface.
const CALL: &str = r#"cd /etc/cni/net.d
    printf '{"cniVersion": "0.4.0", "name": "multus", "type": "multus", "binDir": "/usr/lib/cni",
        "capabilities": {"portMappings": true},
        "kubeconfig": "/etc/cni/net.d/multus.d/multus.kubeconfig", "delegates": [%s]}' "$(cat 10-pods.conflist)" > 00-multus.new
    mv 00-multus.new 00-multus.conf"#;
const NAMES: [&str; 2] = ["over-one", "over-two"];
const SPACE: &str = "neonvm-system";
/// Request to multus: namespace, network and interface.
const ASKED: &str = "neonvm-system/overlay-for-vms@net1";
/// Result of multus.
const GIVEN: &str = "neonvm-system/overlay-for-vms";
const CONTROLLER: &str = "name=neonvm-vxlan-controller";
const IMAGE: &str = "docker.io/bellows/neonvm-vxlan-controller:0.1.0";
const POOL: &str = "neonvm-10.100.0.0-16";
/// The lowest ones of the range.
const FIRST: [&str; 2] = ["10.100.128.0", "10.100.128.1"];

/// Runs a script in a node, with something to read.
fn script(world: &World, node: &str, script: &str, input: &[u8]) -> Result<()> {
    let mut command = world.cluster.in_node(node, "sh")?;
    command.args(["-ec", script]).stdin(Stdio::piped());
    let mut child = command.spawn()?;
    let mut pipe = child.stdin.take().context("it reads")?;
    pipe.write_all(input)?;
    drop(pipe);
    let status = child.wait()?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// Installs multus in every node.
fn install_multus(world: &World) -> Result<()> {
    let plane = world.cluster.plane();
    plane.apply(ACCOUNT)?;
    let args = ["create", "token", "multus", "-n", "kube-system"];
    let token = plane.ask(&[&args[..], &["--duration=2h"]].concat())?;
    let kubeconfig = plane.token_kubeconfig_of_nodes(token.trim());
    let program = std::fs::read(&world.others.multus)?;
    for node in world.cluster.names() {
        let put = format!("cat > {PLUGINS}/multus; chmod 755 {PLUGINS}/multus");
        script(world, &node, &put, &program)?;
        let put = format!(
            "umask 077; mkdir -p {SETTINGS}/multus.d; cat > {SETTINGS}/multus.d/multus.kubeconfig"
        );
        script(world, &node, &put, kubeconfig.as_bytes())?;
        script(world, &node, CALL, b"")?;
    }
    Ok(())
}

/// Deploys everything that `docs/overlay.md` requires.
async fn deploy(world: &World) -> Result<()> {
    let plane = world.cluster.plane();
    plane.apply(&attachment_kind().to_string())?;
    plane.until_established()?;
    let folder = checkout().join("deploy/overlay");
    let folder = folder.display().to_string();
    // A kind that is established may be discovered a moment later.
    let taken = wait_for("the overlay to be taken", PATIENCE, || async {
        let applied = plane.ask(&["apply", "-k", &folder]);
        applied.map_err(|error| format!("{error:#}"))
    });
    taken.await?;
    install_multus(world)?;
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

/// The program's pods: one on each node, ready, of the image that is shipped.
fn are_everywhere(world: &World) -> Result<()> {
    let args = ["get", "pods", "-n", SPACE, "-l", CONTROLLER, "-o", "json"];
    let pods: Value = serde_json::from_str(&world.cluster.plane().ask(&args)?)?;
    let pods = pods["items"].as_array().context("pods")?;
    let node = |pod: &Value| pod["spec"]["nodeName"].as_str().map(str::to_owned);
    let nodes: BTreeSet<_> = pods.iter().filter_map(node).collect();
    let all = BTreeSet::from_iter(world.cluster.names());
    ensure!(pods.len() == nodes.len() && nodes == all, "{nodes:?}");
    for pod in pods {
        let container = &pod["status"]["containerStatuses"][0];
        ensure!(
            is_ready(pod) && container["image"] == IMAGE && container["restartCount"] == 0,
            "{container}"
        );
    }
    Ok(())
}

/// Holders of addresses, ordered by address.
fn holders(world: &World) -> Result<Vec<String>> {
    let args = ["get", "ippool", "-n", SPACE, POOL, "-o", "json"];
    let pool: Value = serde_json::from_str(&world.cluster.plane().ask(&args)?)?;
    let allocations = pool["spec"]["allocations"].as_object();
    let mut held: Vec<(u32, String)> = allocations
        .context("allocations")?
        .iter()
        .map(|(offset, holder)| Ok((offset.parse()?, holder["id"].to_string())))
        .collect::<Result<_>>()?;
    held.sort_unstable();
    Ok(held.into_iter().map(|(_, holder)| holder).collect())
}

/// A VM in the overlay on each node.
async fn start_guests(world: &World) -> Result<Vec<Value>> {
    for (name, node) in NAMES.into_iter().zip(world.cluster.names()) {
        let mut vm = minimal();
        vm["metadata"]["name"] = json!(name);
        vm["spec"]["extraNetwork"] = json!({"enable": true});
        vm["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        world.cluster.plane().apply(&vm.to_string())?;
    }
    let mut vms = Vec::new();
    for (name, node) in NAMES.into_iter().zip(world.cluster.names()) {
        let runs = |vm: &Value| vm["status"]["phase"] == "Running";
        let vm = world.that("neonvm", name, "runs", runs).await?;
        ensure!(vm["status"]["node"] == node.as_str(), "{}", vm["status"]);
        let pod = vm["status"]["podName"].as_str().context("it has a pod")?;
        let pod = world.get("pod", pod)?;
        let asked = &pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"];
        ensure!(*asked == ASKED, "{asked}");
        let told = &pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"];
        let told: Value =
            serde_json::from_str(told.as_str().context("multus tells what it gave")?)?;
        ensure!(
            told[1]["name"] == GIVEN && told[1]["interface"] == "net1",
            "{told}"
        );
        vms.push(vm);
    }
    Ok(vms)
}

/// Ends them, until the other cases' guests are alone again.
async fn end_guests(world: &World) -> Result<()> {
    let plane = world.cluster.plane();
    for name in NAMES {
        plane.ask(&["delete", "neonvm", name, "--timeout=240s"])?;
    }
    let label = format!("vm.neon.tech/name in ({})", NAMES.join(","));
    let pods = ["get", "pods", "-l", &label, "-o", "name"];
    let gone = wait_for("the pods to be gone", PATIENCE, || async {
        let pods = plane.ask(&pods).map_err(|error| format!("{error:#}"))?;
        if pods.is_empty() { Ok(()) } else { Err(pods) }
    });
    gone.await?;
    let free = wait_for("free addresses", PATIENCE, || async {
        let held = holders(world).map_err(|error| format!("{error:#}"))?;
        if held.is_empty() {
            Ok(())
        } else {
            Err(format!("{held:?}"))
        }
    });
    free.await
}

fn address(vm: &Value) -> Result<&str> {
    vm["status"]["extraNetIP"].as_str().context("an address")
}

pub(super) async fn between_nodes(world: &World) -> Result<()> {
    deploy(world).await?;
    are_everywhere(world)?;
    let vms = start_guests(world).await?;
    let [one, other] = [&vms[0], &vms[1]];
    let mut addresses = [address(one)?, address(other)?];
    for (vm, there) in [(one, addresses[1]), (other, addresses[0])] {
        let seen = world
            .guest_says(vm, "ip -o -4 address show dev eth1")
            .await?;
        ensure!(seen.contains(&format!(" {}/16 ", address(vm)?)), "{seen}");
        // Waits until frames find their way, which needs the bridges of both nodes.
        let ping = format!("ping -I eth1 -c 1 -W 5 {there}");
        world.guest_says(vm, &ping).await?;
    }
    addresses.sort_unstable();
    ensure!(addresses == FIRST, "{addresses:?}");
    let held = holders(world)?;
    let is_held = |name: &str| held.iter().any(|holder| holder.contains(name));
    ensure!(
        held.len() == 2 && NAMES.into_iter().all(is_held),
        "{held:?}"
    );
    end_guests(world).await
}
