//! A stream to a monitor that is read no faster than [`BYTES`] allows.
//!
//! It is below TLS and WebSocket, because a message may have any number of empty fragments. A bound
//! on whole messages does not count them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use daemon_kit::clock::Clock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep};
use transport::Stream;

use crate::core::conversation::pace::{BYTES, Bucket, PAUSE};

/// A stream with a limited read rate.
pub(super) struct Paced {
    stream: Stream,
    clock: Clock,
    bucket: Bucket,
    /// End of the pause, while reading pauses.
    pause: Option<Pin<Box<Sleep>>>,
    /// Notified when a pause begins.
    paused: Arc<Notify>,
}

impl Paced {
    pub(super) fn new(stream: Stream, clock: Clock, paused: Arc<Notify>) -> Self {
        Self {
            stream,
            clock,
            bucket: Bucket::new(clock.now(), BYTES),
            pause: None,
            paused,
        }
    }
}

impl AsyncRead for Paced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let read = u64::try_from(buf.filled().len() - before).unwrap_or(u64::MAX);
        let now = self.clock.now();
        if self.bucket.take(now, read) {
            self.pause = Some(Box::pin(sleep(PAUSE.to_duration())));
            self.paused.notify_one();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Paced {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    // TLS sends an alert behind other records in one write, and has no second.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::{Duration, timeout};

    use super::*;

    #[tokio::test]
    async fn bytes_beyond_the_burst_wait_in_the_connection() {
        let (ours, mut theirs) = duplex(1 << 10);
        let sender = tokio::spawn(async move {
            let mut sent = 0;
            while theirs.write_all(&[0; 1 << 10]).await.is_ok() {
                sent += 1 << 10;
            }
            sent
        });
        let paused = Arc::new(Notify::new());
        let mut paced = Paced::new(Box::new(ours), Clock::new(), Arc::clone(&paused));
        let mut read = 0;
        let mut buf = [0; 4096];
        let half = Duration::from_millis(500);
        let _ = timeout(half, async {
            loop {
                read += u64::try_from(paced.read(&mut buf).await.expect("reads")).expect("fits");
            }
        })
        .await;
        assert!(
            (BYTES.burst..BYTES.burst + 2 * BYTES.per_second).contains(&read),
            "{read}"
        );
        timeout(half, paused.notified()).await.expect("a pause");
        drop(paced);
        let sent: u64 = sender.await.expect("no panic");
        assert!(
            sent <= read + (2 << 10),
            "{sent} were sent of which {read} were read"
        );
    }
}
