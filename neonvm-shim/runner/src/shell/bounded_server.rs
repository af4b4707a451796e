//! HTTP server on the pod's address. It bounds the number of connections
//! ([`crate::core::connection_limiter`]) and how long each may be idle. A request in progress is
//! never cut off.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use daemon_kit::chain;
use daemon_kit::serving::{Patience, converse};
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::tls_acceptor::TlsAcceptor;
use crate::core::connection_limiter::{ConnectionLimiter, Slot};

/// Pause after a failed accept, for instance for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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

/// Open connections, shared by the accept loop and the connection tasks.
struct OpenConnections(Mutex<Slots>);

struct Slots {
    limiter: ConnectionLimiter,
    /// Cancelled to close the connection of a slot.
    closing: BTreeMap<Slot, CancellationToken>,
}

impl OpenConnections {
    fn slots(&self) -> MutexGuard<'_, Slots> {
        // Only whole values are stored, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection; `None` if all slots are busy.
    fn admit_connection(self: &Arc<Self>) -> Option<Accepted> {
        let mut slots = self.slots();
        let admission = slots.limiter.admit()?;
        if let Some(evicted) = admission.evicted
            && let Some(close) = slots.closing.remove(&evicted)
        {
            close.cancel();
        }
        let close = CancellationToken::new();
        slots.closing.insert(admission.slot, close.clone());
        Some(Accepted(Arc::new(Connection {
            open: Arc::clone(self),
            slot: admission.slot,
            close,
            activity: watch::channel(Activity::default()).0,
        })))
    }
}

/// An accepted connection, among the extensions of its requests.
#[derive(Clone)]
pub(super) struct Accepted(Arc<Connection>);

struct Connection {
    open: Arc<OpenConnections>,
    slot: Slot,
    close: CancellationToken,
    activity: watch::Sender<Activity>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Activity {
    /// The connection has shown the token.
    is_authenticated: bool,
    /// A request is in progress.
    in_request: bool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut slots = self.open.slots();
        slots.limiter.release(self.slot);
        slots.closing.remove(&self.slot);
    }
}

impl Accepted {
    /// Marks the connection as authenticated.
    pub(super) fn authenticate(&self) {
        let activity = &self.0.activity;
        activity.send_modify(|activity| activity.is_authenticated = true);
    }

    fn begin_request(&self) {
        self.0.open.slots().limiter.begin_request(self.0.slot);
        let activity = &self.0.activity;
        activity.send_modify(|activity| activity.in_request = true);
    }

    fn end_request(&self) {
        let activity = &self.0.activity;
        activity.send_modify(|activity| activity.in_request = false);
        if !activity.borrow().is_authenticated {
            self.0.open.slots().limiter.end_request(self.0.slot);
        }
    }

    /// Returns when the connection is evicted or idle for too long.
    async fn closed(&self, bounds: Bounds) {
        let mut activity = self.0.activity.subscribe();
        let idle_too_long = async {
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
        };
        tokio::select! {
            () = self.0.close.cancelled() => {}
            () = idle_too_long => {}
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
    let acceptor = Arc::new(acceptor);
    let open = Arc::new(OpenConnections(Mutex::new(Slots {
        limiter: ConnectionLimiter::new(bounds.connections),
        closing: BTreeMap::new(),
    })));
    loop {
        let accepted = tokio::select! {
            () = cancel.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, from)) => {
                let Some(accepted) = open.admit_connection() else {
                    tracing::debug!(%from, "connection refused: all slots are busy");
                    continue;
                };
                let (acceptor, routes, cancel) =
                    (Arc::clone(&acceptor), routes.clone(), cancel.clone());
                tokio::spawn(async move {
                    let served = serve_connection(
                        stream,
                        from,
                        &acceptor,
                        routes,
                        (&accepted, bounds),
                        cancel,
                    );
                    tokio::select! {
                        () = served => {}
                        () = accepted.closed(bounds) => tracing::debug!(%from, "connection closed by its limits"),
                    }
                });
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "connection not accepted");
                let _ = timeout(ACCEPT_PAUSE, cancel.cancelled()).await;
            }
        }
    }
}

async fn serve_connection(
    stream: TcpStream,
    from: SocketAddr,
    acceptor: &TlsAcceptor,
    routes: Router,
    (accepted, bounds): (&Accepted, Bounds),
    cancel: CancellationToken,
) {
    // Responses are small. With Nagle's algorithm each would wait for an acknowledgement.
    let _ = stream.set_nodelay(true);
    let stream = match acceptor.accept(stream).await {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%from, error = chain(&error), "connection failed before its first request");
            return;
        }
    };
    let routes = TowerToHyperService::new(routes);
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(accepted.clone());
        let call = routes.call(request);
        async move {
            accepted.begin_request();
            let response: Result<Response, Infallible> = call.await;
            accepted.end_request();
            response
        }
    });
    let patience = Patience {
        // `Accepted::closed` bounds connections that are not authenticated.
        head: bounds.authenticated_idle,
        write: bounds.patience,
    };
    converse(stream, service, patience, cancel.cancelled()).await;
}

#[cfg(test)]
mod tests;
