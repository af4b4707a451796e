//! TCP, TLS and HTTP/1.1 connections.
//!
//! Without the token a client gets no further than an idle connection, and the longest idle one is
//! closed for a new one ([`daemon_kit::connections`]). So connections that nobody uses keep no
//! client out.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use daemon_kit::connections::http::Addresses;
use daemon_kit::connections::{self, Bounds, Connection, ServerCounters, WhenFull};
use daemon_kit::descriptors;
use daemon_kit::serving::{Ending, Patience, converse};
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// Connections at once, where the limit of open files leaves three quarters to others.
const MAX_CONNECTIONS: usize = 2048;
/// The part of the process's descriptors that connections may take: one of this many.
const DESCRIPTOR_PART: u64 = 4;
/// A client that has not finished its handshake by then is dropped.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client is waited for.
const PATIENCE: Patience = Patience {
    head: Duration::from_secs(30),
    write: Duration::from_secs(30),
};

/// Accepts connections until `cancel`, then lets running requests end.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    router: Router,
    counters: ServerCounters,
    cancel: CancellationToken,
) {
    let acceptor = TlsAcceptor::from(tls);
    let total = descriptors::share(MAX_CONNECTIONS, DESCRIPTOR_PART);
    // Clients of one machine all have its loopback address: it tells nobody apart.
    let bounds = Bounds {
        total,
        per_peer: total,
        when_full: WhenFull::CloseIdlest,
    };
    let stop = cancel.clone();
    let serve_one = move |stream, connection| {
        let (acceptor, router, stop) = (acceptor.clone(), router.clone(), stop.clone());
        serve_connection(stream, connection, acceptor, router, stop)
    };
    connections::accept(listener, bounds, counters, cancel, serve_one).await;
}

async fn serve_connection(
    stream: TcpStream,
    connection: Connection,
    acceptor: TlsAcceptor,
    router: Router,
    cancel: CancellationToken,
) -> Ending {
    let (Ok(peer), Ok(local)) = (stream.peer_addr(), stream.local_addr()) else {
        return Ending::Broken;
    };
    let addresses = Addresses {
        peer: peer.ip().to_canonical(),
        local: local.ip(),
    };
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "a TLS handshake failed");
            return Ending::Broken;
        }
        Err(_) => return Ending::TimedOut,
    };
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(addresses);
        let (connection, router) = (connection.clone(), router.clone());
        async move { Ok::<_, Infallible>(answer(request, connection, router).await) }
    });
    converse(stream, service, PATIENCE, cancel.cancelled()).await
}

/// Answers one request. A watch is one request as long as it lasts.
async fn answer(request: Request<Incoming>, connection: Connection, router: Router) -> Response {
    let guard = connection.request();
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(connection);
    let Ok(response) = router.oneshot(request).await;
    guard.until_sent(response)
}
