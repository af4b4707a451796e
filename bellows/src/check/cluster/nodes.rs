//! Checks of a cluster's nodes: kernel, memory, KVM, images, control groups and an agent on each.

use futures::StreamExt as _;
use serde_json::Value;

use super::super::finding::Finding;
use crate::api::Api;
use crate::cluster::{self, AGENT};

/// Oldest kernel of a node that runners support.
const OLDEST_KERNEL: (u32, u32) = (5, 10);

/// Resource of the device plugin that lets guests use KVM.
const KVM: &str = "neonvm/kvm";

/// Nodes that are queried concurrently.
const AT_ONCE: usize = 16;

/// Nodes that a finding names. It counts the others.
const NAMED: usize = 5;

/// Major and minor number of a version such as `v1.34.4` or `6.1.0-13-amd64`.
pub(super) fn numbers(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim_start_matches('v').split(['.', '-', '+']);
    let mut next = || parts.next()?.parse().ok();
    Some((next()?, next()?))
}

fn name_of(node: &Value) -> &str {
    node["metadata"]["name"].as_str().unwrap_or("?")
}

/// Names of the nodes for which `holds` returns false.
fn offenders(nodes: &[Value], holds: impl Fn(&Value) -> bool) -> Vec<String> {
    let bad = nodes.iter().filter(|node| !holds(node));
    bad.map(|node| name_of(node).to_owned()).collect()
}

pub(super) fn list(names: &[String]) -> String {
    let more = names.len().saturating_sub(NAMED);
    let mut text = names[..names.len() - more].join(", ");
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}

pub(super) fn kernels(nodes: &[Value]) -> Finding {
    let name = "kernels";
    let is_new = |node: &Value| {
        let text = node["status"]["nodeInfo"]["kernelVersion"].as_str();
        text.and_then(numbers)
            .is_some_and(|numbers| numbers >= OLDEST_KERNEL)
    };
    let old = offenders(nodes, is_new);
    let (major, minor) = OLDEST_KERNEL;
    if old.is_empty() {
        return Finding::ok(
            name,
            format!("{major}.{minor} or newer on {} nodes", nodes.len()),
        );
    }
    let rule = format!("runners need Linux {major}.{minor}");
    Finding::missing(
        name,
        format!("older on {}", list(&old)),
        rule,
        "upgrade these nodes",
    )
}

/// Allocatable amount of a resource, in bytes or thousandths of a CPU.
fn allocatable(node: &Value, resource: &str) -> u64 {
    let text = node["status"]["allocatable"][resource].as_str();
    let quantity: Option<protocol::quantity::Quantity> = text.and_then(|text| text.parse().ok());
    quantity.and_then(|quantity| quantity.as_u64()).unwrap_or(0)
}

pub(super) fn headroom(nodes: &[Value]) -> Finding {
    let name = "room";
    let has_room = |node: &Value| allocatable(node, "memory") >= 2 << 30;
    let ready: Vec<Value> = nodes
        .iter()
        .filter(|node| cluster::is_ready(node))
        .cloned()
        .collect();
    let small = offenders(&ready, has_room);
    let rule = "the smallest VM and what runs it take 2 GiB";
    if ready.is_empty() {
        return Finding::missing(
            name,
            "no node is ready",
            rule,
            "see: kubectl describe nodes",
        );
    }
    if small.len() == ready.len() {
        return Finding::missing(name, "no node has 2 GiB", rule, "add a larger node");
    }
    let bytes: u64 = ready.iter().map(|node| allocatable(node, "memory")).sum();
    Finding::ok(name, format!("{} nodes, {} GiB", ready.len(), bytes >> 30))
}

pub(super) fn kvm(nodes: &[Value]) -> Finding {
    let name = "KVM";
    let without = offenders(nodes, |node| allocatable(node, KVM) > 0);
    if without.is_empty() {
        return Finding::ok(name, format!("{KVM} on {} nodes", nodes.len()));
    }
    Finding::degraded(
        name,
        format!("{KVM} is not offered by {}", list(&without)),
        "guests are emulated there, which is ten times slower",
        "deploy a device plugin that offers neonvm/kvm and neonvm/vhost-net, then: --set controller.deviceLimits=true",
    )
}

pub(super) fn images(nodes: &[Value]) -> Finding {
    let name = "runner image";
    let has = |node: &Value| {
        let images = node["status"]["images"].as_array().into_iter().flatten();
        let mut names = images.flat_map(|image| image["names"].as_array().into_iter().flatten());
        names.any(|name| {
            name.as_str()
                .is_some_and(|name| name.contains("neonvm-runner"))
        })
    };
    let without = offenders(nodes, has);
    if without.is_empty() {
        return Finding::ok(name, format!("on {} nodes", nodes.len()));
    }
    Finding::degraded(
        name,
        format!("not on {}", list(&without)),
        "the first VM there waits until it is pulled, for ever if no registry has it (nodes tell of their 50 largest images only)",
        "load it: ctr -n k8s.io images import neonvm-runner.tar; or --set registry=…",
    )
}

