//! Accepts the connections of the monitor's ports.

use std::time::Duration;

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
