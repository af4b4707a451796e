//! Checks of a cluster through its API: installed version, rights, nodes and the health of the
//! components. Nothing is changed. The one object that is written is a dry run.

mod fleet;
mod leases;
mod nodes;
mod policies;
mod rights;

use std::collections::BTreeMap;

use protocol::mode::KEY_MODE;
use protocol::vm::API_VERSION;
use serde_json::Value;

use super::admission;
use super::finding::{Finding, INSTALL};
use crate::api::{Api, Kind};
use crate::cluster::{self, AGENT, CONTROLLER, Part, SCHEDULER};
use crate::fail::Outcome;

/// Oldest Kubernetes version that the manifests support.
const OLDEST: (u32, u32) = (1, 30);

/// Runs all checks.
pub(super) async fn all(api: &Api) -> Outcome<Vec<Finding>> {
    // A user who may not list nodes gets one error here instead of ten findings.
    let nodes = api.list(Kind::Node, None).await?;
    let mut findings = vec![
        version(api).await,
        kinds(api).await,
        admission::trial(api).await,
    ];
    findings.push(admission::webhooks(api).await);
    findings.push(rights::own_rights(api).await);
    for part in [CONTROLLER, SCHEDULER, AGENT] {
        findings.push(rights::rights_of(api, part).await);
    }
    findings.extend([
        nodes::kernels(&nodes),
        nodes::headroom(&nodes),
        nodes::kvm(&nodes),
        nodes::images(&nodes),
    ]);
    findings.push(nodes::cgroups(api, &nodes).await);
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
    findings.push(nodes::agent_on_each(
        &nodes,
        &agents,
        &nodes::agents_nodes(api).await,
    ));
    let (of_controller, of_scheduler) = ("controller's Lease", "scheduler's Lease");
    let place = (namespace.as_str(), "a3b22509.neon.tech");
    findings.push(leases::held(api, of_controller, CONTROLLER, place).await);
    let place = ("kube-system", SCHEDULER.name);
    findings.push(leases::held(api, of_scheduler, SCHEDULER, place).await);
    findings.push(policies::controller(api).await);
    findings.push(fleet::controller(api).await);
    findings.push(modes(api).await);
    findings.push(metrics(api).await);
    Ok(findings)
}

async fn version(api: &Api) -> Finding {
    let name = "Kubernetes";
    let told = api.read("/version").await.unwrap_or_default();
    let text = told["gitVersion"].as_str().unwrap_or("unknown").to_owned();
    let numbers = nodes::numbers(&text);
    if numbers.is_some_and(|numbers| numbers >= OLDEST) {
        return Finding::ok(name, text);
    }
    let (major, minor) = OLDEST;
    let rule = format!("the manifests are for {major}.{minor} and newer");
    Finding::missing(name, text, rule, "upgrade the cluster")
}

async fn kinds(api: &Api) -> Finding {
    let name = "kinds";
    let path = format!("/apis/{API_VERSION}");
    let group = api.read(&path).await.unwrap_or_default();
    let served: Vec<&str> = group["resources"]
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

/// Whether the agents have the metrics that their decisions need.
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
    let found = format!("missing or old: {}", nodes::list(&without));
    Finding::degraded(name, found, "without them nothing shrinks", fix)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;

    #[test]
    fn unknown_mode_label_is_reported() {
        let counts = |words: &[&str]| words.iter().map(|word| ((*word).to_owned(), 1)).collect();
        assert_eq!(judge_modes("m", &counts(&[])).verdict, Severity::Ok);
        assert_eq!(
            judge_modes("m", &counts(&["full", "grow"])).found,
            "namespaces: 1 full, 1 grow"
        );
        assert_eq!(
            judge_modes("m", &counts(&["Full"])).verdict,
            Severity::Degraded
        );
    }
}
