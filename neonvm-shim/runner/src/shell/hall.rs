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

use super::door::Door;
use crate::core::seats::{Seat, Seats};

/// Pause after a failed accept, for instance for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits of the port.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Most connections at once.
    pub(super) connections: usize,
    /// Timeout of a handshake, of a request's head, of a body, of writing a response, and of an
    /// idle connection.
    pub(super) patience: Duration,
    /// Idle timeout of an authenticated connection.
    pub(super) patience_with_known: Duration,
}

impl Bounds {
    /// docs/compatibility/neonvm.md §3.6. A controller keeps two connections, as a new one costs the
    /// guest a handshake before its order. The rest is for controllers that take over or migrate
    /// guests, for kubelets and for Prometheus.
    pub(super) const DEPLOYED: Self = Self {
        connections: 64,
        patience: Duration::from_secs(5),
        patience_with_known: Duration::from_secs(600),
    };
}

/// Open connections, shared by the accept loop and the connection tasks.
struct Hall(Mutex<Present>);

struct Present {
    seats: Seats,
    /// Cancelled to close the connection of a slot.
    asked_to_go: BTreeMap<Seat, CancellationToken>,
}

impl Hall {
    fn present(&self) -> MutexGuard<'_, Present> {
        // Only whole values are stored, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection; `None` if all slots are busy.
    fn receive(self: &Arc<Self>) -> Option<Visit> {
        let mut present = self.present();
        let seated = present.seats.arrives()?;
        if let Some(leaving) = seated.instead_of
            && let Some(asked) = present.asked_to_go.remove(&leaving)
        {
            asked.cancel();
        }
        let must_go = CancellationToken::new();
        present.asked_to_go.insert(seated.seat, must_go.clone());
        Some(Visit(Arc::new(Stay {
            hall: Arc::clone(self),
            seat: seated.seat,
            must_go,
            standing: watch::channel(Standing::default()).0,
        })))
    }
}

/// An accepted connection, among the extensions of its requests.
#[derive(Clone)]
pub(super) struct Visit(Arc<Stay>);

struct Stay {
    hall: Arc<Hall>,
    seat: Seat,
    must_go: CancellationToken,
    standing: watch::Sender<Standing>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Standing {
    /// The connection has shown the token.
    is_known: bool,
    /// A request is in progress.
    is_waiting: bool,
}

impl Drop for Stay {
    fn drop(&mut self) {
        let mut present = self.hall.present();
        present.seats.leaves(self.seat);
        present.asked_to_go.remove(&self.seat);
    }
}

impl Visit {
    /// Marks the connection as authenticated.
    pub(super) fn is_known(&self) {
        let standing = &self.0.standing;
        standing.send_modify(|standing| standing.is_known = true);
    }

    fn asks(&self) {
        self.0.hall.present().seats.asks(self.0.seat);
        let standing = &self.0.standing;
        standing.send_modify(|standing| standing.is_waiting = true);
    }

    fn is_answered(&self) {
        let standing = &self.0.standing;
        standing.send_modify(|standing| standing.is_waiting = false);
        if !standing.borrow().is_known {
            self.0.hall.present().seats.is_answered(self.0.seat);
        }
    }

    /// Returns when the connection is evicted or idle for too long.
    async fn ends(&self, bounds: Bounds) {
        let mut standing = self.0.standing.subscribe();
        let overstays = async {
            loop {
                let now = *standing.borrow_and_update();
                let patience = match now {
                    Standing {
                        is_waiting: true, ..
                    } => Duration::MAX,
                    Standing { is_known: true, .. } => bounds.patience_with_known,
                    Standing { .. } => bounds.patience,
                };
                if timeout(patience, standing.changed()).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = self.0.must_go.cancelled() => {}
            () = overstays => {}
        }
    }
}

/// Serves until cancelled, then finishes requests in progress.
pub(super) async fn serve(
    listener: TcpListener,
    door: Door,
    routes: Router,
    bounds: Bounds,
    cancel: CancellationToken,
) {
    let door = Arc::new(door);
    let hall = Arc::new(Hall(Mutex::new(Present {
        seats: Seats::new(bounds.connections),
        asked_to_go: BTreeMap::new(),
    })));
    loop {
        let accepted = tokio::select! {
            () = cancel.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, from)) => {
                let Some(visit) = hall.receive() else {
                    tracing::debug!(%from, "no place for a connection");
                    continue;
                };
                let (door, routes, cancel) = (Arc::clone(&door), routes.clone(), cancel.clone());
                tokio::spawn(async move {
                    let talk = talk(stream, from, &door, routes, (&visit, bounds), cancel);
                    tokio::select! {
                        () = talk => {}
                        () = visit.ends(bounds) => tracing::debug!(%from, "hung up on"),
                    }
                });
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "a connection was not accepted");
                let _ = timeout(ACCEPT_PAUSE, cancel.cancelled()).await;
            }
        }
    }
}

async fn talk(
    stream: TcpStream,
    from: SocketAddr,
    door: &Door,
    routes: Router,
    (visit, bounds): (&Visit, Bounds),
    cancel: CancellationToken,
) {
    // Responses are small. With Nagle's algorithm each would wait for an acknowledgement.
    let _ = stream.set_nodelay(true);
    let guest = match door.enter(stream).await {
        Ok(guest) => guest,
        Err(error) => {
            tracing::debug!(%from, error = chain(&error), "a connection came to nothing");
            return;
        }
    };
    let routes = TowerToHyperService::new(routes);
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(visit.clone());
        let answer = routes.call(request);
        async move {
            visit.asks();
            let answer: Result<Response, Infallible> = answer.await;
            visit.is_answered();
            answer
        }
    });
    let patience = Patience {
        // `Accepted::closed` bounds connections that are not authenticated.
        head: bounds.patience_with_known,
        write: bounds.patience,
    };
    converse(guest, service, patience, cancel.cancelled()).await;
}

#[cfg(test)]
mod tests;
