//! Connections to the runner's port at its pod's address, within bounds: how many there are
//! ([`crate::core::seats`]), and for how long their other ends are waited for. Nobody who waits for
//! an answer is hurried.

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

/// Pause after accepting failed, for instance for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bounds of the port.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Connections at once.
    pub(super) connections: usize,
    /// For somebody's handshake and the head of its request, or for that of its next one; for a
    /// body; and for it to take an answer.
    pub(super) patience: Duration,
    /// For the next request of one who has shown the token.
    pub(super) patience_with_known: Duration,
}

impl Bounds {
    /// docs/compatibility/neonvm.md §3.6. A controller holds two connections, and a guest waits for
    /// what is ordered by one: making it anew takes a handshake. The rest is for controllers that
    /// take over or move guests, for kubelets and for Prometheus.
    pub(super) const DEPLOYED: Self = Self {
        connections: 64,
        patience: Duration::from_secs(5),
        patience_with_known: Duration::from_secs(600),
    };
}

/// Whom there are.
struct Hall(Mutex<Present>);

struct Present {
    seats: Seats,
    /// Cancelled for whoever has to go.
    asked_to_go: BTreeMap<Seat, CancellationToken>,
}

impl Hall {
    fn present(&self) -> MutexGuard<'_, Present> {
        // Only whole values are stored, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` when there is no place.
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

/// One connection, as its requests know it: among their extensions.
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
    /// It has shown the token.
    is_known: bool,
    /// Its request is being carried out.
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
    /// It has shown the token.
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

    /// Ends when it has been waited for too long, or has to go.
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

/// Serves until cancelled; requests that are open then are answered yet.
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
    // What is told is small and must not wait for the acknowledgement of what was told before.
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
        // Who is not known is waited for by `Visit::ends`.
        head: bounds.patience_with_known,
        write: bounds.patience,
    };
    converse(guest, service, patience, cancel.cancelled()).await;
}

#[cfg(test)]
mod tests;
