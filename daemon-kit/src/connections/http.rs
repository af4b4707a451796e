//! A server of plain HTTP with limits of number ([`Bounds`]), time and size.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::{Bounds, Connection, RequestGuard, ServerCounters, accept};
use crate::serving::{Ending, Patience, converse};

/// Time and size limits of a peer's requests.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Time limits of a request's head, including the time between two requests, and of taking a
    /// response.
    pub patience: Patience,
    /// Time limit of a request's body.
    pub body: Duration,
    /// Longest body of a request in bytes.
    pub body_bytes: usize,
}

impl Limits {
    /// Limits of a port that serves small pages. Scrapers come at least every minute, and keep a
    /// connection that is idle for less than the limit.
    pub const PAGES: Self = Self {
        patience: Patience {
            head: Duration::from_secs(75),
            write: Duration::from_secs(20),
        },
        body: Duration::from_secs(5),
        body_bytes: 64 << 10,
    };
}

/// Addresses of a request's connection, in the request's extensions.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// IP address of the peer.
    pub peer: IpAddr,
    /// Local address that the peer has connected to.
    pub local: IpAddr,
}

/// Serves `routes` until `cancel`, then finishes open requests.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    (bounds, limits): (Bounds, Limits),
    counters: ServerCounters,
    cancel: CancellationToken,
) {
    let stop = cancel.clone();
    let serve_one = move |stream, connection| {
        let (routes, stop) = (routes.clone(), stop.clone());
        serve_connection(stream, connection, routes, limits, stop)
    };
    accept(listener, bounds, counters, cancel, serve_one).await;
}

async fn serve_connection(
    stream: TcpStream,
    connection: Connection,
    routes: Router,
    limits: Limits,
    cancel: CancellationToken,
) -> Ending {
    let (Ok(peer), Ok(local)) = (stream.peer_addr(), stream.local_addr()) else {
        return Ending::Broken;
    };
    let addresses = Addresses {
        peer: peer.ip(),
        local: local.ip(),
    };
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(addresses);
        let (connection, routes) = (connection.clone(), routes.clone());
        async move { Ok::<_, Infallible>(answer(request, &connection, routes, limits).await) }
    });
    converse(stream, service, limits.patience, cancel.cancelled()).await
}

/// Reads the complete request before it counts as in progress: a peer that does not end its body
/// stays idle.
async fn answer(
    request: Request<Incoming>,
    connection: &Connection,
    routes: Router,
    limits: Limits,
) -> Response {
    let (head, body) = request.into_parts();
    let body = Body::new(body);
    let body = match tokio::time::timeout(limits.body, to_bytes(body, limits.body_bytes)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => return refused(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large\n"),
        Err(_) => return refused(StatusCode::REQUEST_TIMEOUT, "the body took too long\n"),
    };
    let guard = connection.request();
    let request = Request::from_parts(head, Body::from(body));
    let Ok(response) = routes.oneshot(request).await;
    guard.until_sent(response)
}

fn refused(status: StatusCode, why: &'static str) -> Response {
    let close = [(header::CONNECTION, HeaderValue::from_static("close"))];
    (status, close, why).into_response()
}

impl RequestGuard {
    /// Keeps the guard until the connection has the last byte of the response.
    #[must_use]
    pub fn until_sent(self, response: Response) -> Response {
        response.map(|body| Body::new(Guarded { body, _guard: self }))
    }
}

/// A body that holds the guard of its request.
struct Guarded {
    body: Body,
    _guard: RequestGuard,
}

impl HttpBody for Guarded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
