//! Which objects fail, and whether they are still being tried (spec/neonvm.md §2.12).

use std::collections::BTreeMap;

use protocol::time::{Span, Timestamp};
use serde::Serialize;

/// How one attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Well.
    Success,
    /// It rested on an old state; tried again on a fresh one.
    Conflict,
    /// Otherwise.
    Failure,
}

/// Failures of one object since its last success.
#[derive(Debug, Clone, Copy)]
struct Streak {
    first: Timestamp,
    last: Timestamp,
}

/// An object counts as degraded once it has had only failures for `pending`; it is actively retried as long as the
/// newest failure is younger than `pending`. Conflicts are kept apart; a failure of another kind clears them.
#[derive(Debug, Clone)]
pub struct FailureLag {
    pending: Span,
    failing: BTreeMap<String, Streak>,
    conflicting: BTreeMap<String, Streak>,
}

/// Which objects are degraded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Degraded {
    /// Still tried.
    pub active: Vec<String>,
    /// Not tried for a while.
    pub idle: Vec<String>,
}

impl FailureLag {
    /// A tracker with the period that must pass before an object counts.
    #[must_use]
    pub fn new(pending: Span) -> Self {
        Self {
            pending,
            failing: BTreeMap::new(),
            conflicting: BTreeMap::new(),
        }
    }

    /// Notes an attempt for an object.
    pub fn note(&mut self, key: &str, outcome: Outcome, now: Timestamp) {
        let streaks = match outcome {
            Outcome::Success => return self.forget(key),
            Outcome::Conflict => &mut self.conflicting,
            Outcome::Failure => {
                self.conflicting.remove(key);
                &mut self.failing
            }
        };
        let streak = streaks.entry(key.to_owned()).or_insert(Streak {
            first: now,
            last: now,
        });
        streak.last = now;
    }

    /// The object is well, or gone.
    pub fn forget(&mut self, key: &str) {
        self.failing.remove(key);
        self.conflicting.remove(key);
    }

    /// Objects that fail.
    #[must_use]
    pub fn failing(&self, now: Timestamp) -> Degraded {
        self.degraded(&self.failing, now)
    }

    /// Objects that only meet conflicts.
    #[must_use]
    pub fn conflicting(&self, now: Timestamp) -> Degraded {
        self.degraded(&self.conflicting, now)
    }

    fn degraded(&self, streaks: &BTreeMap<String, Streak>, now: Timestamp) -> Degraded {
        let mut out = Degraded::default();
        for (key, streak) in streaks {
            if now.since(streak.first) < self.pending {
                continue;
            }
            let active = now.since(streak.last) < self.pending;
            let list = if active {
                &mut out.active
            } else {
                &mut out.idle
            };
            list.push(key.clone());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Span = Span::from_secs(60);

    #[test]
    fn an_object_is_degraded_after_a_minute_of_failures_only() {
        let mut lag = FailureLag::new(MINUTE);
        let start = Timestamp(1_000_000);
        lag.note("default/a", Outcome::Failure, start);
        assert_eq!(
            lag.failing(start + Span::from_secs(59)),
            Degraded::default()
        );
        lag.note("default/a", Outcome::Failure, start + Span::from_secs(50));
        assert_eq!(lag.failing(start + MINUTE).active, ["default/a"]);
        let later = start + Span::from_secs(110);
        assert_eq!(
            lag.failing(later).idle,
            ["default/a"],
            "not tried for a minute"
        );
        lag.note("default/a", Outcome::Success, later);
        assert_eq!(lag.failing(later), Degraded::default());
    }

    #[test]
    fn conflicts_are_kept_apart_and_a_failure_clears_them() {
        let mut lag = FailureLag::new(MINUTE);
        let start = Timestamp(1_000_000);
        lag.note("default/a", Outcome::Conflict, start);
        lag.note("default/a", Outcome::Conflict, start + MINUTE);
        assert_eq!(lag.conflicting(start + MINUTE).active, ["default/a"]);
        assert_eq!(lag.failing(start + MINUTE), Degraded::default());
        lag.note("default/a", Outcome::Failure, start + MINUTE);
        assert_eq!(lag.conflicting(start + MINUTE), Degraded::default());
    }
}
