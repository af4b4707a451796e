//! The HTTP side of the agent's port: `/monitor` becomes a WebSocket, for the holder of the token
//! where the port asks for one; all else is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderName, HeaderValue, UPGRADE, WWW_AUTHENTICATE};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use protocol::monitor::PATH;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use transport::Stream;

use super::token::AgentToken;
use crate::core::handshake::HandshakeFailure;

/// Largest request head, bytes. hyper's least is 8 KiB.
const HEAD_LIMIT_BYTES: usize = 8 * 1024;

/// Answer to a request for another path than [`PATH`].
const NO_PAGE: &str = "only /monitor is served here: metrics and state have a port of their own\n";
/// Answer to a request for [`PATH`] that is no WebSocket's.
const NO_WEBSOCKET: &str = "/monitor is a WebSocket for an agent (RFC 6455, version 13): send GET with \
    Connection: Upgrade, Upgrade: websocket, Sec-WebSocket-Version: 13 and a Sec-WebSocket-Key\n";
/// Answer to a request that shows no token or a wrong one.
const NO_TOKEN: &str = "agents of this monitor show its token: Authorization: Bearer TOKEN\n";

const KEY: HeaderName = HeaderName::from_static("sec-websocket-key");
const ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");
const VERSION: HeaderName = HeaderName::from_static("sec-websocket-version");

/// Serves the one HTTP request of a connection; the stream after a WebSocket upgrade, `None` if
/// there was none.
///
/// # Errors
/// When what comes is no HTTP at all, such as TLS to a port without, or shows no token to a port
/// that asks for one.
pub async fn upgraded(
    stream: Stream,
    token: Option<AgentToken>,
) -> Result<Option<Upgraded>, HandshakeFailure> {
    let (took, mut taken) = mpsc::channel::<OnUpgrade>(1);
    let took = Arc::new(took);
    let is_refused = Arc::new(AtomicBool::new(false));
    let refused = Arc::clone(&is_refused);
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        let (took, refused, token) = (Arc::clone(&took), Arc::clone(&refused), token.clone());
        async move {
            let response = answer(&request, token.as_ref());
            if response.status() == StatusCode::UNAUTHORIZED {
                refused.store(true, Ordering::Relaxed);
            }
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                // Full only if there were two requests on this connection, which `close` rules out.
                let _ = took.try_send(hyper::upgrade::on(&mut request));
            }
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .max_buf_size(HEAD_LIMIT_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "bad HTTP request on the agent's port");
        return if error.is_parse() {
            Err(HandshakeFailure::NotHttp)
        } else {
            Ok(None)
        };
    }
    if is_refused.load(Ordering::Relaxed) {
        return Err(HandshakeFailure::NoToken);
    }
    let Ok(upgrade) = taken.try_recv() else {
        return Ok(None);
    };
    Ok(upgrade.await.ok())
}

fn answer(request: &Request<Incoming>, token: Option<&AgentToken>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::NOT_FOUND;
    // One request to a connection. (hyper's own switch for this would say `close` on an upgrade,
    // too.)
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    if request.uri().path() != PATH {
        *response.body_mut() = Full::from(NO_PAGE);
        return response;
    }
    let headers = request.headers();
    if token.is_some_and(|token| !token.is_shown(headers)) {
        *response.status_mut() = StatusCode::UNAUTHORIZED;
        response
            .headers_mut()
            .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        *response.body_mut() = Full::from(NO_TOKEN);
        return response;
    }
    *response.status_mut() = StatusCode::BAD_REQUEST;
    let wanted = request.method() == Method::GET
        && has_token(headers, &CONNECTION, "upgrade")
        && has_token(headers, &UPGRADE, "websocket")
        && has_token(headers, &VERSION, "13");
    let accept = headers
        .get(&KEY)
        .and_then(|key| derive_accept_key(key.as_bytes()).parse().ok())
        .filter(|_| wanted);
    let Some(accept) = accept else {
        *response.body_mut() = Full::from(NO_WEBSOCKET);
        return response;
    };
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(ACCEPT, accept);
    response
}

/// Whether a header's comma-separated values have this one, whatever its case.
fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let values = headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut tokens = values.flat_map(|value| value.split(','));
    tokens.any(|found| found.trim().eq_ignore_ascii_case(token))
}
