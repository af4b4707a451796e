//! The only module that reads clocks.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use protocol::time::{Span, Timestamp, WallTime};

/// Monotonic time since the process created it, and wall time. Clones are cheap and agree.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
    /// Error of the wall time in microseconds.
    wall_offset: Option<&'static AtomicI64>,
}

impl Clock {
    /// A clock that starts now. Time begins at one second, so that `Timestamp(0)` is in the past.
    #[must_use]
    pub fn new() -> Self {
        Self {
            origin: Instant::now(),
            wall_offset: None,
        }
    }

    /// A clock whose wall time is wrong by the present value of `offset`, in microseconds. For
    /// tests of a machine whose clock is set; monotonic time is not affected, as on such a machine.
    #[must_use]
    pub fn with_wall_offset(offset: &'static AtomicI64) -> Self {
        Self {
            wall_offset: Some(offset),
            ..Self::new()
        }
    }

    /// Monotonic time since the clock's start, plus one second.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp(0) + Span::from_secs(1) + Span::from_duration(self.origin.elapsed())
    }

    /// Wall time in UTC, microseconds since 1970.
    #[must_use]
    pub fn wall(&self) -> WallTime {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let wall = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
        let offset = self.wall_offset.map_or(0, |us| us.load(Ordering::Relaxed));
        WallTime(wall.saturating_add(offset))
    }

    /// The `std::time::Instant` of a timestamp, for timers.
    #[must_use]
    pub fn instant_of(&self, at: Timestamp) -> Instant {
        self.origin + at.since(Timestamp(0) + Span::from_secs(1)).to_duration()
    }
}

impl From<Clock> for Timestamp {
    fn from(clock: Clock) -> Self {
        clock.now()
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

    #[test]
    fn wall_clock_step_leaves_monotonic_time_alone() {
        static OFFSET: AtomicI64 = AtomicI64::new(0);
        let (clock, right) = (Clock::with_wall_offset(&OFFSET), Clock::new());
        let before = clock.now();
        let hour = 3_600_000_000;
        for hours in [-24, 24, 0] {
            OFFSET.store(hours * hour, Ordering::Relaxed);
            let off = clock.wall().0 - right.wall().0 - hours * hour;
            assert!(off.abs() < hour, "{off}");
            assert!(clock.now().since(before).0 < hour.unsigned_abs());
            assert!(clock.now() >= before);
        }
    }
}
