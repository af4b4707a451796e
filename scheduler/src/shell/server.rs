//! The permit server: HTTP POST on any path. Source: docs/compatibility/scheduler.md §2.4.
//!
//! Bounds: those of [`super::gate`], a body of 64 KiB and a time to send it. Who may ask is decided
//! by [`Callers`](super::Callers).
//!
//! This is the path every agent takes several times a minute, so nothing stands between the
//! connection and the core but a queue: no router, no boxed body, and labels are looked up rather
//! than made.

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
use protocol::permit::{AgentRequest, PermitRefusal, PluginResponse, Unproved};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::callers::{Scope, TokenFile, bearer};
use super::door::Door;
use super::gate::{self, Serves};
use super::metrics::Metrics;
use super::owner::Command;
use super::review::Reviewer;

/// Longest request body. A real one has about 300 bytes.
pub const MAX_BODY_BYTES: usize = 64 << 10;
/// What is taken in of a longer one and thrown away.
const MAX_IGNORED_BYTES: usize = 16 << 20;
/// Time for a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Desk {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) metrics: Metrics,
    pub(super) clock: Clock,
    /// TLS, where it is on.
    pub(super) door: Option<Door>,
    /// Tokens of a file, where they are asked for.
    pub(super) tokens: Option<TokenFile>,
    /// Tokens that the API server knows, where they are asked for.
    pub(super) reviewer: Option<Reviewer>,
    /// The token of the agent in this process, where it is asked for.
    pub(super) secret: Option<Expected>,
    /// Whether callers need no token where none of these is asked for.
    pub(super) needs_no_token: bool,
}

/// Serves until `cancel`, then lets open requests end for up to five seconds.
pub(super) async fn serve(
    listener: TcpListener,
    desk: Desk,
    counters: ServerCounters,
    cancel: CancellationToken,
) {
    let desk = Arc::new(desk);
    let permits = Permits(Arc::clone(&desk));
    let served = gate::serve(listener, permits, counters, cancel.clone());
    let watched = async {
        if let Some(door) = &desk.door {
            door.watch(cancel).await;
        }
    };
    tokio::join!(served, watched);
}

#[derive(Clone)]
struct Permits(Arc<Desk>);

impl Serves for Permits {
    async fn converse(
        self,
        stream: TcpStream,
        connection: Connection,
        cancel: CancellationToken,
    ) -> Ending {
        let Some(door) = &self.0.door else {
            let service = self.service(false, connection);
            return gate::serve_http(stream, service, cancel.cancelled()).await;
        };
        match door.enter(stream).await {
            Ok(guest) => {
                let service = self.service(guest.is_stranger, connection);
                let until = async {
                    tokio::select! {
                        () = cancel.cancelled() => {}
                        () = guest.term.cancelled() => {}
                    }
                };
                gate::serve_http(guest.stream, service, until).await
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
        is_stranger: bool,
        connection: Connection,
    ) -> impl hyper::service::Service<
        Request<Incoming>,
        Response = Response<Full<Bytes>>,
        Error = Infallible,
        Future: Send,
    > + use<> {
        let desk = Arc::clone(&self.0);
        service_fn(move |request| {
            let (desk, connection) = (Arc::clone(&desk), connection.clone());
            async move { Ok(desk.answer(request, is_stranger, &connection).await) }
        })
    }
}

impl Desk {
    async fn answer(
        &self,
        request: Request<Incoming>,
        is_stranger: bool,
        connection: &Connection,
    ) -> Response<Full<Bytes>> {
        let began = self.clock.now();
        let admitted = match self.scope(&request, is_stranger).await {
            Err(refusal) => Err(refusal),
            Ok(scope) => decode(request).await.map(|request| (request, scope)),
        };
        let (node, result) = match admitted {
            Err(refusal) => (None, Err(refusal)),
            Ok((request, scope)) => {
                // Not before: a caller that does not end its body is an idle one.
                let _guard = connection.request();
                let (node, result) = ask(&self.commands, request, scope).await;
                (Some(node.unwrap_or_else(|| "<none>".into())), result)
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

    /// What the sender of a request may ask for.
    async fn scope(
        &self,
        request: &Request<Incoming>,
        is_stranger: bool,
    ) -> Result<Scope, PermitRefusal> {
        if is_stranger {
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
        let of_file = self.tokens.as_ref();
        let of_file = of_file.map(|file| file.scope(self.clock.now(), token));
        match (of_file, &self.reviewer) {
            (Some(Ok(scope)), _) => Ok(scope),
            (_, Some(reviewer)) => reviewer.scope(token).await,
            (Some(refused), None) => refused,
            (None, None) => Err(PermitRefusal::Unauthorized(Unproved::BadToken)),
        }
    }
}

async fn decode(request: Request<Incoming>) -> Result<AgentRequest, PermitRefusal> {
    if request.method() != Method::POST {
        return Err(PermitRefusal::MustBePost);
    }
    match tokio::time::timeout(BODY_TIMEOUT, read(request.into_body())).await {
        Ok(Some(bytes)) => AgentRequest::decode(&bytes),
        Ok(None) | Err(_) => Err(PermitRefusal::BadJson),
    }
}

/// A whole body, unless it breaks off or is too long. One that came in one piece, as they do, is
/// not copied.
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

/// Takes in the rest of a body that is refused, while the answer is on its way: whoever is still
/// sending when a connection is closed may lose the answer.
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

/// Puts a request to the owner. If the owner is gone the answer says that it crashed, for it ends
/// in no other way while requests come in.
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

fn respond(result: Result<PluginResponse, PermitRefusal>) -> Response<Full<Bytes>> {
    let (status, kind, text) = match result {
        // Two sizes and fixed names: there is nothing in it that could fail to encode.
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
