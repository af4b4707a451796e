//! Writes Kubernetes events of VMs in a task of its own, so that no driver waits for it.

use std::sync::Arc;

use daemon_kit::chain;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::api::KubeApi;
use crate::core::announce::Announcement;

/// Most events that may wait to be written. Further ones are dropped: no decision needs them.
const WAITING_LIMIT: usize = 256;

/// A Kubernetes event to be written into `namespace`.
#[derive(Debug)]
pub(super) struct EventRequest {
    pub(super) namespace: String,
    pub(super) what: Announcement,
}

/// Queue of the task that writes events.
#[derive(Debug, Clone)]
pub(super) struct EventSink {
    requests: mpsc::Sender<EventRequest>,
}

impl EventSink {
    /// Queues an event, or drops it if the queue is full.
    pub(super) fn send(&self, request: EventRequest) {
        if self.requests.try_send(request).is_err() {
            tracing::debug!("event dropped: queue is full");
        }
    }
}

/// Returns a sink, and the future that writes its events until `cancel`.
pub(super) fn start(
    api: Arc<KubeApi>,
    cancel: CancellationToken,
) -> (EventSink, impl Future<Output = ()> + Send) {
    let (requests, mut waiting) = mpsc::channel(WAITING_LIMIT);
    let writer = async move {
        loop {
            let request: EventRequest = tokio::select! {
                () = cancel.cancelled() => return,
                request = waiting.recv() => match request {
                    Some(request) => request,
                    None => return,
                },
            };
            let done = match request.what {
                Announcement::New(event) => api.write_event(&request.namespace, &event).await,
                Announcement::Again { name, patch } => {
                    again(&api, &request.namespace, &name, patch).await
                }
            };
            if let Err(error) = done {
                tracing::debug!(error = chain(&error), "failed to write an event");
            }
        }
    };
    (EventSink { requests }, writer)
}

async fn again(
    api: &KubeApi,
    namespace: &str,
    name: &str,
    patch: Value,
) -> Result<(), super::api::ApiError> {
    api.count_event(namespace, name, patch).await
}
