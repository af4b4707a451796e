//! Watches of the API server, and their end.

use std::time::Duration;

use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::utils::Backoff;

/// First and longest pause before a broken watch is restarted.
const WATCH_RETRY_FIRST: Duration = Duration::from_millis(50);
pub(super) const WATCH_RETRY_CAP: Duration = Duration::from_secs(5);

/// The controller ended without a cancel.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A watch ended for good, which it never should: a defect.
    #[error("the watch of {0} ended")]
    WatchEnded(&'static str),
}

pub(super) fn resource(group: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural)
}

/// Doubling pauses between attempts to watch.
#[derive(Debug)]
pub(super) struct WatchRetry(Duration);

impl Default for WatchRetry {
    fn default() -> Self {
        Self(WATCH_RETRY_FIRST)
    }
}

impl Iterator for WatchRetry {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.0;
        self.0 = (self.0 * 2).min(WATCH_RETRY_CAP);
        Some(pause)
    }
}

impl Backoff for WatchRetry {
    fn reset(&mut self) {
        *self = Self::default();
    }
}
