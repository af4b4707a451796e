//! The HTTP server for a kube-scheduler beside this process: `/filter`, `/prioritize`, `/preempt`
//! and `/bind`, each a POST of JSON. Source: docs/compatibility/scheduler.md §8.1, §8.3.
//!
//! The response is 503 while this replica does not lead or has no complete lists. kube-scheduler
//! then tries the pod again later. Its configuration must have `nodeCacheCapable: true` (names, not
//! whole nodes) and must not have `ignorable`, because kube-scheduler binds without an ignorable
//! extender.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use protocol::extender::{
    ExtenderArgs, ExtenderBindingArgs, ExtenderBindingResult, ExtenderFilterResult,
    ExtenderPreemptionArgs, ExtenderPreemptionResult, HostPriority, MetaPod, MetaVictims,
};
use protocol::permit::NamespacedName;
use rand::Rng as _;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::driver::Input;
use super::metrics::Metrics;
use crate::config::Config;
use crate::core::event::{ExtenderRequest, ExtenderResponse, Unfit};
use crate::core::view::PodView;

/// Longest request body, in bytes: a pod of at most 1.5 MiB, and names and victims of 5,000 nodes.
pub const MAX_EXTENDER_BODY_BYTES: usize = 16 << 20;
/// Longest time for a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
const ZONE: &str = "topology.kubernetes.io/zone";

/// A verb as a metric label: the framework's name, if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Filter,
    Score,
    Preempt,
    Bind,
}

impl Verb {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "Filter",
            Self::Score => "Score",
            Self::Preempt => "Preempt",
            Self::Bind => "Bind",
        }
    }
}

#[derive(Clone)]
struct ExtenderState {
    inputs: mpsc::Sender<Input>,
    metrics: Metrics,
    ignored: Arc<BTreeSet<String>>,
    randomize: bool,
    strict: bool,
}

/// Why the response is not 200.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("not ready: another replica leads, or not everything is listed yet")]
    NotReady,
    #[error("the scheduler crashed")]
    Crashed,
    #[error("the body is too long or too slow")]
    Body,
    #[error("bad JSON: {0}")]
    Json(String),
    #[error("the pod is not readable: {0}")]
    Pod(String),
    #[error("names are expected, not whole nodes: set nodeCacheCapable")]
    NoNames,
}

impl Refusal {
    const fn status(&self) -> StatusCode {
        match self {
            Self::NotReady => StatusCode::SERVICE_UNAVAILABLE,
            Self::Crashed => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Body | Self::Json(_) | Self::Pod(_) | Self::NoNames => StatusCode::BAD_REQUEST,
        }
    }

    /// The framework's status name, for metrics.
    const fn kind(&self) -> &'static str {
        match self {
            Self::NotReady => "NotReady",
            _ => "Error",
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let plain = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
        (self.status(), plain, Body::from(self.to_string())).into_response()
    }
}

pub(super) fn router(inputs: mpsc::Sender<Input>, metrics: Metrics, config: &Config) -> Router {
    let state = ExtenderState {
        inputs,
        metrics,
        ignored: Arc::new(config.ignored_namespaces.clone()),
        randomize: config.scoring.randomize,
        strict: config.strict_bind,
    };
    Router::new()
        .route("/filter", post(filter))
        .route("/prioritize", post(prioritize))
        .route("/preempt", post(preempt))
        .route("/bind", post(bind))
        .with_state(state)
}

impl ExtenderState {
    async fn request(&self, request: ExtenderRequest) -> Result<ExtenderResponse, Refusal> {
        let (responder, response) = oneshot::channel();
        let input = Input::ExtenderRequest(request, responder);
        let sent = self.inputs.send(input).await;
        sent.map_err(|_| Refusal::Crashed)?;
        match response.await {
            Ok(ExtenderResponse::NotReady) => Err(Refusal::NotReady),
            Ok(response) => Ok(response),
            Err(_) => Err(Refusal::Crashed),
        }
    }

