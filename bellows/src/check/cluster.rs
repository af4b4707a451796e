//! The looks that `bellows check` takes at a cluster, all by its API: what is installed, who may do
//! what, what the nodes have, and whether the parts work. Nothing is changed; the one object
//! written is written on trial only.

use std::collections::BTreeMap;

use daemon_kit::clock::Clock;
use futures::StreamExt as _;
use protocol::mode::KEY_MODE;
use protocol::time::WallTime;
use protocol::vm::API_VERSION;
use serde_json::{Value, json};

use super::admission;
use super::finding::{Finding, INSTALL};
use crate::api::{Api, Kind};
use crate::cluster::{self, AGENT, CONTROLLER, Part, SCHEDULER};
use crate::fail::Outcome;

/// Oldest Kubernetes that the manifests are for.
const OLDEST: (u32, u32) = (1, 30);
/// Oldest kernel of a node.
const OLDEST_KERNEL: (u32, u32) = (5, 10);
/// What a device plugin offers where guests may use KVM.
const KVM: &str = "neonvm/kvm";
/// Nodes asked at the same time.
const AT_ONCE: usize = 16;
/// Offenders named in one line.
const NAMED: usize = 5;
/// Clocks of this machine and of whoever holds a Lease may differ by that.
const SKEW_S: i64 = 10;

/// Takes every look.
pub(super) async fn all(api: &Api) -> Outcome<Vec<Finding>> {
    // Who cannot even list nodes is told so once, not by ten findings.
    let nodes = api.list(Kind::Node, None).await?;
    let mut findings = vec![
        version(api).await,
        kinds(api).await,
        admission::trial(api).await,
    ];
    findings.push(admission::webhooks(api).await);
    findings.push(own_rights(api).await);
    for part in [CONTROLLER, SCHEDULER, AGENT] {
        findings.push(rights_of(api, part).await);
    }
    findings.extend([kernels(&nodes), room(&nodes), kvm(&nodes), images(&nodes)]);
    findings.push(cgroups(api, &nodes).await);
    let agents = AGENT.pods(api).await?;
    let mut namespace = "neonvm-system".to_owned();
    for part in [CONTROLLER, SCHEDULER] {
        let pods = part.pods(api).await?;
        if part == CONTROLLER
            && let Some(found) = pods
                .first()
                .and_then(|pod| pod["metadata"]["namespace"].as_str())
        {
            found.clone_into(&mut namespace);
        }
        findings.push(ready(part, &pods));
    }
    findings.push(agent_on_each(&nodes, &agents, &agents_nodes(api).await));
    let (of_controller, of_scheduler) = ("controller's Lease", "scheduler's Lease");
    let place = (namespace.as_str(), "a3b22509.neon.tech");
    findings.push(lease(api, of_controller, CONTROLLER, place).await);
    let place = ("kube-system", SCHEDULER.name);
    findings.push(lease(api, of_scheduler, SCHEDULER, place).await);
    findings.push(modes(api).await);
    findings.push(metrics(api).await);
    Ok(findings)
}

async fn version(api: &Api) -> Finding {
    let name = "Kubernetes";
    let told = api.read("/version").await.unwrap_or_default();
    let text = told["gitVersion"].as_str().unwrap_or("unknown").to_owned();
    let numbers = numbers(&text);
    if numbers.is_some_and(|numbers| numbers >= OLDEST) {
        return Finding::ok(name, text);
    }
    let (major, minor) = OLDEST;
    let rule = format!("the manifests are for {major}.{minor} and newer");
    Finding::missing(name, text, rule, "upgrade the cluster")
}

/// Major and minor number of `v1.34.4`, `6.1.0-13-amd64` and the like.
fn numbers(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim_start_matches('v').split(['.', '-', '+']);
    let mut next = || parts.next()?.parse().ok();
    Some((next()?, next()?))
}

async fn kinds(api: &Api) -> Finding {
    let name = "kinds";
    let served = api.read(&format!("/apis/{API_VERSION}")).await;
    let served = served.unwrap_or_default();
    let served: Vec<&str> = served["resources"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|resource| resource["name"].as_str())
        .collect();
    let wanted = ["virtualmachines", "virtualmachinemigrations", "ippools"];
    let missing: Vec<&str> = wanted
        .into_iter()
        .filter(|kind| !served.contains(kind))
        .collect();
    if missing.is_empty() {
        return Finding::ok(name, format!("{API_VERSION} is served"));
    }
    let found = format!("{API_VERSION} lacks {}", missing.join(", "));
    Finding::missing(name, found, "VMs are objects of these kinds", INSTALL)
}

