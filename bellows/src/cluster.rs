//! State of the components of a cluster, through forwarded ports of their pods. On one machine the
//! admin socket serves it.

use std::collections::BTreeMap;

use futures::StreamExt as _;
use serde_json::{Value, json};

use crate::api::{Api, Kind};
use crate::fail::{Fail, Outcome};
use crate::forward::{ForwardError, PodPort};
use crate::view::node::wait_of;

/// Components that are queried concurrently. A cluster has an agent on each node.
const AT_ONCE: usize = 16;
/// Agents that an error names.
const NAMED: usize = 3;

/// A component as it is deployed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Label `name` of its pods, and name of its service account.
    pub(crate) name: &'static str,
    /// Port that serves its metrics and its state.
    port: u16,
}

/// Runs on each node.
pub(crate) const AGENT: Part = Part {
    name: "autoscaler-agent",
    port: 9100,
};
/// Several run, one of them leads.
pub(crate) const SCHEDULER: Part = Part {
    name: "autoscale-scheduler",
    port: 9100,
};
/// Several run, one of them leads.
pub(crate) const CONTROLLER: Part = Part {
    name: "neonvm-controller",
    port: 7778,
};

/// Several run, one of them leads.
pub(crate) const POLICY_CONTROLLER: Part = Part {
    name: "policy-controller",
    port: 7780,
};

/// Several run, one of them leads.
pub(crate) const FLEET_CONTROLLER: Part = Part {
    name: "bellows-fleet",
    port: 7780,
};

pub(crate) fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

impl Part {
    /// Pods of the component in all namespaces.
    pub(crate) async fn pods(self, api: &Api) -> Outcome<Vec<Value>> {
        let query = format!("?labelSelector=name%3D{}", self.name);
        api.list_by(Kind::Pod, None, &query).await
    }

    /// Port of the component in one pod.
    pub(crate) fn port(self, pod: &Value) -> PodPort<'_> {
        let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default();
        PodPort {
            namespace: text("namespace"),
            pod: text("name"),
            port: self.port,
        }
    }

    /// State of the component in one pod.
    async fn state(self, api: &Api, pod: &Value) -> Outcome<Value> {
        let port = self.port(pod);
        let state = api.at_port(port, "/debug/state").await;
        state.map_err(|error| unasked(port, &error))
    }
}

/// Joins the dumps of all agents, or reads the dump of one node's agent.
///
/// # Errors
///
/// If no agent is ready, or none of them answers.
pub(crate) async fn agents(api: &Api, node: Option<&str>) -> Outcome<Value> {
    let pods = ready_agents(api, node).await?;
    // Collected first: a stream of a closure's futures is not `Send` for every lifetime.
    let asked: Vec<_> = pods
        .iter()
        .map(|pod| async move { (node_of(pod).to_owned(), AGENT.state(api, pod).await) })
        .collect();
    let answers: Vec<(String, Outcome<Value>)> = futures::stream::iter(asked)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let (mut dumps, mut problem) = (Vec::new(), None);
    for (node, answer) in answers {
        match answer {
            Ok(dump) => dumps.push((node, dump)),
            Err(fail) => problem = Some(fail),
        }
    }
    match problem {
        // One answer is enough. The errors of the other agents are dropped.
        Some(fail) if dumps.is_empty() => Err(fail),
        _ => Ok(joined(dumps)),
    }
}

/// Pods of the ready agents, or of one node's agent.
///
/// # Errors
///
/// If none is ready.
pub(crate) async fn ready_agents(api: &Api, node: Option<&str>) -> Outcome<Vec<Value>> {
    let pods = AGENT.pods(api).await?;
    let is_asked = |pod: &&Value| is_ready(pod) && node.is_none_or(|node| node_of(pod) == node);
    let ready: Vec<Value> = pods.iter().filter(is_asked).cloned().collect();
    if ready.is_empty() {
        return Err(none_ready(&pods, node));
    }
    Ok(ready)
}

/// Name of the node that a pod runs on.
pub(crate) fn node_of(pod: &Value) -> &str {
    pod["spec"]["nodeName"].as_str().unwrap_or_default()
}

/// Joins the dumps of agents, each with the name of its node.
fn joined(mut dumps: Vec<(String, Value)>) -> Value {
    dumps.sort_by(|one, other| one.0.cmp(&other.0));
    let (mut pods, mut policies) = (Vec::new(), Vec::new());
    for (node, mut dump) in dumps {
        if let Value::Array(list) = dump["pods"].take() {
            pods.extend(list);
        }
        let own = dump["policies"].take();
        if !own.is_null() {
            policies.push((node, own));
        }
    }
    json!({"pods": pods, "policies": policies_of(policies)})
}

