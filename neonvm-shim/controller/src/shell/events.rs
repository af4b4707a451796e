//! Writes events of VMs, beside the workers and never in their way.

use std::sync::Arc;

use daemon_kit::chain;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::api::KubeApi;
use crate::core::announce::Announcement;

/// Events waiting to be written; more are dropped, as an event is a comfort and not a duty.
const WAITING_LIMIT: usize = 256;

/// One event to write.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) namespace: String,
    pub(super) what: Announcement,
}

/// The way to the writer.
#[derive(Debug, Clone)]
pub(super) struct EventSink {
    letters: mpsc::Sender<Letter>,
}

impl EventSink {
    /// Hands an event over, or drops it when too many wait.
    pub(super) fn send(&self, letter: Letter) {
        if self.letters.try_send(letter).is_err() {
            tracing::debug!("too many events wait, one is dropped");
        }
    }
}

/// A sink, and the task that empties it until `cancel`.
pub(super) fn start(
    api: Arc<KubeApi>,
    cancel: CancellationToken,
) -> (EventSink, impl Future<Output = ()> + Send) {
    let (letters, mut waiting) = mpsc::channel(WAITING_LIMIT);
    let writer = async move {
        loop {
            let letter: Letter = tokio::select! {
                () = cancel.cancelled() => return,
                letter = waiting.recv() => match letter {
                    Some(letter) => letter,
                    None => return,
                },
            };
            let done = match letter.what {
                Announcement::New(event) => api.write_event(&letter.namespace, &event).await,
                Announcement::Again { name, patch } => {
                    again(&api, &letter.namespace, &name, patch).await
                }
            };
            if let Err(error) = done {
                tracing::debug!(error = chain(&error), "an event could not be written");
            }
        }
    };
    (EventSink { letters }, writer)
}

async fn again(
    api: &KubeApi,
    namespace: &str,
    name: &str,
    patch: Value,
) -> Result<(), super::api::ApiError> {
    api.count_event(namespace, name, patch).await
}
