//! HTTP server on the pod's address. It bounds the number of connections
//! ([`daemon_kit::connections`]) and how long each may be idle. Any host may connect, and a peer
//! authenticates only with its first request. So the connection that has been idle longest is
//! closed for a new one. An authenticated connection stays, and so does one with a request in
//! progress.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use daemon_kit::chain;
use daemon_kit::connections::{self, Connection, RequestGuard, ServerCounters, WhenFull};
use daemon_kit::serving::{Ending, Patience, converse};
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::tls_acceptor::TlsAcceptor;

#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) connections: usize,
    /// Timeout of a handshake, of a request's head, of a body, of writing a response, and of an
    /// idle connection.
    pub(super) patience: Duration,
    /// Idle timeout of an authenticated connection.
    pub(super) authenticated_idle: Duration,
}

impl Bounds {
    /// docs/compatibility/neonvm.md §3.6. A controller keeps two connections, as a new one delays
    /// its order by a handshake. The rest is for controllers that take over or migrate
    /// guests, for kubelets and for Prometheus.
    pub(super) const DEPLOYED: Self = Self {
        connections: 64,
        patience: Duration::from_secs(5),
        authenticated_idle: Duration::from_secs(600),
    };
}

/// An accepted connection, among the extensions of its requests.
#[derive(Clone)]
pub(super) struct Accepted(Arc<State>);

struct State {
    connection: Connection,
    /// Set once the peer is authenticated. From then on the connection counts as busy, so that it
    /// is never closed for another one.
    busy: OnceLock<RequestGuard>,
    activity: watch::Sender<Activity>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Activity {
    /// The connection has shown the token.
    is_authenticated: bool,
    /// A request is in progress.
    in_request: bool,
}

impl Accepted {
    fn new(connection: Connection) -> Self {
        Self(Arc::new(State {
            connection,
            busy: OnceLock::new(),
            activity: watch::channel(Activity::default()).0,
        }))
    }

    /// Marks the connection as authenticated.
    pub(super) fn authenticate(&self) {
        self.0.busy.get_or_init(|| self.0.connection.request());
        let activity = &self.0.activity;
        activity.send_modify(|activity| activity.is_authenticated = true);
    }

    fn set_in_request(&self, in_request: bool) {
        let activity = &self.0.activity;
        activity.send_modify(|activity| activity.in_request = in_request);
    }

    /// Returns when the connection has been idle for too long.
    async fn idle_too_long(&self, bounds: Bounds) {
        let mut activity = self.0.activity.subscribe();
        loop {
            let now = *activity.borrow_and_update();
            let patience = match now {
                Activity {
                    in_request: true, ..
                } => Duration::MAX,
                Activity {
                    is_authenticated: true,
                    ..
                } => bounds.authenticated_idle,
                Activity { .. } => bounds.patience,
            };
            if timeout(patience, activity.changed()).await.is_err() {
                return;
            }
        }
    }
}

/// Serves until cancelled, then finishes requests in progress.
pub(super) async fn serve(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    routes: Router,
    bounds: Bounds,
    cancel: CancellationToken,
) {
    let (acceptor, stop) = (Arc::new(acceptor), cancel.clone());
    let serve_one = move |stream: TcpStream, connection| {
        let accepted = Accepted::new(connection);
        let (acceptor, routes, stop) = (Arc::clone(&acceptor), routes.clone(), stop.clone());
        async move {
            let served = serve_connection(stream, &acceptor, routes, (&accepted, bounds), stop);
            tokio::select! {
                ending = served => ending,
                () = accepted.idle_too_long(bounds) => Ending::TimedOut,
            }
        }
    };
    let limits = connections::Bounds {
        total: bounds.connections,
        per_peer: bounds.connections,
        when_full: WhenFull::CloseIdlest,
    };
    let counters = ServerCounters::unregistered();
    connections::accept(listener, limits, counters, cancel, serve_one).await;
}

async fn serve_connection(
    stream: TcpStream,
    acceptor: &TlsAcceptor,
    routes: Router,
    (accepted, bounds): (&Accepted, Bounds),
    cancel: CancellationToken,
) -> Ending {
    let stream = match acceptor.accept(stream).await {
        Ok(stream) => stream,
        Err(error) => {
            let error = chain(&error);
            tracing::debug!(error, "connection failed before its first request");
            return Ending::Broken;
        }
    };
    let routes = TowerToHyperService::new(routes);
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(accepted.clone());
        let call = routes.call(request);
        async move {
            let guard = accepted.0.connection.request();
            accepted.set_in_request(true);
            let response: Result<Response, Infallible> = call.await;
            accepted.set_in_request(false);
            drop(guard);
            response
        }
    });
    let patience = Patience {
        // `Accepted::idle_too_long` bounds connections that are not authenticated.
        head: bounds.authenticated_idle,
        write: bounds.patience,
    };
    converse(stream, service, patience, cancel.cancelled()).await
}

#[cfg(test)]
mod tests;
