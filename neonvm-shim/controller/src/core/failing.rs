//! Which objects fail, and whether they are still being tried (docs/compatibility/neonvm.md §2.12).

use std::collections::BTreeMap;

use protocol::time::{Span, Timestamp};
use serde::Serialize;

use super::backoff::READ_AGAIN;

/// An object counts as degraded once something about it has had only failures for this long.
pub const PENDING: Span = Span::from_secs(60);
/// Failures are over when no new one has come for this long. An action that is still wanted is
/// tried again within [`READ_AGAIN`], and one attempt takes less than that. An action without a new
/// failure is therefore no longer wanted.
pub const OVER: Span = Span(3 * READ_AGAIN.0);

/// Result of one attempt of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The action succeeded. The failures of this kind are forgotten.
    Success,
    /// It rested on an old state; tried again on a fresh one.
    Conflict,
    /// The attempt failed for any reason other than a conflict.
    Failure,
}

/// Failures of one kind of action since its last success.
#[derive(Debug, Clone, Copy)]
struct Streak {
    first: Timestamp,
    last: Timestamp,
}

impl Streak {
    fn is_over(&self, now: Timestamp) -> bool {
        now.since(self.last) >= OVER
    }
}

/// Failures by object and kind of action. A pod that can be read may still be impossible to create.
type Streaks<K> = BTreeMap<(String, K), Streak>;

/// Follows the failures of objects by the kind `K` of action. An object is degraded if one kind has
/// had failures and no success for [`PENDING`]. It is actively retried while the newest of these
/// failures is younger than that. A single failure makes no object degraded. Conflicts are kept
/// apart, and another failure of the same kind clears them.
#[derive(Debug, Clone)]
pub struct FailureLag<K> {
    failing: Streaks<K>,
    conflicting: Streaks<K>,
}

/// Names of degraded objects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Degraded {
    /// Objects whose newest failure is younger than [`PENDING`], as `namespace/name`.
    pub active: Vec<String>,
    /// Not tried for a while.
    pub idle: Vec<String>,
}

impl Degraded {
    /// Adds the objects of `others` to both lists.
    pub fn append(&mut self, mut others: Self) {
        self.active.append(&mut others.active);
        self.idle.append(&mut others.idle);
    }
}

impl<K: Ord> Default for FailureLag<K> {
    fn default() -> Self {
        Self {
            failing: BTreeMap::new(),
            conflicting: BTreeMap::new(),
        }
    }
}

impl<K: Ord + Copy> FailureLag<K> {
    /// Notes an attempt of a kind for an object.
    pub fn record(&mut self, object: &str, kind: K, outcome: Outcome, now: Timestamp) {
        // Failures that are over are dropped.
        for streaks in [&mut self.failing, &mut self.conflicting] {
            streaks.retain(|_, streak| !streak.is_over(now));
        }
        let key = (object.to_owned(), kind);
        if outcome != Outcome::Conflict {
            self.conflicting.remove(&key);
        }
        let streaks = match outcome {
            Outcome::Success => {
                self.failing.remove(&key);
                return;
            }
            Outcome::Conflict => &mut self.conflicting,
            Outcome::Failure => &mut self.failing,
        };
        let streak = streaks.entry(key).or_insert(Streak {
            first: now,
            last: now,
        });
        streak.last = now;
    }

    /// Removes an object that was deleted.
    pub fn forget(&mut self, object: &str) {
        for streaks in [&mut self.failing, &mut self.conflicting] {
            streaks.retain(|(of, _), _| of != object);
        }
    }

    /// Objects with an action that fails.
    #[must_use]
    pub fn failing(&self, now: Timestamp) -> Degraded {
        degraded(&self.failing, now)
    }

    /// Objects that only meet conflicts.
    #[must_use]
    pub fn conflicting(&self, now: Timestamp) -> Degraded {
        degraded(&self.conflicting, now)
    }
}

