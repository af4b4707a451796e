//! The HTTP server for a kube-scheduler beside this process: `/filter`, `/prioritize`, `/preempt`
//! and `/bind`, each a POST of JSON. Source: docs/compatibility/scheduler.md §8.1, §8.3.
//!
//! The response is 503 while this replica does not lead or has no complete lists. kube-scheduler
//! then tries the pod again later. Its configuration must have `nodeCacheCapable: true` (names, not
//! whole nodes) and must not have `ignorable`, because kube-scheduler binds without an ignorable
//! extender.

mod results;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use protocol::extender::{
    ExtenderArgs, ExtenderBindingArgs, ExtenderBindingResult, ExtenderPreemptionArgs, MetaVictims,
};
use protocol::permit::NamespacedName;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use results::{Victims, desired_zone, filter_result, preemption_result, priorities};

use super::driver::Input;
use super::metrics::Metrics;
use crate::config::Config;
use crate::core::event::{ExtenderRequest, ExtenderResponse};
use crate::core::view::PodView;

/// Longest request body, in bytes: a pod of at most 1.5 MiB, and names and victims of 5,000 nodes.
pub const MAX_EXTENDER_BODY_BYTES: usize = 16 << 20;
/// Longest time for a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
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

async fn preemption(request: Request) -> Result<(Box<PodView>, String, Victims), Refusal> {
    let args: ExtenderPreemptionArgs = read(request).await?;
    let victims = args.node_name_to_meta_victims.ok_or(Refusal::NoNames)?;
    let (pod, zone) = pod_of(&args.pod)?;
    Ok((pod, zone, victims))
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
