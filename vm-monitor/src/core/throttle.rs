//! How fast one connection's frames are read.
//!
//! A flooding peer is not answered with errors and not cut off: its frames are read no faster than
//! the rate, and TCP makes it wait. Nothing is lost and nothing grows.

use protocol::time::{Span, Timestamp};

/// Lets through a burst, then a steady rate. One per connection.
#[derive(Debug, Clone)]
pub struct Throttle {
    /// When the bucket would be empty again, if nothing more came.
    settled_at: Timestamp,
    interval: Span,
    burst: Span,
}

/// Steady rate of frames from one connection, per second. A busy agent sends a few in that time.
pub const FRAMES_PER_SECOND: u64 = 100;
/// Frames read at once before the rate holds.
pub const FRAME_BURST: u64 = 200;

impl Default for Throttle {
    fn default() -> Self {
        Self::new(FRAMES_PER_SECOND, FRAME_BURST)
    }
}

impl Throttle {
    /// `per_second` steadily (at least 1), `burst` at once.
    #[must_use]
    pub fn new(per_second: u64, burst: u64) -> Self {
        let interval = Span(Span::from_secs(1).0 / per_second.max(1));
        Self {
            settled_at: Timestamp::default(),
            interval,
            burst: Span(interval.0.saturating_mul(burst)),
        }
    }

    /// One frame has been read at `now`. The next one may be read at the time returned, which may
    /// have passed.
    pub fn note(&mut self, now: Timestamp) -> Timestamp {
        self.settled_at = self.settled_at.max(now) + self.interval;
        self.settled_at - self.burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n38_a_burst_is_free_and_then_the_rate_holds() {
        let mut throttle = Throttle::new(10, 5);
        let start = Timestamp(50_000_000);
        for _ in 0..5 {
            assert!(throttle.note(start) <= start);
        }
        assert_eq!(throttle.note(start), start + Span::from_millis(100));
        assert_eq!(throttle.note(start), start + Span::from_millis(200));
        let later = start + Span::from_secs(10);
        assert!(
            throttle.note(later) <= later,
            "an idle peer has its burst back"
        );
    }
}
