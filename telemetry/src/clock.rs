//! The one place that reads clocks.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use protocol::time::{Span, Timestamp, WallTime};

/// Monotonic time since the process made it, and calendar time. Cheap to clone; clones agree.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts now. Time begins at one second, so that `Timestamp(0)` lies safely in the past.
    #[must_use]
    pub fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    /// Monotonic time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp(0) + Span::from_secs(1) + Span::from_duration(self.origin.elapsed())
    }

    /// Calendar time, UTC.
    #[must_use]
    pub fn wall(&self) -> WallTime {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        WallTime(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    /// The standard library's instant of a timestamp, for timers.
    #[must_use]
    pub fn instant_of(&self, at: Timestamp) -> Instant {
        self.origin + at.since(Timestamp(0) + Span::from_secs(1)).to_duration()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_goes_back_and_clones_agree() {
        let clock = Clock::new();
        let copy = clock;
        let first = clock.now();
        let second = copy.now();
        assert!(second >= first && first >= Timestamp(1_000_000));
        assert!(clock.instant_of(second) <= Instant::now());
    }
}
