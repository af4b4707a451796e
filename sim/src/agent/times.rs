//! Times of an agent's scrapes, as its configuration has them by default.

use protocol::time::Span;

/// Between two scrapes (`metrics.system.secondsBetweenRequests`).
pub(crate) const SCRAPE_PERIOD: Span = Span::from_secs(5);
/// A page that takes longer is none (`metrics.system.requestTimeoutSeconds`).
pub(crate) const SCRAPE_PATIENCE: Span = Span::from_secs(2);
/// Age from which metrics are stale: three periods and a time-out, as configured by default.
pub(crate) const METRICS_MAX_AGE: Span = Span::from_secs(17);
