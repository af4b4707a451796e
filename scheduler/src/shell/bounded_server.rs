//! Accept loop with bounds, for the permit server and the extender.
//!
//! Bounds: the time for headers and for reading a response, the number of open connections, and the
//! number per address ([`daemon_kit::connections`]). A connection that is too slow is closed. At
//! the limit, the connection that has been idle longest is closed to admit the new one, of the same
//! address if that address is at its limit.

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use daemon_kit::connections::{self, Bounds, Connection, ServerCounters, WhenFull};
use daemon_kit::descriptors;
use daemon_kit::serving::{Ending, Patience, converse};
use hyper::body::{Body, Incoming};
use hyper::service::{HttpService, service_fn};
use hyper::{Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Longer than the 15 s in which an agent repeats a request.
const PATIENCE: Patience = Patience {
    head: Duration::from_secs(20),
    write: Duration::from_secs(20),
};
/// Most open connections, if an eighth of the process's descriptors is enough for them. An agent
/// keeps one, so this is enough for a thousand nodes.
pub const MAX_CONNECTIONS: usize = 1024;
/// Most open connections of one address, so that one peer cannot take all.
pub const MAX_CONNECTIONS_OF_ONE: usize = MAX_CONNECTIONS / 4;
/// Connections may take one in this many of the process's descriptors.
const DESCRIPTOR_PART: u64 = 8;

/// Serves the requests of one connection.
pub(super) trait ConnectionHandler: Clone + Send + 'static {
    /// Serves requests until the connection ends or `cancel`. An open request still gets its
    /// response.
    fn converse(
        self,
        stream: TcpStream,
        connection: Connection,
        cancel: CancellationToken,
    ) -> impl Future<Output = Ending> + Send;
}

/// An HTTP service without TLS.
#[derive(Clone)]
pub(super) struct PlainHttp<S>(pub(super) S);

impl<S, B> ConnectionHandler for PlainHttp<S>
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

/// Serves until `cancel`, then waits up to five seconds for open requests.
pub(super) async fn serve(
    listener: TcpListener,
    served: impl ConnectionHandler,
    counters: ServerCounters,
    cancel: CancellationToken,
) {
    let total = descriptors::share(MAX_CONNECTIONS, DESCRIPTOR_PART);
    let bounds = Bounds {
        total,
        per_peer: (total / 4).max(1),
        when_full: WhenFull::CloseIdlest,
    };
    let stop = cancel.clone();
    let serve_one =
        move |stream, connection| served.clone().converse(stream, connection, stop.clone());
    connections::accept(listener, bounds, counters, cancel, serve_one).await;
}

/// Serves requests until the stream ends or `until` completes. An open request still gets its
/// response.
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
