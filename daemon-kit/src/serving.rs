//! Serves HTTP on one connection, within time limits. The caller limits the number of connections.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::HttpService;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Time limits for the peer of a connection. None applies while the peer waits for a response.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Until a request's headers are complete, including the time between two requests.
    pub head: Duration,
    /// Until the peer takes some bytes of a response.
    pub write: Duration,
}

/// Reasons for which [`converse`] ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The peer closed it, or the server stops.
    Done,
    /// The peer took longer than [`Patience`] allows.
    TimedOut,
    /// The connection failed, or the peer does not speak HTTP.
    Broken,
}

impl Ending {
    fn of(error: &hyper::Error) -> Self {
        let mut source = error.source();
        while let Some(inner) = source {
            let io = inner.downcast_ref::<io::Error>();
            if io.is_some_and(|io| io.kind() == io::ErrorKind::TimedOut) {
                return Self::TimedOut;
            }
            source = inner.source();
        }
        if error.is_timeout() {
            Self::TimedOut
        } else {
            Self::Broken
        }
    }
}

/// Serves the requests of one stream until it ends or `until` completes; then a request in progress
/// is finished first.
pub async fn converse<T, S, B>(
    stream: T,
    service: S,
    patience: Patience,
    until: impl Future<Output = ()>,
) -> Ending
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let stream = TokioIo::new(Listened {
        stream,
        patience: patience.write,
        stalled: None,
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(patience.head);
    let connection = builder.serve_connection(stream, service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = until => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    match ended {
        Ok(()) => Ending::Done,
        Err(error) => {
            tracing::debug!(error = crate::chain(&error), "connection ended");
            Ending::of(&error)
        }
    }
}

/// A stream with a time limit for the peer to take written bytes.
struct Listened<T> {
    stream: T,
    patience: Duration,
    /// Fires when the peer has taken nothing for too long. `None` while it takes bytes.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<T> Listened<T> {
    /// Result of a write, unless the time limit has passed.
    fn in_time<R>(
        &mut self,
        cx: &mut Context<'_>,
        wrote: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if wrote.is_ready() {
            self.stalled = None;
            return wrote;
        }
        let patience = self.patience;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(sleep(patience)));
        stalled
            .as_mut()
            .poll(cx)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Listened<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Listened<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.in_time(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.in_time(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.in_time(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.in_time(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use hyper_util::service::TowerToHyperService;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::task::JoinHandle;
    use tokio::time::{sleep, timeout};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);
    /// Longer than any time limit of the tests.
    const FOR_EVER: Duration = Duration::from_secs(3600);

    /// A connection over a pipe that holds a few bytes; `/late` responds after `FOR_EVER`.
    fn conversation() -> (DuplexStream, JoinHandle<Ending>) {
        let late = async || {
            sleep(FOR_EVER).await;
            "late"
        };
        let routes = Router::new()
            .route("/", get(async || "x".repeat(1000)))
            .route("/late", get(late));
        let (ours, theirs) = duplex(64);
        let patience = Patience {
            head: PATIENCE,
            write: PATIENCE,
        };
        let service = TowerToHyperService::new(routes);
        let never = std::future::pending();
        let ended = tokio::spawn(converse(theirs, service, patience, never));
        (ours, ended)
    }

    #[tokio::test(start_paused = true)]
    async fn unfinished_request_times_out() {
        for begun in ["", "G", "GET / HTTP/1.1\r\nhost: x\r\n"] {
            let (mut ours, ended) = conversation();
            ours.write_all(begun.as_bytes()).await.expect("taken");
            let ended = timeout(FOR_EVER, ended)
                .await
                .expect("hung up on")
                .expect("no panic");
            assert_eq!(ended, Ending::TimedOut, "{begun:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn response_that_is_not_taken_times_out() {
        let (mut ours, ended) = conversation();
        let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        ours.write_all(request).await.expect("taken");
        let ended = timeout(FOR_EVER, ended)
            .await
            .expect("hung up on")
            .expect("no panic");
        assert_eq!(ended, Ending::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_response_and_slow_reader_are_served() {
        let (mut ours, _ended) = conversation();
        let request = b"GET /late HTTP/1.1\r\nhost: x\r\n\r\n";
        ours.write_all(request).await.expect("taken");
        let request = b"GET / HTTP/1.0\r\n\r\n";
        let mut answers = String::new();
        while !answers.ends_with("late") {
            answers.push(char::from(ours.read_u8().await.expect("an answer")));
        }
        ours.write_all(request).await.expect("taken");
        let mut part = [0; 64];
        let mut taken = 0;
        loop {
            sleep(PATIENCE / 2).await;
            match ours.read(&mut part).await.expect("an answer") {
                0 => break,
                bytes => taken += bytes,
            }
        }
        assert!(taken > 1000, "{taken}");
    }
}
