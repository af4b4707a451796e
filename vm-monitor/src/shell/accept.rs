//! Accepts the connections of the monitor's ports.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use transport::{Listener, Stream};

/// Pause after a failed accept, in which descriptors or memory may be released.
const PAUSE: Duration = Duration::from_millis(100);

/// The next connection. `None` once cancelled.
pub(super) async fn next(listener: &Listener, cancel: &CancellationToken) -> Option<Stream> {
    loop {
        let accepted = tokio::select! {
            () = cancel.cancelled() => return None,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(stream) => return Some(stream),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// The next connection while `paused` is false. `None` once cancelled.
pub(super) async fn next_unless(
    paused: &mut watch::Receiver<bool>,
    listener: &Listener,
    cancel: &CancellationToken,
) -> Option<Stream> {
    loop {
        tokio::select! {
            () = cancel.cancelled() => return None,
            resumed = paused.wait_for(|paused| !paused) => drop(resumed.ok()?),
        }
        tokio::select! {
            // A pause comes before a connection that is there already.
            biased;
            changed = paused.changed() => changed.ok()?,
            accepted = next(listener, cancel) => return accepted,
        }
    }
}
