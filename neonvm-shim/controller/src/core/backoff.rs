//! Pauses after failures: of actions, and of VMs that end again and again.

use std::collections::BTreeMap;

use protocol::time::{Span, Timestamp};
use serde::Serialize;

/// First pause after a failure.
pub const RETRY_FIRST: Span = Span::from_millis(5);
/// Longest pause after a failure.
pub const RETRY_CAP: Span = Span::from_secs(15);
/// The controller reads each VM and its pod again after this long, whatever the watches report.
pub const READ_AGAIN: Span = Span::from_secs(60);
/// Failures in a row from which on the status and an event report them.
pub const REPORTED_FROM: u32 = 2;
/// A guest that ran this long before it ended restarts without a pause.
pub const STEADY: Span = Span::from_secs(60);
/// First pause between restarts that follow on one another; the very first restart has none.
const RESTART_FIRST: Span = Span::from_secs(1);
/// Longest pause between two restarts of a VM.
const RESTART_CAP: Span = Span::from_secs(60);

/// Doubling pauses, `first` to `cap`. `times` counts from 1; 0 gives no pause.
pub(super) fn doubling(first: Span, cap: Span, times: u32) -> Span {
    let Some(doublings) = times.checked_sub(1) else {
        return Span(0);
    };
    let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
    Span(first.0.saturating_mul(factor).min(cap.0))
}

/// Failures in a row of each kind of action, and when each may be tried again.
#[derive(Debug, Clone, Serialize)]
pub struct Backoff<K: Ord> {
    kinds: BTreeMap<K, Strikes>,
}

impl<K: Ord> Default for Backoff<K> {
    fn default() -> Self {
        Self {
            kinds: BTreeMap::new(),
        }
    }
}

/// Failures in a row of one kind.
#[derive(Debug, Clone, Copy, Serialize)]
struct Strikes {
    in_a_row: u32,
    not_before: Timestamp,
}

impl<K: Ord + Copy> Backoff<K> {
    /// Records a failure. Returns the number of failures in a row.
    pub fn failed(&mut self, kind: K, now: Timestamp) -> u32 {
        let strikes = self.kinds.entry(kind).or_insert(Strikes {
            in_a_row: 0,
            not_before: now,
        });
        strikes.in_a_row = strikes.in_a_row.saturating_add(1);
        strikes.not_before = now + doubling(RETRY_FIRST, RETRY_CAP, strikes.in_a_row);
        strikes.in_a_row
    }

    /// Forgets the failures of this kind: an attempt succeeded.
    pub fn succeeded(&mut self, kind: K) {
        self.kinds.remove(&kind);
    }

    /// When it may be tried again, if not now.
    #[must_use]
    pub fn waits(&self, kind: K, now: Timestamp) -> Option<Timestamp> {
        self.kinds
            .get(&kind)
            .map(|strikes| strikes.not_before)
            .filter(|at| *at > now)
    }

    /// Lets each kind be tried at once, because the state of the world has changed. The counts
    /// stay.
    pub fn retry_now(&mut self, now: Timestamp) {
        self.retry_now_if(now, |_| true);
    }

    /// The same for some kinds.
    pub fn retry_now_if(&mut self, now: Timestamp, which: impl Fn(K) -> bool) {
        for (_, strikes) in self.kinds.iter_mut().filter(|(kind, _)| which(**kind)) {
            strikes.not_before = strikes.not_before.min(now);
        }
    }
}

/// Pauses between restarts of a VM that ends again and again.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct RestartBackoff {
    in_a_row: u32,
    running_since: Option<Timestamp>,
    not_before: Timestamp,
}

impl RestartBackoff {
    /// Records that the guest runs.
    pub fn running(&mut self, now: Timestamp) {
        self.running_since.get_or_insert(now);
    }

    /// Records that the guest has ended. The pause before the next start begins at `now`.
    pub fn ended(&mut self, now: Timestamp) {
        let steady = self
            .running_since
            .take()
            .is_some_and(|since| now.since(since) >= STEADY);
        if steady {
            self.in_a_row = 0;
        }
        self.not_before = now + doubling(RESTART_FIRST, RESTART_CAP, self.in_a_row);
        self.in_a_row = self.in_a_row.saturating_add(1);
    }

    /// Earliest time of the next start.
    #[must_use]
    pub fn not_before(&self) -> Timestamp {
        self.not_before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Kind;

    const NOW: Timestamp = Timestamp(1_000_000);

    #[test]
    fn pauses_double_up_to_cap_until_success() {
        let mut backoff = Backoff::default();
        let mut pauses = Vec::new();
        for _ in 0..40 {
            backoff.failed(Kind::CreatePod, NOW);
            pauses.push(
                backoff
                    .waits(Kind::CreatePod, NOW)
                    .map(|at| at.since(NOW).as_millis()),
            );
        }
        assert_eq!(pauses[..4], [Some(5), Some(10), Some(20), Some(40)]);
        assert_eq!(pauses[39], Some(15_000));
        assert_eq!(
            backoff.waits(Kind::WriteStatus, NOW),
            None,
            "kinds do not hold each other up"
        );
        assert_eq!(backoff.waits(Kind::CreatePod, NOW + RETRY_CAP), None);
        backoff.succeeded(Kind::CreatePod);
        assert_eq!(backoff.failed(Kind::CreatePod, NOW), 1);
        backoff.retry_now(NOW);
        assert_eq!(backoff.waits(Kind::CreatePod, NOW), None);
        assert_eq!(backoff.failed(Kind::CreatePod, NOW), 2);
    }

    #[test]
    fn crash_loop_slows_down_until_steady_run() {
        let mut backoff = RestartBackoff::default();
        let mut now = NOW;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            backoff.running(now);
            now = now + Span::from_secs(1);
            backoff.ended(now);
            pauses.push(backoff.not_before().since(now).as_millis() / 1000);
        }
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
        backoff.running(now);
        now = now + STEADY;
        backoff.ended(now);
        assert_eq!(backoff.not_before(), now);
    }
}
