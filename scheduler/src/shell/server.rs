//! The permit server: HTTP POST on any path. Source: spec/scheduler.md §2.4.
//!
//! Bounds: a body of 64 KiB, a time to send headers and body, a number of open connections, and of each address a part of
//! them. A connection that is too slow is closed; one too many is closed at once, and the agent comes back. Who may ask is
//! decided by [`Callers`].

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use protocol::permit::{AgentRequest, PermitRefusal, PluginResponse};
use telemetry::clock::Clock;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::callers::{Callers, Scope};
use super::metrics::Metrics;
use super::owner::Command;

/// Longest request body. A real one has about 300 bytes.
pub const MAX_BODY_BYTES: usize = 64 << 10;
/// Time for a request's headers, idle time between requests included: above an agent's period of 15 s.
const HEADER_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Open connections. Agents keep one each, so this is a cluster of a thousand nodes.
pub const MAX_CONNECTIONS: usize = 1024;
/// Open connections of one address, so that a single peer cannot take all places.
pub const MAX_CONNECTIONS_OF_ONE: usize = MAX_CONNECTIONS / 4;
/// Pause after accepting failed, for instance for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for open requests to end when the server stops.
const DRAIN: Duration = Duration::from_secs(5);

#[derive(Clone)]
struct Desk {
    commands: mpsc::Sender<Command>,
    metrics: Metrics,
    clock: Clock,
    callers: Arc<Callers>,
}

/// How many connections each address has open.
#[derive(Clone, Default)]
struct Guests(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

/// One open connection of an address; given back when dropped.
struct Seat(Guests, IpAddr);

impl Guests {
    /// Nothing when the address has its part already.
    fn seat(&self, address: IpAddr) -> Option<Seat> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if *count >= MAX_CONNECTIONS_OF_ONE {
            return None;
        }
        *count += 1;
        Some(Seat(self.clone(), address))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut open = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.1);
            }
        }
    }
}

/// Serves until `cancel`, then lets open requests end for up to five seconds.
pub(super) async fn serve(
    listener: TcpListener,
    commands: mpsc::Sender<Command>,
    metrics: Metrics,
    clock: Clock,
    callers: Arc<Callers>,
    cancel: CancellationToken,
) {
    let desk = Desk {
        callers,
        commands,
        metrics: metrics.clone(),
        clock,
    };
    let router = Router::new().fallback(answer).with_state(desk);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let (tracker, guests) = (TaskTracker::new(), Guests::default());
    loop {
        let accepted = tokio::select! {
            () = cancel.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let place = Arc::clone(&places).try_acquire_owned().ok();
                let Some(place) = place.zip(guests.seat(peer.ip())) else {
                    metrics.connection_refused();
                    continue;
                };
                let (router, cancel) = (router.clone(), cancel.clone());
                tracker.spawn(async move {
                    converse(stream, router, cancel).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(
                    error = telemetry::chain(&error),
                    "accepting a connection failed"
                );
                tokio::select! {
                    () = cancel.cancelled() => break,
                    () = pause() => {}
                }
            }
        }
    }
    // Whoever connects from now on is told at once that nobody listens.
    drop(listener);
    tracker.close();
    if tokio::time::timeout(DRAIN, tracker.wait()).await.is_err() {
        tracing::warn!("connections still open are closed");
    }
}

async fn pause() {
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

async fn converse(stream: TcpStream, router: Router, cancel: CancellationToken) {
    // Answers are small and awaited.
    let _set = stream.set_nodelay(true);
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT);
    let connection =
        builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = cancel.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = telemetry::chain(&error), "connection ended");
    }
}

async fn answer(State(desk): State<Desk>, request: Request) -> Response {
    let began = desk.clock.now();
    let header = request.headers().get(header::AUTHORIZATION);
    let scope = desk.callers.scope(header.map(HeaderValue::as_bytes));
    let admitted = match scope {
        Err(refusal) => Err(refusal),
        Ok(scope) => decode(request).await.map(|request| (request, scope)),
    };
    let (node, result) = match admitted {
        Err(refusal) => (None, Err(refusal)),
        Ok((request, scope)) => {
            let (node, result) = ask(&desk.commands, request, scope).await;
            (Some(node.unwrap_or_else(|| "<none>".into())), result)
        }
    };
    let status = result.as_ref().map_or_else(PermitRefusal::status, |_| 200);
    desk.metrics.answered(status, node.as_deref());
    desk.metrics
        .answer_seconds
        .observe(desk.clock.now().since(began).as_secs_f64());
    respond(result)
}

async fn decode(request: Request) -> Result<AgentRequest, PermitRefusal> {
    if request.method() != Method::POST {
        return Err(PermitRefusal::MustBePost);
    }
    let body = axum::body::to_bytes(request.into_body(), MAX_BODY_BYTES);
    match tokio::time::timeout(BODY_TIMEOUT, body).await {
        Ok(Ok(bytes)) => AgentRequest::decode(&bytes),
        Ok(Err(_)) | Err(_) => Err(PermitRefusal::BadJson),
    }
}

/// Puts a request to the owner. If the owner is gone the answer says that it crashed, for it ends in no other way
/// while requests come in.
async fn ask(
    commands: &mpsc::Sender<Command>,
    request: AgentRequest,
    scope: Scope,
) -> (Option<String>, Result<PluginResponse, PermitRefusal>) {
    let (reply, answer) = oneshot::channel();
    if commands
        .send(Command::Permit(request, scope, reply))
        .await
        .is_err()
    {
        return (None, Err(PermitRefusal::Panicked));
    }
    match answer.await {
        Ok(reply) => (reply.node, reply.result),
        Err(_) => (None, Err(PermitRefusal::Panicked)),
    }
}

fn respond(result: Result<PluginResponse, PermitRefusal>) -> Response {
    match result {
        Ok(response) => axum::Json(response).into_response(),
        Err(refusal) => {
            let status =
                StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let plain = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
            (status, plain, Body::from(refusal.to_string())).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn text(response: Response) -> (u16, String) {
        let status = response.status().as_u16();
        let bytes = axum::body::to_bytes(response.into_body(), MAX_BODY_BYTES)
            .await
            .expect("reads");
        (status, String::from_utf8(bytes.to_vec()).expect("is text"))
    }

    fn request() -> AgentRequest {
        let text = r#"{"protoVersion":7,"pod":{"namespace":"d","name":"p"},
            "computeUnit":{"vCPUs":1,"mem":"1Gi"},"resources":{"vCPUs":1,"mem":"1Gi"}}"#;
        AgentRequest::decode(text.as_bytes()).expect("decodes")
    }

    #[tokio::test]
    async fn a_crash_is_answered() {
        let expected = (500, "request handler panicked".to_owned());
        let (commands, inbox) = mpsc::channel(1);
        drop(inbox);
        assert_eq!(
            text(respond(ask(&commands, request(), Scope::AnyNode).await.1)).await,
            expected
        );
        // It may also go while the request waits.
        let (commands, mut inbox) = mpsc::channel(1);
        let owner = async move { drop(inbox.recv().await) };
        let (answer, ()) = tokio::join!(ask(&commands, request(), Scope::AnyNode), owner);
        assert_eq!(text(respond(answer.1)).await, expected);
    }
}
