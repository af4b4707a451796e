//! Which events of a log are sent to one receiver, and when. Events have growing positions; a batch
//! is a range of positions.
//!
//! A batch is closed when it has the largest size, or `push_every` after the last batch. A closed
//! batch keeps its bounds until it is received, also over a restart, so each attempt sends the same
//! events. After a failure the next attempt follows by itself, with growing pauses. Batches are
//! sent in order, one at a time.
//!
//! Source: docs/compatibility/agent.md §4.6 (sink), §7.6 (batcher), §8 (15).

use std::ops::Range;

use protocol::time::{Span, Timestamp};

/// Pause after the first failure; it doubles with each further one.
const FIRST_RETRY: Span = Span::from_secs(1);
/// Upper bound of the pause.
const LAST_RETRY: Span = Span::from_secs(60);

/// Batches of one log for one receiver.
#[derive(Debug, Clone)]
pub struct Batches {
    max: u64,
    push_every: Span,
    /// Position before which all events are received.
    done: u64,
    /// Position after the newest event of the log.
    end: u64,
    /// End of the closed batch that begins at `done`.
    closed: Option<u64>,
    is_sending: bool,
    is_flushing: bool,
    last_sent: Timestamp,
    retry_at: Option<Timestamp>,
    failures: u32,
}

impl Batches {
    /// Batches of at most `max` events (at least 1), each sent `push_every` after the last one at
    /// the latest. The log holds `held` for this receiver. `closed` is the end of a batch that an
    /// earlier process began to send.
    #[must_use]
    pub fn new(
        now: Timestamp,
        max: u64,
        push_every: Span,
        held: Range<u64>,
        closed: Option<u64>,
    ) -> Self {
        Self {
            max: max.max(1),
            push_every,
            done: held.start,
            end: held.end.max(held.start),
            closed: closed.filter(|end| (held.start + 1..=held.end).contains(end)),
            is_sending: false,
            is_flushing: false,
            last_sent: now,
            retry_at: None,
            failures: 0,
        }
    }

    /// Takes the new end of a log that grew.
    pub fn appended(&mut self, end: u64) {
        self.end = self.end.max(end);
    }

    /// Skips events before `first`, which the log has deleted. Returns how many this receiver has
    /// missed.
    pub fn lost_before(&mut self, first: u64) -> u64 {
        let missed = first.saturating_sub(self.done);
        if missed > 0 && !self.is_sending {
            self.done = first;
            self.closed = self.closed.filter(|end| *end > first);
            return missed;
        }
        0
    }

    /// The range to send now, if one is due. The next one comes only after [`Self::finished`].
    pub fn poll(&mut self, now: Timestamp) -> Option<Range<u64>> {
        if self.is_sending
            || self
                .retry_at
                .is_some_and(|at| now < at && !self.is_flushing)
        {
            return None;
        }
        if self.closed.is_none() {
            let waiting = self.end - self.done;
            self.closed = if waiting >= self.max {
                Some(self.done + self.max)
            } else if waiting > 0 && (self.is_flushing || now >= self.last_sent + self.push_every) {
                Some(self.end)
            } else {
                None
            };
        }
        let batch = self.done..self.closed?;
        self.is_sending = true;
        self.retry_at = None;
        Some(batch)
    }

    /// Takes the outcome of the batch in progress.
    pub fn finished(&mut self, now: Timestamp, is_received: bool) {
        self.is_sending = false;
        if is_received {
            self.done = self.closed.take().unwrap_or(self.done);
            self.last_sent = now;
            self.failures = 0;
        } else {
            let factor = 1_u64 << self.failures.min(16);
            let pause = Span(FIRST_RETRY.0.saturating_mul(factor)).min(LAST_RETRY);
            self.retry_at = Some(now + pause);
            self.failures = self.failures.saturating_add(1);
        }
    }

    /// Makes all waiting events due at once, because the process ends.
    pub fn flush(&mut self) {
        self.is_flushing = true;
    }

