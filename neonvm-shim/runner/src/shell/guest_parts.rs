//! Relays orders about the guest's parts, and notices to its people, from the control routes to the
//! guest's daemon: streams them, stores nothing.

use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post, put};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Body as _;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use protocol::notice::{MOST_BYTES, RUNNER_ROUTE};
use protocol::parts::{PROGRAM_BYTES, PartName, ROUTE};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::control::Handle;
use super::guestd_key;

/// Prefix of the relayed routes.
const RELAYED: &str = "/v1/guest/parts";
/// Longest wait for a connection to the guest's daemon.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Longest exchange with it: a program is sent, hashed and tested.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(300);
/// Most bytes of its response.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Way to the guest's daemon.
#[derive(Debug, Clone)]
pub struct GuestLink {
    /// Address of the daemon's port, forwarded by the pod.
    pub address: SocketAddrV4,
    /// File with the key of the guest's boot.
    pub key: PathBuf,
}

/// Routes of the guest's parts and of its notice.
pub(super) fn routes() -> Router<Handle> {
    Router::new()
        .route(RELAYED, get(relay))
        .route("/v1/guest/parts/{part}", put(relay))
        .route("/v1/guest/parts/{part}/{order}", post(relay))
        .route(RUNNER_ROUTE, put(relay_notice).delete(relay_notice))
}

async fn relay_notice(State(handle): State<Handle>, request: Request) -> Response {
    if request.body().size_hint().lower() > MOST_BYTES as u64 {
        let text = format!("a notice is longer than {MOST_BYTES} bytes\n");
        return (StatusCode::PAYLOAD_TOO_LARGE, text).into_response();
    }
    send(&handle.guest, protocol::notice::ROUTE, request).await
}

async fn relay(State(handle): State<Handle>, request: Request) -> Response {
    let path = request.uri().path();
    let rest = path.strip_prefix(RELAYED).unwrap_or_default();
    if !is_known(rest) {
        let text =
            "no such part or order: parts are monitor and guestd, orders try, keep and back\n";
        return (StatusCode::NOT_FOUND, text).into_response();
    }
    if request.body().size_hint().lower() > PROGRAM_BYTES {
        let text = format!("the program is longer than {PROGRAM_BYTES} bytes\n");
        return (StatusCode::PAYLOAD_TOO_LARGE, text).into_response();
    }
    let query = request.uri().query().map(|query| format!("?{query}"));
    let target = format!("{ROUTE}{rest}{}", query.unwrap_or_default());
    send(&handle.guest, &target, request).await
}

async fn send(guest: &GuestLink, target: &str, request: Request) -> Response {
    match timeout(EXCHANGE_LIMIT, exchange(guest, target, request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => {
            let text = format!("failed to relay to the guest's daemon: {error}\n");
            (StatusCode::BAD_GATEWAY, text).into_response()
        }
        Err(_) => {
            let text = "the guest's daemon did not respond in time\n";
            (StatusCode::GATEWAY_TIMEOUT, text).into_response()
        }
    }
}

/// Whether the guest's daemon has a route at this rest of a path.
fn is_known(rest: &str) -> bool {
    let Some(rest) = rest.strip_prefix('/') else {
        return rest.is_empty();
    };
    let (part, order) = rest.split_once('/').unwrap_or((rest, "try"));
    PartName::parse(part).is_some() && matches!(order, "try" | "keep" | "back")
}

async fn exchange(link: &GuestLink, target: &str, request: Request) -> Result<Response, BoxError> {
    let stream = timeout(CONNECT_LIMIT, TcpStream::connect(link.address)).await??;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(
                error = daemon_kit::chain(&error),
                "relay to the guest closed"
            );
        }
    });
    let (head, body) = request.into_parts();
    let limit = usize::try_from(PROGRAM_BYTES)?;
    let mut relayed = hyper::Request::new(Body::new(Limited::new(body, limit)));
    *relayed.method_mut() = head.method;
    *relayed.uri_mut() = target.parse()?;
    *relayed.headers_mut() = headers(link, &head.headers)?;
    let (head, body) = sender.send_request(relayed).await?.into_parts();
    let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await?;
    let mut response = Response::new(Body::from(body.to_bytes()));
    *response.status_mut() = head.status;
    if let Some(kind) = head.headers.get(header::CONTENT_TYPE) {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, kind.clone());
    }
    Ok(response)
}

/// Headers for the guest: its own key in place of the caller's token.
fn headers(link: &GuestLink, given: &HeaderMap) -> Result<HeaderMap, BoxError> {
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, header::HeaderValue::from_static("guest"));
    for name in ["content-type", "bellows-signature"] {
        if let Some(value) = given.get(name) {
            headers.insert(name, value.clone());
        }
    }
    if let Some(key) = guestd_key::read(&link.key)? {
        let mut value = header::HeaderValue::try_from(format!("Bearer {}", key.as_str()))?;
        value.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests;
