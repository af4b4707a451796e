//! Lists and watches one kind of objects, with metrics and a pause after each failure.

use std::time::Duration;

use futures::StreamExt;
use kube::api::{Api, DynamicObject};
use kube::runtime::watcher::{self, Config, Event, watcher};
use rand::Rng;
use tokio_util::sync::CancellationToken;

use super::metrics::{AgentMetrics, Watcher};

/// Pause after a failed list or watch, milliseconds.
const RETRY_MS: std::ops::Range<u64> = 500..1000;

/// Lists and watches until cancelled. Passes every event and every failure to `take`.
pub(super) async fn watch_objects(
    (api, config): (Api<DynamicObject>, Config),
    what: Watcher,
    metrics: &AgentMetrics,
    cancel: &CancellationToken,
    mut take: impl FnMut(Result<Event<DynamicObject>, watcher::Error>),
) {
    let mut events = std::pin::pin!(watcher(api, config));
    metrics.watch_alive(what, true);
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = cancel.cancelled() => break,
        };
        match event {
            None => break,
            Some(Ok(event)) => take(Ok(event)),
            Some(Err(error)) => {
                metrics.watch_error(what, error_source(&error));
                take(Err(error));
                tokio::select! {
                    () = pause() => {}
                    () = cancel.cancelled() => break,
                }
            }
        }
    }
    metrics.watch_alive(what, false);
}

/// Waits for a random time before the next attempt.
pub(super) async fn pause() {
    let pause = Duration::from_millis(rand::rng().random_range(RETRY_MS));
    tokio::time::sleep(pause).await;
}

/// The `source` label of a watch error.
pub(super) fn error_source(error: &watcher::Error) -> &'static str {
    match error {
        watcher::Error::InitialListFailed(_) | watcher::Error::NoResourceVersion => "List",
        watcher::Error::WatchStartFailed(_) => "Watch",
        watcher::Error::WatchError(_) | watcher::Error::WatchFailed(_) => "Watch.Event",
    }
}