fn degraded<K>(streaks: &Streaks<K>, now: Timestamp) -> Degraded {
    let mut is_active: BTreeMap<&str, bool> = BTreeMap::new();
    for ((object, _), streak) in streaks {
        if !streak.is_over(now) && streak.last.since(streak.first) >= PENDING {
            *is_active.entry(object).or_default() |= now.since(streak.last) < PENDING;
        }
    }
    let mut out = Degraded::default();
    for (object, is_active) in is_active {
        let list = if is_active {
            &mut out.active
        } else {
            &mut out.idle
        };
        list.push(object.to_owned());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Kind;

    const START: Timestamp = Timestamp(1_000_000);

    fn at(seconds: u64) -> Timestamp {
        START + Span::from_secs(seconds)
    }

    fn noted(attempts: &[(&str, Kind, Outcome, u64)]) -> FailureLag<Kind> {
        let mut lag = FailureLag::default();
        for (object, kind, outcome, seconds) in attempts {
            lag.record(object, *kind, *outcome, at(*seconds));
        }
        lag
    }

    #[test]
    fn object_is_degraded_after_one_minute_of_failures_alone() {
        let mut lag = noted(&[
            ("default/a", Kind::CreatePod, Outcome::Failure, 0),
            ("default/a", Kind::CreatePod, Outcome::Failure, 59),
        ]);
        assert_eq!(lag.failing(at(59)), Degraded::default());
        lag.record("default/a", Kind::CreatePod, Outcome::Failure, at(74));
        assert_eq!(lag.failing(at(74)).active, ["default/a"]);
        let later = at(74) + PENDING;
        let idle = lag.failing(later).idle;
        assert_eq!(idle, ["default/a"], "not tried for a minute");
        lag.record("default/a", Kind::CreatePod, Outcome::Success, later);
        assert_eq!(lag.failing(later), Degraded::default());
    }

    #[test]
    fn a_success_ends_the_failures_of_its_own_kind_alone() {
        let mut lag = noted(&[
            ("default/a", Kind::CreatePod, Outcome::Failure, 0),
            ("default/a", Kind::WriteStatus, Outcome::Failure, 0),
            ("default/a", Kind::ReadVm, Outcome::Success, 30),
            ("default/a", Kind::CreatePod, Outcome::Failure, 60),
            ("default/a", Kind::WriteStatus, Outcome::Failure, 60),
            ("default/a", Kind::ReadVm, Outcome::Success, 61),
        ]);
        assert_eq!(lag.failing(at(61)).active, ["default/a"], "listed once");
        lag.record("default/a", Kind::WriteStatus, Outcome::Success, at(62));
        assert_eq!(lag.failing(at(62)).active, ["default/a"]);
        lag.record("default/a", Kind::CreatePod, Outcome::Success, at(63));
        assert_eq!(lag.failing(at(63)), Degraded::default());
    }

    #[test]
    fn failures_of_abandoned_action_expire() {
        let mut lag = noted(&[
            ("default/a", Kind::CreatePod, Outcome::Failure, 0),
            ("default/a", Kind::CreatePod, Outcome::Failure, 70),
            ("default/b", Kind::SetSize, Outcome::Failure, 0),
        ]);
        let over = at(70) + OVER;
        assert_eq!(lag.failing(over), Degraded::default());
        // A new failure after that begins a new streak.
        lag.record("default/a", Kind::CreatePod, Outcome::Failure, over);
        assert_eq!(lag.failing(over), Degraded::default());
    }

    #[test]
    fn a_single_failure_degrades_nobody() {
        let lag = noted(&[
            ("default/a", Kind::SetSize, Outcome::Failure, 0),
            ("default/a", Kind::WriteStatus, Outcome::Conflict, 0),
        ]);
        for seconds in [0, 60, 90] {
            assert_eq!(lag.failing(at(seconds)), Degraded::default());
            assert_eq!(lag.conflicting(at(seconds)), Degraded::default());
        }
    }

    #[test]
    fn conflicts_are_kept_apart_until_failure_clears_them() {
        let mut lag = noted(&[
            ("default/a", Kind::PatchVm, Outcome::Conflict, 0),
            ("default/a", Kind::PatchVm, Outcome::Conflict, 60),
        ]);
        assert_eq!(lag.conflicting(at(60)).active, ["default/a"]);
        assert_eq!(lag.failing(at(60)), Degraded::default());
        lag.record("default/a", Kind::PatchVm, Outcome::Failure, at(60));
        assert_eq!(lag.conflicting(at(60)), Degraded::default());
    }

    #[test]
    fn deleted_object_does_not_fail() {
        let mut lag = noted(&[
            ("default/a", Kind::PatchVm, Outcome::Failure, 0),
            ("default/a", Kind::PatchVm, Outcome::Failure, 60),
            ("default/b", Kind::PatchVm, Outcome::Failure, 0),
            ("default/b", Kind::PatchVm, Outcome::Failure, 60),
        ]);
        lag.forget("default/a");
        assert_eq!(lag.failing(at(60)).active, ["default/b"]);
    }
}