/// A right: verb, group, resource with subresource, namespace.
type Right = (&'static str, &'static str, &'static str, &'static str);

const VMS: &str = "vm.neon.tech";

fn attributes((verb, group, resource, namespace): Right) -> Value {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    json!({"verb": verb, "group": group, "resource": resource, "subresource": subresource, "namespace": namespace})
}

fn in_words((verb, _, resource, namespace): Right) -> String {
    let place = if namespace.is_empty() {
        String::new()
    } else {
        format!(" in {namespace}")
    };
    format!("{verb} {resource}{place}")
}

/// Asks for each right; those that are not there, or nothing where that is not told.
async fn lacking(
    api: &Api,
    kind: &str,
    user: Option<&str>,
    rights: &[Right],
) -> Option<Vec<String>> {
    let path = format!(
        "/apis/authorization.k8s.io/v1/{}s",
        kind.to_ascii_lowercase()
    );
    let mut lacking = Vec::new();
    for right in rights {
        let mut spec = json!({"resourceAttributes": attributes(*right)});
        if let Some(user) = user {
            spec["user"] = user.into();
        }
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec});
        let answer = api.post(&path, &review).await.ok()?;
        if answer["status"]["allowed"] != true {
            lacking.push(in_words(*right));
        }
    }
    Some(lacking)
}

async fn own_rights(api: &Api) -> Finding {
    let name = "your rights";
    let rights = [
        ("list", VMS, "virtualmachines", ""),
        ("patch", VMS, "virtualmachines", ""),
        ("create", VMS, "virtualmachinemigrations", ""),
        ("get", "", "pods/portforward", "kube-system"),
        ("create", "", "pods/portforward", "kube-system"),
    ];
    let rule = "why, top and history ask the parts at forwarded ports, which takes create since \
                Kubernetes 1.35; migrate writes an object";
    let fix = "ask whoever gives rights in this cluster for these";
    match lacking(api, "SelfSubjectAccessReview", None, &rights).await {
        Some(lacking) if lacking.is_empty() => Finding::ok(name, "VMs and the parts' state"),
        Some(lacking) => Finding::degraded(
            name,
            format!("you may not {}", lacking.join(", ")),
            rule,
            fix,
        ),
        None => Finding::degraded(name, "the cluster does not say", rule, fix),
    }
}

