//! The permit server: HTTP POST on any path. Source: docs/compatibility/scheduler.md §2.4.
//!
//! Bounds: those of [`super::bounded_server`], a body of 64 KiB and a time to send it.
//! [`Callers`](super::Callers) decides which requests are authorised.
//!
//! Every agent sends several requests a minute. Between the connection and the core there is only a
//! queue: no router and no boxed body. Metric labels are looked up, not allocated.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use daemon_kit::bearer::Expected;
use daemon_kit::clock::Clock;
use daemon_kit::connections::{Connection, ServerCounters};
use daemon_kit::serving::Ending;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use protocol::permit::{PermitRefusal, Unproved};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::bounded_server::{self, ConnectionHandler};
use super::callers::{Scope, TokenFile, bearer};
use super::driver::{Input, PermitOutcome};
use super::metrics::Metrics;
use super::review::Reviewer;
use super::tls_acceptor::TlsAcceptor;
use crate::core::event::{Permit, PermitRequest};

/// Longest request body. A real one has about 300 bytes.
pub const MAX_BODY_BYTES: usize = 64 << 10;
/// Largest part of a longer body that is read and discarded.
const MAX_IGNORED_BYTES: usize = 16 << 20;
/// Longest time for a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct ServerState {
    pub(super) inputs: mpsc::Sender<Input>,
    pub(super) metrics: Metrics,
    pub(super) clock: Clock,
    /// `None`: plain HTTP.
    pub(super) acceptor: Option<TlsAcceptor>,
    /// A file of tokens, if one is configured.
    pub(super) tokens: Option<TokenFile>,
    /// Token reviews by the API server, if they are configured.
    pub(super) reviewer: Option<Reviewer>,
    /// The token of the agent in this process, if there is one.
    pub(super) secret: Option<Expected>,
    /// Whether callers need no token if none of these is configured.
    pub(super) needs_no_token: bool,
}

/// Serves until `cancel`, then waits up to five seconds for open requests.
pub(super) async fn serve(
    listener: TcpListener,
    state: ServerState,
    counters: ServerCounters,
    cancel: CancellationToken,
) {
    let state = Arc::new(state);
    let permits = Permits(Arc::clone(&state));
    let served = bounded_server::serve(listener, permits, counters, cancel.clone());
    let watched = async {
        if let Some(acceptor) = &state.acceptor {
            acceptor.watch(cancel).await;
        }
    };
    tokio::join!(served, watched);
}

#[derive(Clone)]
struct Permits(Arc<ServerState>);

impl ConnectionHandler for Permits {
    async fn converse(
        self,
        stream: TcpStream,
        connection: Connection,
        cancel: CancellationToken,
    ) -> Ending {
        let Some(acceptor) = &self.0.acceptor else {
            let service = self.service(false, connection);
            return bounded_server::serve_http(stream, service, cancel.cancelled()).await;
        };
        match acceptor.accept(stream).await {
            Ok(accepted) => {
                let service = self.service(accepted.lacks_certificate, connection);
                let until = async {
                    tokio::select! {
                        () = cancel.cancelled() => {}
                        () = accepted.config_retired.cancelled() => {}
                    }
                };
                bounded_server::serve_http(accepted.stream, service, until).await
            }
            Err(reason) => {
                self.0.metrics.caller_refused(reason);
                Ending::Broken
            }
        }
    }
}

impl Permits {
    fn service(
        &self,
        lacks_certificate: bool,
        connection: Connection,
    ) -> impl hyper::service::Service<
        Request<Incoming>,
        Response = Response<Full<Bytes>>,
        Error = Infallible,
        Future: Send,
    > + use<> {
        let state = Arc::clone(&self.0);
        service_fn(move |request| {
            let (state, connection) = (Arc::clone(&state), connection.clone());
            async move {
                Ok(state
                    .respond_to(request, lacks_certificate, &connection)
                    .await)
            }
        })
    }
}

impl ServerState {
    async fn respond_to(
        &self,
        request: Request<Incoming>,
        lacks_certificate: bool,
        connection: &Connection,
    ) -> Response<Full<Bytes>> {
        let began = self.clock.now();
        let admitted = match self.scope(&request, lacks_certificate).await {
            Err(refusal) => Err(refusal),
            Ok(scope) => decode(request).await.map(|request| (request, scope)),
        };
        let (node, result) = match admitted {
            Err(refusal) => (None, Err(refusal)),
            Ok((request, scope)) => {
                // A connection counts as idle until the whole body has arrived.
                let _guard = connection.request();
                let outcome = send_to_core(&self.inputs, request, scope).await;
                let node = outcome.node.unwrap_or_else(|| "<none>".into());
                (Some(node), outcome.result)
            }
        };
        if result.is_ok() {
            connection.trust();
        }
        if let Err(refusal) = &result
            && let Some(reason) = refusal.of_caller()
        {
            self.metrics.caller_refused(reason);
        }
        let status = result.as_ref().map_or_else(PermitRefusal::status, |_| 200);
        self.metrics.answered(status, node.as_deref());
        self.metrics
            .answer_seconds
            .observe(self.clock.now().since(began).as_secs_f64());
        respond(result)
    }

