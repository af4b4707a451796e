//! Health with hysteresis: a change counts once it has lasted.

use protocol::fleet::Health;
use protocol::time::{Span, Timestamp};

/// Time for which a new health must last.
pub const LASTS: Span = Span::from_secs(120);

/// Health that does not flap.
#[derive(Debug, Clone, Copy, Default)]
pub struct Steady {
    /// What was seen last, and since when.
    seen: Option<(Health, Timestamp)>,
}

impl Steady {
    /// Nothing was seen.
    #[must_use]
    pub const fn new() -> Self {
        Self { seen: None }
    }

    /// The health to show, after a look. `shown` is the one that is shown now.
    ///
    /// The first figures count at once.
    pub fn observe(&mut self, seen: Health, shown: Health, now: Timestamp) -> Health {
        let since = match self.seen {
            Some((before, since)) if before == seen => since,
            _ => now,
        };
        self.seen = Some((seen, since));
        let has_lasted = now.since(since) >= LASTS;
        if seen == shown || shown == Health::Unknown || has_lasted {
            seen
        } else {
            shown
        }
    }
}

impl Steady {
    /// Whether this health has been seen for as long as a new one must last.
    #[must_use]
    pub fn lasts(&self, health: Health, now: Timestamp) -> bool {
        self.seen
            .is_some_and(|(seen, since)| seen == health && now.since(since) >= LASTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: B27
    #[test]
    fn health_changes_once_a_change_has_lasted_two_minutes() {
        use Health::{Healthy, Unhealthy, Unknown};
        let rows = [
            (0, Healthy, Healthy),
            (10, Unhealthy, Healthy),
            (129, Unhealthy, Healthy),
            (130, Unhealthy, Unhealthy),
            (140, Healthy, Unhealthy),
            (200, Unhealthy, Unhealthy),
            (210, Healthy, Unhealthy),
            (329, Healthy, Unhealthy),
            (330, Healthy, Healthy),
            (340, Unknown, Healthy),
            (459, Unknown, Healthy),
            (460, Unknown, Unknown),
            (461, Unhealthy, Unhealthy),
        ];
        let (mut steady, mut shown) = (Steady::default(), Unknown);
        for (second, seen, expected) in rows {
            let now = Timestamp(second * 1_000_000);
            shown = steady.observe(seen, shown, now);
            assert_eq!(shown, expected, "{second} s");
        }
    }
}