    /// When to call [`Self::poll`] again if nothing else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        if self.is_sending || self.end == self.done {
            return None;
        }
        Some(self.retry_at.unwrap_or(self.last_sent + self.push_every))
    }

    /// Number of events that the receiver does not have.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.end - self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUSH: Span = Span::from_secs(30);

    fn at(secs: u64) -> Timestamp {
        Timestamp(0) + Span::from_secs(secs)
    }

    fn fresh() -> Batches {
        Batches::new(at(0), 3, PUSH, 0..0, None)
    }

    #[test]
    fn batch_is_closed_at_its_largest_size() {
        let mut batches = fresh();
        batches.appended(2);
        assert_eq!(batches.poll(at(1)), None, "two events complete nothing");
        batches.flush();
        assert_eq!(batches.poll(at(1)), Some(0..2), "but they end as one batch");
        batches = fresh();
        batches.appended(9);
        for batch in [0..3, 3..6, 6..9] {
            assert_eq!(batches.poll(at(1)), Some(batch));
            assert_eq!(batches.poll(at(1)), None, "one at a time");
            batches.finished(at(1), true);
        }
        assert_eq!((batches.poll(at(1)), batches.waiting()), (None, 0));
    }

    #[test]
    fn batch_is_closed_after_the_push_period() {
        let mut batches = fresh();
        batches.appended(1);
        assert_eq!(batches.poll(at(29)), None);
        assert_eq!(batches.deadline(), Some(at(30)));
        assert_eq!(batches.poll(at(30)), Some(0..1));
    }

    #[test]
    fn failed_batch_is_repeated_unchanged_with_growing_pauses() {
        let mut batches = fresh();
        batches.appended(2);
        assert_eq!(batches.poll(at(30)), Some(0..2));
        batches.appended(9);
        let mut pauses = Vec::new();
        let mut now = at(31);
        for _ in 0..8 {
            batches.finished(now, false);
            let next = batches.deadline().expect("it is tried again");
            assert_eq!(batches.poll(Timestamp(next.0 - 1)), None);
            assert_eq!(batches.poll(next), Some(0..2), "the same events");
            pauses.push(next.since(now).0 / 1_000_000);
            now = next;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        batches.finished(now, true);
        assert_eq!(batches.poll(now), Some(2..5));
    }

    #[test]
    fn batch_of_an_earlier_process_keeps_its_bounds() {
        let mut batches = Batches::new(at(0), 3, PUSH, 4..20, Some(6));
        assert_eq!(batches.poll(at(0)), Some(4..6));
        batches.finished(at(0), true);
        assert_eq!(batches.poll(at(0)), Some(6..9));
        let mut whole = Batches::new(at(0), 3, PUSH, 4..20, Some(20));
        assert_eq!(whole.poll(at(0)), Some(4..20));
        // A bound outside the log, or of an empty batch, is ignored.
        for outside in [3, 4, 21] {
            let mut ignoring = Batches::new(at(0), 3, PUSH, 4..20, Some(outside));
            assert_eq!(ignoring.poll(at(0)), Some(4..7));
        }
    }

    #[test]
    fn batch_keeps_the_part_that_the_log_still_has() {
        let begun = || Batches::new(at(0), 3, PUSH, 4..20, Some(6));
        let mut cut = begun();
        assert_eq!(cut.lost_before(5), 1);
        assert_eq!(cut.poll(at(0)), Some(5..6));
        let mut gone = begun();
        assert_eq!(gone.lost_before(6), 2);
        assert_eq!(gone.poll(at(0)), Some(6..9));
    }

    #[test]
    fn end_of_the_process_waits_for_no_pause() {
        let mut batches = fresh();
        batches.appended(3);
        assert_eq!(batches.poll(at(0)), Some(0..3));
        batches.finished(at(0), false);
        batches.flush();
        assert_eq!(batches.poll(at(0)), Some(0..3));
    }

    #[test]
    fn pause_after_a_success_is_the_first_one_again() {
        let mut batches = fresh();
        batches.appended(6);
        for is_received in [false, false, true, false] {
            assert!(batches.poll(at(60)).is_some());
            batches.finished(at(0), is_received);
        }
        assert_eq!(batches.deadline(), Some(at(1)));
    }

    #[test]
    fn deadline_is_set_only_while_events_wait_unsent() {
        let mut batches = fresh();
        assert_eq!((batches.deadline(), batches.poll(at(30))), (None, None));
        batches.appended(2);
        batches.appended(1);
        assert_eq!((batches.waiting(), batches.deadline()), (2, Some(at(30))));
        assert_eq!(batches.poll(at(30)), Some(0..2));
        assert_eq!(batches.deadline(), None, "it is being sent");
        batches.finished(at(31), true);
        assert_eq!(batches.deadline(), None);
        batches.appended(3);
        assert_eq!(batches.deadline(), Some(at(61)), "after the last batch");
    }

    #[test]
    fn events_deleted_before_sending_are_counted() {
        let mut batches = Batches::new(at(0), 3, PUSH, 4..20, None);
        for kept in [3, 4] {
            assert_eq!(batches.lost_before(kept), 0);
            assert_eq!(batches.waiting(), 16);
        }
        assert_eq!(batches.lost_before(7), 3);
        assert_eq!(batches.poll(at(0)), Some(7..10));
        assert_eq!(batches.lost_before(9), 0, "not what is being sent");
    }
}