    fn count(&self, verb: Verb, zone: &str, namespace: &str, failure: Option<&str>) {
        let is_ignored = self.ignored.contains(namespace);
        let call = (verb.as_str(), zone, is_ignored);
        self.metrics.extension_called(call, failure);
    }
}

/// The arguments of filter and prioritize.
struct PodArgs {
    pod: Box<PodView>,
    zone: String,
    nodes: Vec<String>,
}

async fn pod_args(request: Request) -> Result<PodArgs, Refusal> {
    let args: ExtenderArgs = read(request).await?;
    let nodes = args.node_names.ok_or(Refusal::NoNames)?;
    let (pod, zone) = pod_of(&args.pod)?;
    Ok(PodArgs { pod, zone, nodes })
}

fn pod_of(object: &Value) -> Result<(Box<PodView>, String), Refusal> {
    let pod = PodView::read(object).map_err(|error| Refusal::Pod(error.to_string()))?;
    Ok((Box::new(pod), desired_zone(object)))
}

async fn filter(State(state): State<ExtenderState>, request: Request) -> Response {
    let PodArgs { pod, zone, nodes } = match pod_args(request).await {
        Ok(args) => args,
        Err(refusal) => return refuse(&state, Verb::Filter, refusal),
    };
    let namespace = pod.key.namespace.clone();
    let response = state.request(ExtenderRequest::Filter { pod, nodes }).await;
    let failure = response.as_ref().err().map(Refusal::kind);
    state.count(Verb::Filter, &zone, &namespace, failure);
    match response {
        Ok(ExtenderResponse::Filtered(verdicts)) => {
            axum::Json(filter_result(verdicts)).into_response()
        }
        Ok(_) => Refusal::Crashed.into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

fn filter_result(verdicts: Vec<(String, Result<(), Unfit>)>) -> ExtenderFilterResult {
    let mut result = ExtenderFilterResult::default();
    let mut names = Vec::new();
    for (node, verdict) in verdicts {
        match verdict {
            Ok(()) => names.push(node),
            // No node is at fault. kube-scheduler is misconfigured and reports this on the pod.
            Err(Unfit::ForeignScheduler) => result.error = Unfit::ForeignScheduler.to_string(),
            Err(unfit) if unfit.is_about_room() => {
                result.failed_nodes.insert(node, unfit.to_string());
            }
            Err(unfit) => {
                let hopeless = &mut result.failed_and_unresolvable_nodes;
                hopeless.insert(node, unfit.to_string());
            }
        }
    }
    result.node_names = Some(names);
    result
}

async fn prioritize(State(state): State<ExtenderState>, request: Request) -> Response {
    let PodArgs { pod, zone, nodes } = match pod_args(request).await {
        Ok(args) => args,
        Err(refusal) => return refuse(&state, Verb::Score, refusal),
    };
    let namespace = pod.key.namespace.clone();
    let response = state
        .request(ExtenderRequest::Prioritize { pod, nodes })
        .await;
    let failure = response.as_ref().err().map(Refusal::kind);
    state.count(Verb::Score, &zone, &namespace, failure);
    match response {
        Ok(ExtenderResponse::Scored(scores)) => {
            axum::Json(priorities(scores, state.randomize)).into_response()
        }
        Ok(_) => Refusal::Crashed.into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

/// Converts scores of 0 to 100 to an extender's scores of 0 to 10. `randomize` replaces each score
/// by a random one from 1 up to it, so that simultaneous pods do not all go to the best node.
fn priorities(scores: Vec<(String, u8)>, randomize: bool) -> Vec<HostPriority> {
    let mut random = rand::rng();
    let scores = scores.into_iter().map(|(host, score)| {
        let score = if randomize && score > 0 {
            random.random_range(1..=score)
        } else {
            score
        };
        HostPriority {
            host,
            score: i64::from(score.div_ceil(10)),
        }
    });
    scores.collect()
}

async fn preempt(State(state): State<ExtenderState>, request: Request) -> Response {
    let (pod, zone, given) = match preemption(request).await {
        Ok(args) => args,
        Err(refusal) => return refuse(&state, Verb::Preempt, refusal),
    };
    let uids = |victims: &MetaVictims| victims.pods.iter().map(|pod| pod.uid.clone()).collect();
    let victims = given.iter().map(|(node, of)| (node.clone(), uids(of)));
    let victims = victims.collect();
    let namespace = pod.key.namespace.clone();
    let response = state
        .request(ExtenderRequest::Preempt { pod, victims })
        .await;
    let failure = response.as_ref().err().map(Refusal::kind);
    state.count(Verb::Preempt, &zone, &namespace, failure);
    match response {
        Ok(ExtenderResponse::Preempted(kept)) => {
            axum::Json(preemption_result(kept, &given)).into_response()
        }
        Ok(_) => Refusal::Crashed.into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

type Victims = BTreeMap<String, MetaVictims>;

async fn preemption(request: Request) -> Result<(Box<PodView>, String, Victims), Refusal> {
    let args: ExtenderPreemptionArgs = read(request).await?;
    let victims = args.node_name_to_meta_victims.ok_or(Refusal::NoNames)?;
    let (pod, zone) = pod_of(&args.pod)?;
    Ok((pod, zone, victims))
}

fn preemption_result(
    kept: BTreeMap<String, Vec<String>>,
    given: &Victims,
) -> ExtenderPreemptionResult {
    let kept = kept.into_iter().map(|(node, uids)| {
        // The disruption budgets of added victims are unknown. kube-scheduler checks them before it
        // deletes a pod.
        let pdb_violations = given.get(&node).map_or(0, |of| of.pdb_violations);
        let pods = uids.into_iter().map(|uid| MetaPod { uid }).collect();
        let victims = MetaVictims {
            pods,
            pdb_violations,
        };
        (node, victims)
    });
    ExtenderPreemptionResult {
        node_name_to_meta_victims: kept.collect(),
    }
}

async fn bind(State(state): State<ExtenderState>, request: Request) -> Response {
    let args: ExtenderBindingArgs = match read(request).await {
        Ok(args) => args,
        Err(refusal) => return refuse(&state, Verb::Bind, refusal),
    };
    let pod = NamespacedName {
        namespace: args.pod_namespace,
        name: args.pod_name,
    };
    let namespace = pod.namespace.clone();
    let request = ExtenderRequest::Bind {
        pod,
        uid: args.pod_uid,
        node: args.node,
        strict: state.strict,
    };
    let response = state.request(request).await;
    let failure = match &response {
        Ok(ExtenderResponse::Bound(Err(unbound))) => Some(unbound.kind()),
        Ok(_) => None,
        Err(refusal) => Some(refusal.kind()),
    };
    state.count(Verb::Bind, "", &namespace, failure);
    match response {
        Ok(ExtenderResponse::Bound(result)) => {
            let error = result.err().map(|unbound| unbound.to_string());
            let error = error.unwrap_or_default();
            axum::Json(ExtenderBindingResult { error }).into_response()
        }
        Ok(_) => Refusal::Crashed.into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

/// Responds to a request that cannot be read.
fn refuse(state: &ExtenderState, verb: Verb, refusal: Refusal) -> Response {
    tracing::warn!(verb = verb.as_str(), %refusal, "a request of kube-scheduler is refused");
    state.count(verb, "", "", Some(refusal.kind()));
    refusal.into_response()
}

async fn read<T: DeserializeOwned>(request: Request) -> Result<T, Refusal> {
    let body = axum::body::to_bytes(request.into_body(), MAX_EXTENDER_BODY_BYTES);
    let bytes: Bytes = match tokio::time::timeout(BODY_TIMEOUT, body).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) | Err(_) => return Err(Refusal::Body),
    };
    serde_json::from_slice(&bytes).map_err(|error| Refusal::Json(error.to_string()))
}

/// The only zone that a pod's node affinity requires, otherwise the one that it prefers, as a
/// metric label. Empty if there is none.
fn desired_zone(pod: &Value) -> String {
    let affinity = "/spec/affinity/nodeAffinity";
    let list = |path: String| {
        let found = pod.pointer(&path).and_then(Value::as_array);
        found.into_iter().flatten()
    };
    let required = list(format!(
        "{affinity}/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms"
    ));
    let preferred = list(format!(
        "{affinity}/preferredDuringSchedulingIgnoredDuringExecution"
    ));
    let preferred = preferred.filter_map(|term| term.get("preference"));
    let expressions = required
        .chain(preferred)
        .filter_map(|term| term.get("matchExpressions")?.as_array())
        .flatten();
    let mut zones = expressions.filter_map(|expression| {
        let is_zone = expression["key"] == ZONE && expression["operator"] == "In";
        match expression["values"].as_array().map(Vec::as_slice) {
            Some([zone]) if is_zone => zone.as_str(),
            _ => None,
        }
    });
    zones.next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::core::amount::Both;

    #[test]
    fn verdicts_become_the_lists_of_kube_scheduler() {
        let node = |name: &str, verdict| (name.to_owned(), verdict);
        let result = filter_result(vec![
            node("a", Err(Unfit::NoRoom(Both::new(1, 0)))),
            node("b", Ok(())),
            node("c", Err(Unfit::UnknownNode)),
        ]);
        let golden = include_str!("../../../protocol/testdata/extender/filter_result.json");
        let golden = golden
            .replace("n1", "a")
            .replace("n2", "b")
            .replace("n3", "c");
        assert_eq!(
            serde_json::to_string(&result).expect("encodes"),
            golden.trim()
        );
        let result = filter_result(vec![node("a", Err(Unfit::ForeignScheduler))]);
        assert_eq!(result.error, "spec.schedulerName is not ours");
        assert_eq!(result.node_names, Some(vec![]));
    }

    #[test]
    fn scores_are_rounded_up_to_ten_steps() {
        let scores = |randomize| {
            let scores = [0, 1, 10, 11, 99, 100].map(|score| (score.to_string(), score));
            let list = priorities(scores.to_vec(), randomize);
            list.into_iter().map(|part| part.score).collect::<Vec<_>>()
        };
        assert_eq!(scores(false), [0, 1, 1, 2, 10, 10]);
        let mut last = BTreeSet::new();
        for _ in 0..1000 {
            let got = scores(true);
            assert_eq!(got[..3], [0, 1, 1]);
            assert!((1..=2).contains(&got[3]) && (1..=10).contains(&got[5]));
            last.insert(got[5]);
        }
        assert_eq!(last.len(), 10, "every step is drawn: {last:?}");
    }

    #[test]
    fn zone_of_a_pod_is_the_only_one_of_its_affinity() {
        let term = |operator: &str, zones: Value| {
            json!({"matchExpressions": [
            {"key": "x", "operator": "In", "values": ["y"]},
            {"key": ZONE, "operator": operator, "values": zones}]})
        };
        let pod = |required: Value, preferred: Value| {
            json!({"spec": {"affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [required]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": preferred}]}}}})
        };
        let (a, b) = (term("In", json!(["a"])), term("In", json!(["b"])));
        assert_eq!(desired_zone(&pod(a.clone(), b.clone())), "a");
        assert_eq!(desired_zone(&pod(json!({}), b.clone())), "b");
        let many = term("In", json!(["a", "b"]));
        assert_eq!(desired_zone(&pod(many, json!(7))), "");
        let others = term("NotIn", json!(["a"]));
        assert_eq!(desired_zone(&pod(others, b)), "b");
        assert_eq!(desired_zone(&json!({})), "");
    }
}
