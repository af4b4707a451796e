//! The parts of a cluster, asked through its API server: what the admin socket is on one machine.

use futures::StreamExt as _;
use serde_json::{Value, json};

use crate::api::{Api, Kind};
use crate::fail::{Fail, Outcome};

/// Parts asked at the same time: a cluster has an agent on each node.
const AT_ONCE: usize = 16;

/// A part of ours as it is deployed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// The label `name` of its pods, and its service account.
    pub(crate) name: &'static str,
    /// Port of its metrics and state.
    port: u16,
}

/// One on each node.
pub(crate) const AGENT: Part = Part {
    name: "autoscaler-agent",
    port: 9100,
};
/// One of several leads.
pub(crate) const SCHEDULER: Part = Part {
    name: "autoscale-scheduler",
    port: 9100,
};
/// One of several leads.
pub(crate) const CONTROLLER: Part = Part {
    name: "neonvm-controller",
    port: 7778,
};

/// Whether a pod is ready.
pub(crate) fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

impl Part {
    /// Its pods, in all namespaces.
    pub(crate) async fn pods(self, api: &Api) -> Outcome<Vec<Value>> {
        let query = format!("?labelSelector=name%3D{}", self.name);
        api.list_by(Kind::Pod, None, &query).await
    }

    /// What one of its pods says of itself.
    async fn state(self, api: &Api, pod: &Value) -> Outcome<Value> {
        let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text("namespace"), text("name"));
        let path = format!(
            "/api/v1/namespaces/{namespace}/pods/{name}:{}/proxy/debug/state",
            self.port
        );
        let what = format!("pod {namespace}/{name}");
        api.read(&path).await.map_err(|error| {
            Fail::try_again(format!(
                "{what} cannot be asked: {}",
                telemetry::chain(&error)
            ))
            .rule("the parts are asked by the API server's proxy to their pods")
            .fix(
                "see whether it runs: kubectl bellows check; the right it takes is: get pods/proxy",
            )
        })
    }
}

/// The dumps of all agents as one; of one node's alone if that is given.
///
/// # Errors
/// When no agent is there, or none of them answers.
pub(crate) async fn agents(api: &Api, node: Option<&str>) -> Outcome<Value> {
    let pods = AGENT.pods(api).await?;
    let ours = pods.iter().filter(|pod| {
        is_ready(pod) && node.is_none_or(|node| pod["spec"]["nodeName"].as_str() == Some(node))
    });
    let asked: Vec<_> = ours.map(|pod| AGENT.state(api, pod)).collect();
    if asked.is_empty() {
        let place = node.map_or_else(String::new, |node| format!(" on node {node}"));
        return Err(Fail::try_again(format!("no agent is ready{place}"))
            .rule("an agent on each node decides about its VMs")
            .fix("see what is missing: kubectl bellows check"));
    }
    let answers: Vec<Outcome<Value>> = futures::stream::iter(asked)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let (mut entries, mut problem) = (Vec::new(), None);
    let mut has_answer = false;
    for answer in answers {
        match answer {
            Ok(mut dump) => {
                has_answer = true;
                if let Value::Array(pods) = dump["pods"].take() {
                    entries.extend(pods);
                }
            }
            Err(fail) => problem = Some(fail),
        }
    }
    match problem {
        // What the others say is worth something without it.
        Some(fail) if !has_answer => Err(fail),
        _ => Ok(json!({"pods": entries})),
    }
}

/// What the scheduler that leads says of itself; `null` where it cannot be asked.
pub(crate) async fn scheduler(api: &Api) -> Value {
    let pods = SCHEDULER.pods(api).await.unwrap_or_default();
    for pod in pods.iter().filter(|pod| is_ready(pod)) {
        if let Ok(state) = SCHEDULER.state(api, pod).await {
            return state;
        }
    }
    Value::Null
}
