//! Accepting connections within bounds, for whatever is served on them.
//!
//! Bounds: a time to send headers and to take answers, a number of open connections, and of each address a part of them. A connection that is
//! too slow is closed; one too many is closed at once, and whoever made it comes back.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::service::HttpService;
use hyper::{Request, Response};
use telemetry::serving::{Patience, converse};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::metrics::Metrics;

/// Above an agent's period of 15 s.
const PATIENCE: Patience = Patience {
    head: Duration::from_secs(20),
    write: Duration::from_secs(20),
};
/// Open connections. Agents keep one each, so this is a cluster of a thousand nodes.
pub const MAX_CONNECTIONS: usize = 1024;
/// Open connections of one address, so that a single peer cannot take all places.
pub const MAX_CONNECTIONS_OF_ONE: usize = MAX_CONNECTIONS / 4;
/// Pause after accepting failed, for instance for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for open requests to end when the server stops.
const DRAIN: Duration = Duration::from_secs(5);

/// How many connections each address has open.
#[derive(Clone, Default)]
struct Guests(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

/// One open connection of an address; given back when dropped.
struct Seat(Guests, IpAddr);

impl Guests {
    /// Nothing when the address has its part already.
    fn seat(&self, address: IpAddr) -> Option<Seat> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if *count >= MAX_CONNECTIONS_OF_ONE {
            return None;
        }
        *count += 1;
        Some(Seat(self.clone(), address))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut open = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.1);
            }
        }
    }
}

/// What can be served on a connection.
pub(super) trait Serves: Clone + Send + 'static {
    /// Answers the requests of one connection until it ends or `cancel`; then the one that is open is answered yet.
    fn converse(
        self,
        stream: TcpStream,
        cancel: CancellationToken,
    ) -> impl Future<Output = ()> + Send;
}

/// Any HTTP service, in plain text.
#[derive(Clone)]
pub(super) struct Plain<S>(pub(super) S);

impl<S, B> Serves for Plain<S>
where
    S: hyper::service::Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    async fn converse(self, stream: TcpStream, cancel: CancellationToken) {
        serve_http(stream, self.0, cancel.cancelled()).await;
    }
}

/// Serves until `cancel`, then lets open requests end for up to five seconds.
pub(super) async fn serve(
    listener: TcpListener,
    served: impl Serves,
    metrics: Metrics,
    cancel: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let (tracker, guests) = (TaskTracker::new(), Guests::default());
    loop {
        let accepted = tokio::select! {
            () = cancel.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let place = Arc::clone(&places).try_acquire_owned().ok();
                let Some(place) = place.zip(guests.seat(peer.ip())) else {
                    metrics.connection_refused();
                    continue;
                };
                let (served, cancel) = (served.clone(), cancel.clone());
                tracker.spawn(async move {
                    // Answers are small and awaited.
                    let _set = stream.set_nodelay(true);
                    served.converse(stream, cancel).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(
                    error = telemetry::chain(&error),
                    "accepting a connection failed"
                );
                tokio::select! {
                    () = cancel.cancelled() => break,
                    () = pause() => {}
                }
            }
        }
    }
    // Whoever connects from now on is told at once that nobody listens.
    drop(listener);
    tracker.close();
    if tokio::time::timeout(DRAIN, tracker.wait()).await.is_err() {
        tracing::warn!("connections still open are closed");
    }
}

async fn pause() {
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// Answers the requests of one stream until it ends or `until`; then the one that is open is answered yet.
pub(super) async fn serve_http<T, S, B>(stream: T, service: S, until: impl Future<Output = ()>)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    converse(stream, service, PATIENCE, until).await;
}