/// Joins the members `policies` in the form of one agent's.
///
/// All agents follow the same policies. Of each policy and worker the first problem counts, with
/// the name of its node.
fn policies_of(all: Vec<(String, Value)>) -> Value {
    if all.is_empty() {
        let problem = "the agents' file switches policies off";
        return json!({"known": [], "workers": {"live": {"problem": problem}}});
    }
    let (mut known, mut workers) = (BTreeMap::new(), json!({}));
    for (node, policies) in all {
        let on_node = |of: &Value| -> Value {
            let problem = of["problem"].as_str();
            problem.map(|text| format!("on node {node}: {text}")).into()
        };
        for policy in policies["known"].as_array().into_iter().flatten() {
            let mut policy = policy.clone();
            policy["problem"] = on_node(&policy);
            let name = policy["name"].as_str().unwrap_or_default().to_owned();
            let first: &mut Value = known.entry(name).or_insert_with(|| policy.clone());
            if first["problem"].is_null() {
                *first = policy;
            }
        }
        for role in ["live", "shadow"] {
            if workers[role]["problem"].is_null() {
                workers[role]["problem"] = on_node(&policies["workers"][role]);
            }
        }
    }
    let known: Vec<Value> = known.into_values().collect();
    json!({"known": known, "workers": workers})
}

/// State of the leading scheduler. `null` if no scheduler answers.
pub(crate) async fn scheduler(api: &Api) -> Value {
    let pods = SCHEDULER.pods(api).await.unwrap_or_default();
    for pod in pods.iter().filter(|pod| is_ready(pod)) {
        if let Ok(state) = SCHEDULER.state(api, pod).await {
            return state;
        }
    }
    Value::Null
}

/// The error if no agent is ready. It names the agents that are not.
fn none_ready(agents: &[Value], node: Option<&str>) -> Fail {
    let place = node.map_or_else(String::new, |node| format!(" on node {node}"));
    let here = |pod: &&Value| node.is_none_or(|node| pod["spec"]["nodeName"] == node);
    let unready: Vec<&Value> = agents.iter().filter(here).take(NAMED).collect();
    let rule = "an agent on each node decides about its VMs";
    let Some(first) = unready.first() else {
        return Fail::try_again(format!("there is no agent{place}"))
            .rule(rule)
            .fix("see what is missing: kubectl bellows check");
    };
    let states: Vec<String> = unready.iter().map(|pod| state_of(pod)).collect();
    let text = |key: &str| first["metadata"][key].as_str().unwrap_or_default();
    let (namespace, name) = (text("namespace"), text("name"));
    Fail::try_again(format!("no agent is ready{place}: {}", states.join("; ")))
        .rule(rule)
        .fix(format!(
            "see why: kubectl describe pod -n {namespace} {name}; kubectl logs -n {namespace} {name}"
        ))
}

/// A pod and what it waits for.
fn state_of(pod: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let (meta, status) = (&pod["metadata"], &pod["status"]);
    let state = wait_of(status).unwrap_or_else(|| text(&status["phase"]));
    format!(
        "pod {}/{}: {state}",
        text(&meta["namespace"]),
        text(&meta["name"])
    )
}

/// The error if a pod's state cannot be read.
pub(crate) fn unasked(at: PodPort<'_>, error: &ForwardError) -> Fail {
    let PodPort { namespace, pod, .. } = at;
    let name = format!("pod {namespace}/{pod}");
    if let ForwardError::Open(kube::Error::Api(status)) = error {
        let what = format!("{name}: its port is not forwarded: {}", status.message);
        match status.code {
            403 => return forbidden(namespace, &what),
            401 => {
                return Fail::usage(what)
                    .rule("the API server must know who asks")
                    .fix("see whether it does: kubectl auth whoami");
            }
            404 => {
                return Fail::try_again(format!("{name} is gone"))
                    .rule("a part's pod is replaced when its node is drained or it is upgraded")
                    .fix("ask again once there is a new one: kubectl bellows check");
            }
            _ => return look_at(namespace, pod, what),
        }
    }
    look_at(
        namespace,
        pod,
        format!("{name}: {}", daemon_kit::chain(error)),
    )
}

fn look_at(namespace: &str, pod: &str, what: String) -> Fail {
    Fail::try_again(what)
        .rule("a part shows its state to its own pod only, to which the kubelet of its node forwards a port")
        .fix(format!(
            "ask again; if it stays so, look at pod and node: kubectl describe pod -n {namespace} {pod}; kubectl get nodes"
        ))
}

fn forbidden(namespace: &str, what: &str) -> Fail {
    Fail::usage(what)
        .rule(format!(
            "to be shown the state of agents and scheduler takes the verbs get and create on pods/portforward in \
             namespace {namespace}; before Kubernetes 1.35 get is enough"
        ))
        .fix(format!(
            "somebody who may create roles there gives them to user NAME:\n\
             kubectl create role bellows-state -n {namespace} --verb=get,create --resource=pods/portforward\n\
             kubectl create rolebinding bellows-state -n {namespace} --role=bellows-state --user=NAME"
        ))
}

#[cfg(test)]
mod tests;
