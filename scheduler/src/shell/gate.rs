//! Accepting connections within bounds, for whatever is served on them.
//!
//! Bounds: a time to send headers and to take answers, a number of open connections, and of each
//! address a part of them ([`daemon_kit::connections`]). A connection that is too slow is closed.
//! One too many takes the place of the one that has been idle longest, of the same address where
//! that address has its part.

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use daemon_kit::connections::{self, Bounds, Connection, ServerCounters};
use daemon_kit::descriptors;
use daemon_kit::serving::{Ending, Patience, converse};
use hyper::body::{Body, Incoming};
use hyper::service::{HttpService, service_fn};
use hyper::{Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Above an agent's period of 15 s.
const PATIENCE: Patience = Patience {
    head: Duration::from_secs(20),
    write: Duration::from_secs(20),
};
/// Open connections, where an eighth of the descriptors is enough for them. Agents keep one each,
/// so this is a cluster of a thousand nodes.
pub const MAX_CONNECTIONS: usize = 1024;
/// Open connections of one address, so that a single peer cannot take all places.
pub const MAX_CONNECTIONS_OF_ONE: usize = MAX_CONNECTIONS / 4;
/// The part of the process's descriptors that connections may take: one of this many.
const DESCRIPTOR_PART: u64 = 8;

/// What can be served on a connection.
pub(super) trait Serves: Clone + Send + 'static {
    /// Answers the requests of one connection until it ends or `cancel`; then the one that is open
    /// is answered yet.
    fn converse(
        self,
        stream: TcpStream,
        connection: Connection,
        cancel: CancellationToken,
    ) -> impl Future<Output = Ending> + Send;
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
    async fn converse(
        self,
        stream: TcpStream,
        connection: Connection,
        cancel: CancellationToken,
    ) -> Ending {
        let service = self.0;
        let counted = service_fn(move |request| {
            let guard = connection.request();
            let answer = service.call(request);
            async move {
                let answer = answer.await;
                drop(guard);
                answer
            }
        });
        serve_http(stream, counted, cancel.cancelled()).await
    }
}

/// Serves until `cancel`, then lets open requests end for up to five seconds.
pub(super) async fn serve(
    listener: TcpListener,
    served: impl Serves,
    counters: ServerCounters,
    cancel: CancellationToken,
) {
    let total = descriptors::share(MAX_CONNECTIONS, DESCRIPTOR_PART);
    let bounds = Bounds {
        total,
        per_peer: (total / 4).max(1),
    };
    let stop = cancel.clone();
    let serve_one =
        move |stream, connection| served.clone().converse(stream, connection, stop.clone());
    connections::accept(listener, bounds, counters, cancel, serve_one).await;
}

/// Answers the requests of one stream until it ends or `until`; then the one that is open is
/// answered yet.
pub(super) async fn serve_http<T, S, B>(
    stream: T,
    service: S,
    until: impl Future<Output = ()>,
) -> Ending
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    converse(stream, service, PATIENCE, until).await
}