/// Version of the control groups on each node, from the metrics of its kubelet.
pub(super) async fn cgroups(api: &Api, nodes: &[Value]) -> Finding {
    let name = "control groups";
    let rule = "Kubernetes gives version 1 up, and pressure is told by version 2 alone";
    let asked = nodes.iter().map(|node| async move {
        let path = format!("/api/v1/nodes/{}/proxy/metrics", name_of(node));
        let page = api.text(&path).await.ok()?;
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix("kubelet_cgroup_version "))?;
        Some((name_of(node).to_owned(), line.trim().parse::<f64>().ok()?))
    });
    let asked: Vec<_> = asked.collect();
    let told: Vec<_> = futures::stream::iter(asked)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let told: Vec<(String, f64)> = told.into_iter().flatten().collect();
    let old: Vec<String> = told
        .iter()
        .filter(|(_, version)| *version < 2.0)
        .map(|(name, _)| name.clone())
        .collect();
    if !old.is_empty() {
        let found = format!("version 1 on {}", list(&old));
        return Finding::degraded(
            name,
            found,
            rule,
            "boot these nodes with systemd.unified_cgroup_hierarchy=1",
        );
    }
    if told.len() < nodes.len() {
        let found = format!(
            "{} of {} kubelets did not tell",
            nodes.len() - told.len(),
            nodes.len()
        );
        return Finding::degraded(name, found, rule, "ask with the right to get nodes/proxy");
    }
    Finding::ok(name, format!("version 2 on {} nodes", told.len()))
}

/// Node selector of the agents' DaemonSet. Null, which selects all nodes, if it cannot be read.
pub(super) async fn agents_nodes(api: &Api) -> Value {
    let path = format!(
        "/apis/apps/v1/daemonsets?fieldSelector=metadata.name%3D{}",
        AGENT.name
    );
    selector_of(&api.read(&path).await.unwrap_or_default())
}

fn selector_of(daemonsets: &Value) -> Value {
    daemonsets["items"][0]["spec"]["template"]["spec"]["nodeSelector"].clone()
}

pub(super) fn agent_on_each(nodes: &[Value], agents: &[Value], selector: &Value) -> Finding {
    let name = "agents";
    let is_meant = |node: &Value| {
        let mut words = selector.as_object().into_iter().flatten();
        words.all(|(key, word)| node["metadata"]["labels"][key] == *word)
    };
    let meant = nodes.iter().filter(|node| is_meant(node)).count();
    let covered = |node: &Value| {
        let mut ready = agents.iter().filter(|pod| cluster::is_ready(pod));
        !cluster::is_ready(node)
            || !is_meant(node)
            || ready.any(|pod| pod["spec"]["nodeName"].as_str() == Some(name_of(node)))
    };
    let without = offenders(nodes, covered);
    if without.is_empty() {
        return Finding::ok(name, format!("ready on {meant} nodes"));
    }
    let found = format!("none is ready on {}", list(&without));
    let fix = "see why: kubectl describe pods -n kube-system -l name=autoscaler-agent";
    Finding::missing(name, found, "the VMs of a node are sized by its agent", fix)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::finding::Severity;
    use super::*;

    fn node(name: &str, kernel: &str, memory: &str, is_ready: bool) -> Value {
        let status = if is_ready { "True" } else { "False" };
        json!({"metadata": {"name": name}, "status": {"nodeInfo": {"kernelVersion": kernel},
            "allocatable": {"memory": memory}, "conditions": [{"type": "Ready", "status": status}],
            "images": [{"names": ["docker.io/bellows/neonvm-runner:0.1.0"]}]}})
    }

    #[test]
    fn nodes_are_judged_together_and_offenders_named() {
        let nodes = [
            node("a", "6.1.0-13-amd64", "8Gi", true),
            node("b", "5.4.0", "8Gi", true),
        ];
        assert_eq!(kernels(&nodes[..1]).verdict, Severity::Ok);
        let finding = kernels(&nodes);
        assert_eq!(
            (finding.verdict, finding.found.as_str()),
            (Severity::Missing, "older on b")
        );
        assert_eq!(headroom(&nodes).found, "2 nodes, 16 GiB");
        assert_eq!(
            headroom(&[node("a", "6.1", "1Gi", true)]).verdict,
            Severity::Missing
        );
        assert_eq!(
            headroom(&[node("a", "6.1", "8Gi", false)]).found,
            "no node is ready"
        );
        assert_eq!(kvm(&nodes).verdict, Severity::Degraded);
        assert_eq!(images(&nodes).verdict, Severity::Ok);
        let pod = |name: &str| json!({"spec": {"nodeName": name}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        assert_eq!(
            agent_on_each(&nodes, &[pod("a"), pod("b")], &Value::Null).verdict,
            Severity::Ok
        );
        assert_eq!(
            agent_on_each(&nodes, &[pod("a")], &Value::Null).found,
            "none is ready on b"
        );
        assert_eq!(
            agent_on_each(&[node("c", "6.1", "8Gi", false)], &[], &Value::Null).verdict,
            Severity::Ok
        );
        // The selector limits the check to nodes that get an agent. Without a DaemonSet all nodes
        // count.
        assert!(selector_of(&json!({"items": []})).is_null());
        assert!(selector_of(&Value::Null).is_null());
        let mut nodes = nodes;
        nodes[0]["metadata"]["labels"] = json!({"for": "vms"});
        let selected = agent_on_each(&nodes, &[pod("a")], &json!({"for": "vms"}));
        assert_eq!(selected.found, "ready on 1 nodes");
        let selected = agent_on_each(&nodes, &[pod("b")], &json!({"for": "vms"}));
        assert_eq!(selected.found, "none is ready on a");
    }

    #[test]
    fn many_offenders_are_counted() {
        let names: Vec<String> = (1..8).map(|n| format!("n{n}")).collect();
        assert_eq!(list(&names), "n1, n2, n3, n4, n5 and 2 more");
        assert_eq!(list(&names[..1]), "n1");
        assert_eq!(numbers("v1.34.4-x"), Some((1, 34)));
        assert_eq!(numbers("1.30+"), Some((1, 30)));
        assert_eq!(numbers("v"), None);
    }
}