    /// The pods that the sender of a request may request permits for.
    async fn scope(
        &self,
        request: &Request<Incoming>,
        lacks_certificate: bool,
    ) -> Result<Scope, PermitRefusal> {
        if lacks_certificate {
            return Err(PermitRefusal::Unauthorized(Unproved::NoCertificate));
        }
        let asks_for_token =
            self.tokens.is_some() || self.reviewer.is_some() || self.secret.is_some();
        if !asks_for_token && self.needs_no_token {
            return Ok(Scope::AnyNode);
        }
        let header = request.headers().get(AUTHORIZATION);
        let token = bearer(header.map(HeaderValue::as_bytes))?;
        if self.secret.is_some_and(|secret| secret.is(token)) {
            return Ok(Scope::AnyNode);
        }
        let tokens = self.tokens.as_ref();
        let of_file = tokens.map(|file| file.scope(self.clock.now(), token));
        match (of_file, &self.reviewer) {
            (Some(Ok(scope)), _) => Ok(scope),
            (_, Some(reviewer)) => reviewer.scope(token).await,
            (Some(refused), None) => refused,
            (None, None) => Err(PermitRefusal::Unauthorized(Unproved::BadToken)),
        }
    }
}

async fn decode(request: Request<Incoming>) -> Result<PermitRequest, PermitRefusal> {
    if request.method() != Method::POST {
        return Err(PermitRefusal::MustBePost);
    }
    match tokio::time::timeout(BODY_TIMEOUT, read(request.into_body())).await {
        Ok(Some(bytes)) => PermitRequest::decode(&bytes),
        Ok(None) | Err(_) => Err(PermitRefusal::BadJson),
    }
}

/// Reads a body. `None` if it ends early or is too long. A body of one frame, which is the usual
/// case, is not copied.
async fn read(mut body: Incoming) -> Option<Bytes> {
    let (mut whole, mut joined) = (Bytes::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.ok()?.into_data() else {
            continue;
        };
        if whole.len().max(joined.len()) + piece.len() > MAX_BODY_BYTES {
            tokio::spawn(tokio::time::timeout(BODY_TIMEOUT, discard(body)));
            return None;
        }
        if whole.is_empty() {
            whole = piece;
        } else {
            if joined.is_empty() {
                joined.extend_from_slice(&whole);
            }
            joined.extend_from_slice(&piece);
        }
        if body.is_end_stream() {
            break;
        }
    }
    Some(if joined.is_empty() {
        whole
    } else {
        joined.into()
    })
}

/// Reads the rest of a refused body while the response is sent. A client that still sends when the
/// connection is closed may lose the response.
async fn discard(mut body: Incoming) {
    let mut left = MAX_IGNORED_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        if length > left {
            return;
        }
        left -= length;
    }
}

/// Sends a request to the driver and waits for the outcome. While requests arrive, the driver ends
/// only by a panic. The outcome then says so.
async fn send_to_core(
    inputs: &mpsc::Sender<Input>,
    request: PermitRequest,
    scope: Scope,
) -> PermitOutcome {
    let panicked = || PermitOutcome {
        node: None,
        result: Err(PermitRefusal::Panicked),
    };
    let (responder, outcome) = oneshot::channel();
    let input = Input::PermitRequest {
        request,
        scope,
        responder,
    };
    if inputs.send(input).await.is_err() {
        return panicked();
    }
    outcome.await.unwrap_or_else(|_| panicked())
}

fn respond(result: Result<Permit, PermitRefusal>) -> Response<Full<Bytes>> {
    let (status, kind, text) = match result {
        // Two sizes and fixed names cannot fail to encode.
        Ok(permit) => (
            StatusCode::OK,
            "application/json",
            serde_json::to_vec(&permit).unwrap_or_default(),
        ),
        Err(refusal) => {
            let status = StatusCode::from_u16(refusal.status());
            let (kind, text) = refusal.body();
            (
                status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
                kind,
                text.into_bytes(),
            )
        }
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn text(response: Response<Full<Bytes>>) -> (u16, String) {
        let status = response.status().as_u16();
        let bytes = response
            .into_body()
            .collect()
            .await
            .expect("reads")
            .to_bytes();
        (status, String::from_utf8(bytes.to_vec()).expect("is text"))
    }

    fn request() -> PermitRequest {
        let text = r#"{"protoVersion":7,"pod":{"namespace":"d","name":"p"},
            "computeUnit":{"vCPUs":1,"mem":"1Gi"},"resources":{"vCPUs":1,"mem":"1Gi"}}"#;
        PermitRequest::decode(text.as_bytes()).expect("decodes")
    }

    #[tokio::test]
    async fn request_gets_a_500_after_the_driver_crashed() {
        let expected = (500, "request handler panicked".to_owned());
        let (inputs, inbox) = mpsc::channel(1);
        drop(inbox);
        assert_eq!(
            text(respond(
                send_to_core(&inputs, request(), Scope::AnyNode)
                    .await
                    .result
            ))
            .await,
            expected
        );
        // The driver may also end while the request waits.
        let (inputs, mut inbox) = mpsc::channel(1);
        let driver = async move { drop(inbox.recv().await) };
        let sent = send_to_core(&inputs, request(), Scope::AnyNode);
        let (outcome, ()) = tokio::join!(sent, driver);
        assert_eq!(text(respond(outcome.result)).await, expected);
    }
}
