//! When which events of a log are sent to one receiver. Events have positions that only grow; a
//! batch is a range of them.
//!
//! A batch is closed when it has the largest size, or when nothing was sent for a while. Once
//! closed its bounds are kept until it is received, also over a restart, so that it is sent again
//! as the very same batch. After a failure it is tried again by itself, with growing pauses.
//! Batches go out in order, one at a time.
//!
//! Source: docs/compatibility/agent.md §4.6 (sink), §7.6 (batcher), §8 (15).

use std::ops::Range;

use protocol::time::{Span, Timestamp};

/// First pause after a failure.
const FIRST_RETRY: Span = Span::from_secs(1);
/// Longest pause after a failure.
const LAST_RETRY: Span = Span::from_secs(60);

/// The batches for one receiver.
#[derive(Debug, Clone)]
pub struct Batches {
    max: u64,
    push_every: Span,
    /// All before this position is received.
    done: u64,
    /// All before this position is there.
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
    /// Batches of at most `max` events (at least 1), sent after `push_every` at the latest, of a
    /// log that holds `done..end` for this receiver. `closed` is the end of a batch that an earlier
    /// process had begun to send.
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

    /// The log grew.
    pub fn appended(&mut self, end: u64) {
        self.end = self.end.max(end);
    }

    /// The log gave up everything before `first`; how many events this receiver misses.
    pub fn lost_before(&mut self, first: u64) -> u64 {
        let missed = first.saturating_sub(self.done);
        if missed > 0 && !self.is_sending {
            self.done = first;
            self.closed = self.closed.filter(|end| *end > first);
            return missed;
        }
        0
    }

    /// What to send now. [`Self::finished`] must follow before there is another one.
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

    /// The batch was received, or not.
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

    /// From now on nothing waits: the process ends.
    pub fn flush(&mut self) {
        self.is_flushing = true;
    }

    /// When to poll again if nothing happens until then.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        if self.is_sending || self.end == self.done {
            return None;
        }
        Some(self.retry_at.unwrap_or(self.last_sent + self.push_every))
    }

    /// Everything before this position is received.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Events not yet received.
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
    fn a_batch_is_closed_at_its_size() {
        let mut batches = fresh();
        batches.appended(2);
        assert_eq!(batches.poll(at(1)), None, "two events complete nothing");
        batches.flush();
        assert_eq!(batches.poll(at(1)), Some(0..2), "but they end as one batch");
        let mut batches = fresh();
        batches.appended(9);
        for batch in [0..3, 3..6, 6..9] {
            assert_eq!(batches.poll(at(1)), Some(batch));
            assert_eq!(batches.poll(at(1)), None, "one at a time");
            batches.finished(at(1), true);
        }
        assert_eq!((batches.poll(at(1)), batches.waiting()), (None, 0));
    }

    #[test]
    fn a_batch_is_closed_after_a_while() {
        let mut batches = fresh();
        batches.appended(1);
        assert_eq!(batches.poll(at(29)), None);
        assert_eq!(batches.deadline(), Some(at(30)));
        assert_eq!(batches.poll(at(30)), Some(0..1));
    }

    #[test]
    fn a_failed_batch_comes_again_unchanged_and_by_itself() {
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
    fn a_batch_of_an_earlier_process_keeps_its_bounds() {
        let mut batches = Batches::new(at(0), 3, PUSH, 4..20, Some(6));
        assert_eq!(batches.poll(at(0)), Some(4..6));
        batches.finished(at(0), true);
        assert_eq!(batches.poll(at(0)), Some(6..9));
        // Bounds that cannot be are not believed.
        let mut batches = Batches::new(at(0), 3, PUSH, 4..20, Some(21));
        assert_eq!(batches.poll(at(0)), Some(4..7));
    }

    #[test]
    fn what_the_log_gave_up_is_counted() {
        let mut batches = Batches::new(at(0), 3, PUSH, 4..20, None);
        assert_eq!((batches.lost_before(4), batches.lost_before(7)), (0, 3));
        assert_eq!(batches.poll(at(0)), Some(7..10));
        assert_eq!(batches.lost_before(9), 0, "not what is being sent");
    }
}
