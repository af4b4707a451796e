//! The accept loop of a TCP server with bounds: connections in all, connections of one peer
//! address, and open files. [`http::serve`] adds the bounds in time for a server of plain HTTP.
//!
//! ```text
//! accept ─▶ Table::admit ─▶ a task per connection ─▶ ended by itself, timed out, or closed for another
//!   └─ no descriptor left ─▶ the idlest connection is closed
//! ```
//! A new connection replaces the one that has been idle longest ([`table`]), so a peer with idle
//! connections cannot exclude others. Every connection closed by a bound is counted
//! ([`ConnectionCounters`]).

pub mod http;
mod metrics;
mod table;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::metrics::{ConnectionCounters, Reason, ServerCounters};
use self::table::{Admission, Id, Table};
use crate::serving::Ending;

/// Pause after a failed accept if no connection could be closed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Pause after a failed accept, in which a closed connection releases its descriptor.
const CLOSE_PAUSE: Duration = Duration::from_millis(1);
/// Time that open requests have to end when the server stops.
const DRAIN: Duration = Duration::from_secs(5);

/// Limits of a server's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Most connections of the server.
    pub total: usize,
    /// Most connections of one peer address.
    pub per_peer: usize,
    /// What happens to a new connection beyond `total`.
    pub when_full: WhenFull,
}

/// What happens to a new connection when the server has its most connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// It replaces the one that has been idle longest. If none is idle, it is refused.
    CloseIdlest,
    /// It waits in the kernel's queue until another one ends.
    Wait,
}

impl Bounds {
    /// Limits of a port that serves small pages to few readers: metrics, health, state.
    #[must_use]
    pub fn pages() -> Self {
        Self {
            total: crate::descriptors::share(64, 32),
            per_peer: crate::descriptors::share(32, 64),
            when_full: WhenFull::CloseIdlest,
        }
    }
}

/// Open connections of a server, shared by its accept loop and its connection tasks.
#[derive(Debug)]
struct OpenConnections {
    inner: Mutex<Inner>,
    counters: ServerCounters,
    /// Free places of a server that waits when it is full.
    free: Option<Arc<Semaphore>>,
}

#[derive(Debug)]
struct Inner {
    table: Table,
    /// Cancelled to close a connection.
    closing: BTreeMap<Id, CancellationToken>,
}

impl OpenConnections {
    fn new(bounds: Bounds, counters: ServerCounters) -> Self {
        let waits = bounds.when_full == WhenFull::Wait;
        Self {
            inner: Mutex::new(Inner {
                table: Table::new(bounds),
                closing: BTreeMap::new(),
            }),
            counters,
            free: waits.then(|| Arc::new(Semaphore::new(bounds.total))),
        }
    }

    /// Returns when another connection may be accepted.
    async fn has_room(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(self.free.as_ref()?).acquire_owned().await.ok()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Each step leaves a complete table, so a panic elsewhere leaves nothing half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(
        self: &Arc<Self>,
        peer: SocketAddr,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Option<Connection> {
        let mut inner = self.inner();
        match inner.table.admit(peer.ip().to_canonical()) {
            Admission::Refused(reason) => {
                self.counters.closed(reason);
                None
            }
            Admission::Admitted { id, instead_of } => {
                if let Some((closed, reason)) = instead_of {
                    inner.close(closed);
                    self.counters.closed(reason);
                }
                let closing = CancellationToken::new();
                inner.closing.insert(id, closing.clone());
                Some(Connection(Arc::new(OpenConnection {
                    open: Arc::clone(self),
                    id,
                    closing,
                    _permit: permit,
                })))
            }
        }
    }

    /// Closes an idle connection after a failed accept.
    async fn accept_failed(&self, error: &std::io::Error) {
        let closed = {
            let mut inner = self.inner();
            let closed = inner.table.remove_idlest();
            if let Some(id) = closed {
                inner.close(id);
            }
            closed
        };
        if closed.is_some() {
            self.counters.closed(Reason::Descriptors);
            tokio::time::sleep(CLOSE_PAUSE).await;
            return;
        }
        let error = crate::chain(error);
        tracing::warn!(error, "failed to accept a connection");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }

    fn close_all(&self) {
        for closing in self.inner().closing.values() {
            closing.cancel();
        }
    }
}

impl Inner {
    fn close(&mut self, id: Id) {
        if let Some(closing) = self.closing.remove(&id) {
            closing.cancel();
        }
    }
}

/// One open connection, for its task and its requests.
#[derive(Debug, Clone)]
pub struct Connection(Arc<OpenConnection>);

#[derive(Debug)]
struct OpenConnection {
    open: Arc<OpenConnections>,
    id: Id,
    closing: CancellationToken,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut inner = self.open.inner();
        inner.table.remove(self.id);
        inner.closing.remove(&self.id);
    }
}

impl Connection {
    /// Marks a request as in progress while the guard lives. In that time the connection is not
    /// closed for another one.
    #[must_use]
    pub fn request(&self) -> RequestGuard {
        self.0.open.inner().table.begin(self.0.id);
        RequestGuard(self.clone())
    }

    /// Marks the peer as authenticated. Its connection is closed for another one only if no other
    /// idle connection exists.
    pub fn trust(&self) {
        self.0.open.inner().table.trust(self.0.id);
    }
}

/// Guard of a request in progress. See [`Connection::request`].
#[derive(Debug)]
pub struct RequestGuard(Connection);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let place = &self.0.0;
        place.open.inner().table.end(place.id);
    }
}

/// Accepts connections until `cancel`, then gives open requests five seconds to end. `converse`
/// serves one connection; it is dropped when the connection must close.
pub async fn accept<F, Fut>(
    listener: TcpListener,
    bounds: Bounds,
    counters: ServerCounters,
    cancel: CancellationToken,
    converse: F,
) where
    F: Fn(TcpStream, Connection) -> Fut,
    Fut: Future<Output = Ending> + Send + 'static,
{
    let open = Arc::new(OpenConnections::new(bounds, counters));
    let tasks = TaskTracker::new();
    loop {
        let next = async { (open.has_room().await, listener.accept().await) };
        let (permit, accepted) = tokio::select! {
            () = cancel.cancelled() => break,
            next = next => next,
        };
        match accepted {
            Ok((stream, peer)) => {
                let Some(connection) = open.admit(peer, permit) else {
                    continue;
                };
                // Responses are small and awaited. An error only makes them slower.
                let _set = stream.set_nodelay(true);
                let serving = converse(stream, connection.clone());
                tasks.spawn(hold(connection, serving));
            }
            Err(error) => open.accept_failed(&error).await,
        }
    }
    // New clients then get a refusal at once.
    drop(listener);
    tasks.close();
    if tokio::time::timeout(DRAIN, tasks.wait()).await.is_err() {
        tracing::warn!(
            open = tasks.len(),
            "open connections are closed at the stop"
        );
        open.close_all();
        tasks.wait().await;
    }
}

async fn hold(connection: Connection, serving: impl Future<Output = Ending>) {
    let place = &connection.0;
    tokio::select! {
        ending = serving => if ending == Ending::TimedOut {
            place.open.counters.closed(Reason::Timeout);
        },
        () = place.closing.cancelled() => {}
    }
}

#[cfg(test)]
mod tests;