async fn rights_of(api: &Api, part: Part) -> Finding {
    let (name, rights): (_, &[Right]) = match part.name {
        "autoscaler-agent" => (
            "agent's rights",
            &[
                ("watch", VMS, "virtualmachines", ""),
                ("patch", VMS, "virtualmachines", ""),
                ("list", "", "namespaces", ""),
                ("watch", "", "pods", "kube-system"),
            ],
        ),
        "autoscale-scheduler" => (
            "scheduler's rights",
            &[
                ("watch", VMS, "virtualmachines", ""),
                ("patch", VMS, "virtualmachines", ""),
                ("create", VMS, "virtualmachinemigrations", ""),
                ("watch", "", "nodes", ""),
                ("create", "", "pods/binding", ""),
            ],
        ),
        _ => (
            "controller's rights",
            &[
                ("watch", VMS, "virtualmachines", ""),
                ("patch", VMS, "virtualmachines/status", ""),
                ("create", "", "pods", ""),
                ("delete", "", "pods", ""),
                ("create", "", "secrets", ""),
            ],
        ),
    };
    let pods = part.pods(api).await.unwrap_or_default();
    let Some(pod) = pods.first() else {
        return Finding::missing(
            name,
            "it is not installed",
            "each part has an account of its own",
            INSTALL,
        );
    };
    let text = |pointer: &str| {
        pod.pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let user = format!(
        "system:serviceaccount:{}:{}",
        text("/metadata/namespace"),
        text("/spec/serviceAccountName")
    );
    match lacking(api, "SubjectAccessReview", Some(&user), rights).await {
        Some(lacking) if lacking.is_empty() => {
            Finding::ok(name, format!("{} of {user}", rights.len()))
        }
        Some(lacking) => {
            let found = format!("{user} may not {}", lacking.join(", "));
            Finding::missing(name, found, "it cannot do its work without", INSTALL)
        }
        None => Finding::degraded(
            name,
            "not looked at",
            "whether others may do something is told to administrators only",
            "ask with their rights",
        ),
    }
}

fn name_of(node: &Value) -> &str {
    node["metadata"]["name"].as_str().unwrap_or("?")
}

/// The names of the nodes that a rule does not hold for.
fn offenders(nodes: &[Value], holds: impl Fn(&Value) -> bool) -> Vec<String> {
    let bad = nodes.iter().filter(|node| !holds(node));
    bad.map(|node| name_of(node).to_owned()).collect()
}

fn list(names: &[String]) -> String {
    let more = names.len().saturating_sub(NAMED);
    let mut text = names[..names.len() - more].join(", ");
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}

fn kernels(nodes: &[Value]) -> Finding {
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

/// A quantity as a number, of bytes or of thousandths of a CPU.
fn allocatable(node: &Value, resource: &str) -> u64 {
    let text = node["status"]["allocatable"][resource].as_str();
    let quantity: Option<protocol::quantity::Quantity> = text.and_then(|text| text.parse().ok());
    quantity.and_then(|quantity| quantity.as_u64()).unwrap_or(0)
}

fn room(nodes: &[Value]) -> Finding {
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

fn kvm(nodes: &[Value]) -> Finding {
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

fn images(nodes: &[Value]) -> Finding {
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

/// What kubelets say in their metrics of the control groups.
async fn cgroups(api: &Api, nodes: &[Value]) -> Finding {
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

fn ready(part: Part, pods: &[Value]) -> Finding {
    let name = if part == CONTROLLER {
        "controller"
    } else {
        "scheduler"
    };
    let count = pods.iter().filter(|pod| cluster::is_ready(pod)).count();
    if count > 0 {
        return Finding::ok(name, format!("{count} of {} pods ready", pods.len()));
    }
    if pods.is_empty() {
        return Finding::missing(name, "not installed", "nothing works without it", INSTALL);
    }
    let found = format!("none of {} pods is ready", pods.len());
    let fix = format!("see why: kubectl describe pods -A -l name={}", part.name);
    Finding::missing(name, found, "nothing works without it", fix)
}

/// The labels of the nodes that are to have an agent: the DaemonSet's node selector. Null where it
/// cannot be read: all nodes.
async fn agents_nodes(api: &Api) -> Value {
    let path = format!(
        "/apis/apps/v1/daemonsets?fieldSelector=metadata.name%3D{}",
        AGENT.name
    );
    selector_of(&api.read(&path).await.unwrap_or_default())
}

fn selector_of(daemonsets: &Value) -> Value {
    daemonsets["items"][0]["spec"]["template"]["spec"]["nodeSelector"].clone()
}

fn agent_on_each(nodes: &[Value], agents: &[Value], selector: &Value) -> Finding {
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

async fn lease(
    api: &Api,
    name: &'static str,
    part: Part,
    (namespace, lease): (&str, &str),
) -> Finding {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{lease}");
    let object = api.read(&path).await.unwrap_or_default();
    let fix = format!(
        "see why none does: kubectl logs -n {namespace} -l name={} --prefix --tail=50",
        part.name
    );
    judge_lease(name, &object, Clock::new().wall(), &fix)
}

fn judge_lease(name: &'static str, lease: &Value, now: WallTime, fix: &str) -> Finding {
    let spec = &lease["spec"];
    let holder = spec["holderIdentity"].as_str().unwrap_or_default();
    let renewed = spec["renewTime"]
        .as_str()
        .and_then(|text| WallTime::parse(text).ok());
    let lasts = spec["leaseDurationSeconds"].as_i64().unwrap_or(15) + SKEW_S;
    let age = renewed.map(|at| now.0.saturating_sub(at.0) / 1_000_000);
    let rule = "of several replicas the one that holds it works";
    match age {
        _ if holder.is_empty() => Finding::missing(name, "nobody holds it", rule, fix),
        Some(age) if age <= lasts => Finding::ok(name, format!("held by {holder}")),
        _ => Finding::missing(name, format!("{holder} has let it lapse"), rule, fix),
    }
}

async fn modes(api: &Api) -> Finding {
    let name = "modes";
    let Ok(list) = api.read("/api/v1/namespaces").await else {
        return Finding::ok(name, "namespaces may not be listed");
    };
    let mut counts = BTreeMap::new();
    for namespace in list["items"].as_array().into_iter().flatten() {
        let word = namespace["metadata"]["labels"][KEY_MODE].as_str();
        if let Some(word) = word {
            *counts.entry(word.to_owned()).or_insert(0_u32) += 1;
        }
    }
    judge_modes(name, &counts)
}

fn judge_modes(name: &'static str, counts: &BTreeMap<String, u32>) -> Finding {
    let words: Vec<String> = counts
        .iter()
        .map(|(word, count)| format!("{count} {word}"))
        .collect();
    let bad = counts
        .keys()
        .find(|word| protocol::mode::Mode::of(word).is_none());
    match bad {
        Some(word) => Finding::degraded(
            name,
            format!("a namespace has the label {KEY_MODE}={word}"),
            "a label that is no mode counts as observe",
            format!(
                "kubectl label --overwrite namespace NAME {KEY_MODE}=observe, or =grow, or =full"
            ),
        ),
        None if words.is_empty() => {
            Finding::ok(name, "no namespace says one: the agents' setting holds")
        }
        None => Finding::ok(name, format!("namespaces: {}", words.join(", "))),
    }
}

/// Whether the agents have what decisions rest on.
async fn metrics(api: &Api) -> Finding {
    let name = "metrics of VMs";
    let fix =
        "see: kubectl bellows why VM; the guest's monitor serves them on port 9100 of the pod";
    let dump = match cluster::agents(api, None).await {
        Ok(dump) => dump,
        Err(fail) => {
            return Finding::degraded(name, fail.what().to_owned(), "decisions rest on them", fix);
        }
    };
    let decisions = crate::decision::by_vm(&dump);
    let without: Vec<String> = decisions
        .iter()
        .filter(|(_, decision)| !decision.has_all_metrics)
        .map(|(vm, _)| vm.clone())
        .collect();
    if without.is_empty() {
        return Finding::ok(name, format!("of {} VMs that are sized", decisions.len()));
    }
    let found = format!("missing or old: {}", list(&without));
    Finding::degraded(name, found, "without them nothing shrinks", fix)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
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
        assert_eq!(kernels(&nodes[..1]).verdict, Verdict::Ok);
        let finding = kernels(&nodes);
        assert_eq!(
            (finding.verdict, finding.found.as_str()),
            (Verdict::Missing, "older on b")
        );
        assert_eq!(room(&nodes).found, "2 nodes, 16 GiB");
        assert_eq!(
            room(&[node("a", "6.1", "1Gi", true)]).verdict,
            Verdict::Missing
        );
        assert_eq!(
            room(&[node("a", "6.1", "8Gi", false)]).found,
            "no node is ready"
        );
        assert_eq!(kvm(&nodes).verdict, Verdict::Degraded);
        assert_eq!(images(&nodes).verdict, Verdict::Ok);
        let pod = |name: &str| json!({"spec": {"nodeName": name}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        assert_eq!(
            agent_on_each(&nodes, &[pod("a"), pod("b")], &Value::Null).verdict,
            Verdict::Ok
        );
        assert_eq!(
            agent_on_each(&nodes, &[pod("a")], &Value::Null).found,
            "none is ready on b"
        );
        assert_eq!(
            agent_on_each(&[node("c", "6.1", "8Gi", false)], &[], &Value::Null).verdict,
            Verdict::Ok
        );
        // An agent is looked for only where its DaemonSet has one, and everywhere where there is
        // none.
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
    fn a_lease_is_held_while_it_is_renewed() {
        let now = WallTime::parse("2026-01-02T03:04:30Z").unwrap();
        let lease = |holder: &str, at: &str| json!({"spec": {"holderIdentity": holder, "renewTime": at, "leaseDurationSeconds": 15}});
        let judge = |lease: &Value| judge_lease("lease", lease, now, "").verdict;
        assert_eq!(
            judge(&lease("a", "2026-01-02T03:04:20.000000Z")),
            Verdict::Ok
        );
        assert_eq!(
            judge(&lease("a", "2026-01-02T03:04:00.000000Z")),
            Verdict::Missing
        );
        assert_eq!(
            judge(&lease("", "2026-01-02T03:04:20.000000Z")),
            Verdict::Missing
        );
        assert_eq!(judge(&Value::Null), Verdict::Missing);
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

    #[test]
    fn a_label_that_is_no_mode_is_told() {
        let counts = |words: &[&str]| words.iter().map(|word| ((*word).to_owned(), 1)).collect();
        assert_eq!(judge_modes("m", &counts(&[])).verdict, Verdict::Ok);
        assert_eq!(
            judge_modes("m", &counts(&["full", "grow"])).found,
            "namespaces: 1 full, 1 grow"
        );
        assert_eq!(
            judge_modes("m", &counts(&["Full"])).verdict,
            Verdict::Degraded
        );
    }
}
