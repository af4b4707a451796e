//! One HTTP request to a port of a pod, through the API server and the kubelet, which connects
//! inside the pod.

use bytes::Bytes;
use daemon_kit::http_client::{HttpError, refusal};
use hyper::http::{Method, Response, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use kube::api::Portforwarder;
use serde_json::Value;
use tokio::time::{Duration, Instant, timeout_at};

use crate::http;

/// Longest time of the whole exchange.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why an exchange with a pod failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForwardError {
    #[error("the API server does not forward its port")]
    Open(#[source] kube::Error),
    #[error("its kubelet reaches no port {port}: {text}")]
    Kubelet { port: u16, text: String },
    #[error(transparent)]
    Exchange(#[from] HttpError),
    #[error("it answers {status}: {text}")]
    Status { status: StatusCode, text: String },
    #[error("its answer is no JSON")]
    Json(#[source] serde_json::Error),
    #[error("it does not answer within {} s", PATIENCE.as_secs())]
    Time,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct PodPort<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) pod: &'a str,
    pub(crate) port: u16,
}

/// Sends `GET path` to a port of a pod. Returns the JSON of the answer.
///
/// # Errors
///
/// [`ForwardError`].
pub(crate) async fn get(
    client: &kube::Client,
    at: PodPort<'_>,
    path: &str,
) -> Result<Value, ForwardError> {
    let answer = bytes(client, at, path).await?;
    serde_json::from_slice(&answer).map_err(ForwardError::Json)
}

/// Sends `GET path` to a port of a pod. Returns the bytes of the answer.
///
/// # Errors
///
/// [`ForwardError`], but not for what the bytes are.
pub(crate) async fn bytes(
    client: &kube::Client,
    at: PodPort<'_>,
    path: &str,
) -> Result<Bytes, ForwardError> {
    let deadline = Instant::now() + PATIENCE;
    let pods: kube::Api<Pod> = kube::Api::namespaced(client.clone(), at.namespace);
    let opened = timeout_at(deadline, pods.portforward(at.pod, &[at.port])).await;
    let opened = opened.map_err(|_| ForwardError::Time)?;
    let mut forwarder = opened.map_err(ForwardError::Open)?;
    let answer = timeout_at(deadline, ask(&mut forwarder, at.port, path)).await;
    // The forwarder's task would wait until the peer closes.
    forwarder.abort();
    let answer = answer.map_err(|_| ForwardError::Time)??;
    if answer.status() != StatusCode::OK {
        return Err(ForwardError::Status {
            status: answer.status(),
            text: refusal(answer.body()),
        });
    }
    Ok(answer.into_body())
}

async fn ask(
    forwarder: &mut Portforwarder,
    port: u16,
    path: &str,
) -> Result<Response<Bytes>, ForwardError> {
    let (Some(stream), Some(refusal)) = (forwarder.take_stream(port), forwarder.take_error(port))
    else {
        unreachable!("kube has both for every port that it is asked for");
    };
    tokio::select! {
        biased;
        Some(text) = refusal => Err(ForwardError::Kubelet { port, text }),
        answer = http::exchange(stream, Method::GET, path, None) => Ok(answer?),
    }
}

#[cfg(test)]
mod tests;
