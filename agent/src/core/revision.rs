//! Revisions: numbers of target sizes. They measure the time from a decision to the resized VM.
//! Source: docs/compatibility/agent.md §3.9.

use std::collections::VecDeque;

use protocol::revision::{FLAG_DOWNSCALE, FLAG_UPSCALE, Revision};
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;

/// Issue times kept. The latency of an older revision is not measured.
const MAX_UNOBSERVED: usize = 100;

/// A revision and the time it was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StampedRevision {
    /// Number and flags. Each later revision has a larger number.
    pub revision: Revision,
    /// Time at which it was set; the default time = never.
    pub at: Timestamp,
}

impl StampedRevision {
    /// Stores the revision in `slot` if it is newer. Returns its age and flags then.
    pub fn propagate(&self, now: Timestamp, slot: &mut Revision) -> Option<(Span, u64)> {
        let is_newer = self.revision.value > slot.value;
        is_newer.then(|| {
            *slot = self.revision;
            (now.since(self.at), self.revision.flags)
        })
    }
}

/// Flags of a new target size `target` after `last`.
#[must_use]
pub fn flags_between(last: Resources, target: Resources) -> u64 {
    let mut flags = 0;
    if target.has_field_above(last) {
        flags |= FLAG_UPSCALE;
    }
    if target.has_field_below(last) {
        flags |= FLAG_DOWNSCALE;
    }
    flags
}

/// Result of [`RevisionSource::observe`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observed {
    /// Time from issue to observation. The revision and all older ones are not measured again.
    After(Span),
    /// Observed before, or too old to be measured.
    Known,
    /// The value is above the last issued one, so its issue time is unknown.
    NotIssued,
}

/// Issues revisions and measures the time until they are observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevisionSource {
    pub(super) last: i64,
    /// Issue times of the values up to `last`, oldest first.
    pub(super) issued_at: VecDeque<Timestamp>,
}

impl RevisionSource {
    /// The first revision has the value after `last`.
    #[must_use]
    pub fn new(last: i64) -> Self {
        Self {
            last,
            issued_at: VecDeque::new(),
        }
    }

    /// Issues the next revision with these flags.
    pub fn issue(&mut self, now: Timestamp, flags: u64) -> Revision {
        self.last = self.last.saturating_add(1);
        self.issued_at.push_back(now);
        if self.issued_at.len() > MAX_UNOBSERVED {
            self.issued_at.pop_front();
        }
        Revision {
            value: self.last,
            flags,
        }
    }

    /// Continues after a revision that the object has. The object is ahead after a second patch of
    /// one revision, and after a patch of another agent.
    pub fn skip_to(&mut self, now: Timestamp, value: i64) {
        let missing = usize::try_from(value.saturating_sub(self.last)).unwrap_or(0);
        if missing > MAX_UNOBSERVED {
            *self = Self::new(value);
            return;
        }
        for _ in 0..missing {
            self.issue(now, 0);
        }
    }

    /// Takes a revision that the VM's status reported at `at`.
    pub fn observe(&mut self, at: Timestamp, value: i64) -> Observed {
        if value > self.last {
            return Observed::NotIssued;
        }
        let behind = usize::try_from(self.last.saturating_sub(value)).unwrap_or(usize::MAX);
        let Some(index) = self
            .issued_at
            .len()
            .checked_sub(1)
            .and_then(|newest| newest.checked_sub(behind))
        else {
            return Observed::Known;
        };
        let issued = self.issued_at[index];
        self.issued_at.drain(..=index);
        Observed::After(at.since(issued))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Timestamp {
        Timestamp(secs * 1_000_000)
    }

    #[test]
    fn values_continue_after_the_start() {
        for (start, first) in [(0, 1), (5, 6)] {
            let revision = RevisionSource::new(start).issue(at(0), FLAG_UPSCALE);
            assert_eq!(
                revision,
                Revision {
                    value: first,
                    flags: FLAG_UPSCALE
                }
            );
        }
    }

    #[test]
    fn values_continue_after_the_object() {
        let mut source = RevisionSource::new(3);
        source.skip_to(at(1), 2);
        assert_eq!(source.last, 3, "the object is behind");
        source.skip_to(at(1), 5);
        assert_eq!(
            source.observe(at(2), 5),
            Observed::After(Span::from_secs(1))
        );
        source.skip_to(at(3), i64::MAX - 1);
        assert_eq!(source.issue(at(4), 0).value, i64::MAX);
    }

    #[test]
    fn latency_is_from_issue_to_observation() {
        let mut source = RevisionSource::new(0);
        source.issue(at(0), FLAG_UPSCALE);
        assert_eq!(
            source.observe(at(5), 1),
            Observed::After(Span::from_secs(5))
        );
        assert_eq!(source.observe(at(5), 1), Observed::Known);
    }

    #[test]
    fn two_revisions_in_flight_are_measured_apart() {
        let mut source = RevisionSource::new(0);
        source.issue(at(0), 0);
        source.issue(at(5), 0);
        assert_eq!(
            source.observe(at(10), 1),
            Observed::After(Span::from_secs(10))
        );
        assert_eq!(
            source.observe(at(12), 2),
            Observed::After(Span::from_secs(7))
        );
        assert_eq!(source.observe(at(13), 2), Observed::Known);
        assert_eq!(source.observe(at(13), 1), Observed::Known);
    }

    #[test]
    fn observation_of_newer_revision_forgets_older_ones() {
        let mut source = RevisionSource::new(0);
        source.issue(at(0), 0);
        source.issue(at(1), 0);
        assert_eq!(
            source.observe(at(2), 2),
            Observed::After(Span::from_secs(1))
        );
        assert_eq!(source.observe(at(3), 1), Observed::Known);
    }

    #[test]
    fn values_outside_the_window_are_not_measured() {
        let mut source = RevisionSource::new(7);
        assert_eq!(source.observe(at(0), 7), Observed::Known);
        assert_eq!(source.observe(at(0), 8), Observed::NotIssued);
        assert_eq!(source.observe(at(0), i64::MIN), Observed::Known);
        for _ in 0..=MAX_UNOBSERVED {
            source.issue(at(1), 0);
        }
        assert_eq!(
            source.observe(at(2), 8),
            Observed::Known,
            "the oldest was forgotten"
        );
        assert_eq!(
            source.observe(at(2), 9),
            Observed::After(Span::from_secs(1))
        );
    }
}
