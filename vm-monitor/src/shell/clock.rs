//! The only reader of the clock.

use std::time::Duration;

use protocol::time::{Span, Timestamp};
use tokio::time::Instant;

/// Monotonic time since the process started its monitor. Copies share the origin.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that begins now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    /// The time now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp(Span::from_duration(self.origin.elapsed()).0)
    }

    /// The runtime's instant of a time, for its timers.
    #[must_use]
    pub fn instant(&self, at: Timestamp) -> Instant {
        let since = Duration::from_micros(at.0);
        self.origin.checked_add(since).unwrap_or(self.origin)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
