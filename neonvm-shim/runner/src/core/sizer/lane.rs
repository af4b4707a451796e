//! Schedule of one lane: its looks and its retries.

use protocol::time::{Span, Timestamp};
use serde::Serialize;

use super::parts::QmpFailure;

/// First pause between two looks while something is expected.
const LOOK_FIRST: Span = Span::from_millis(5);
/// Longest pause within [`LOOK_BRISK`].
const LOOK_STEP: Span = Span::from_millis(25);
/// Pause while an event of QEMU is expected: a look stalls a busy guest, and only makes up for a
/// lost event.
const LOOK_TOLD: Span = Span::from_millis(100);
/// How long looks follow quickly.
const LOOK_BRISK: Span = Span::from_secs(2);
/// Pause when no change is expected: the longest time that a change without an event stays
/// unnoticed.
const LOOK_IDLE: Span = Span::from_secs(5);
/// First pause after a refused command; doubles up to [`RETRY_MOST`].
const RETRY_FIRST: Span = Span::from_millis(250);
/// Longest pause after a refused command.
const RETRY_MOST: Span = Span::from_secs(5);
pub(super) const LOOK_SLOW: Span = Span::from_secs(1);

/// A lane: at most one command in progress, a time for the next look, a growing pause.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Lane {
    pub(super) busy: bool,
    pub(super) look_at: Timestamp,
    pause: Span,
    step: Span,
    brisk_until: Timestamp,
    pub(super) failure: Option<QmpFailure>,
    retry: Span,
}

impl Lane {
    /// A change is expected from now on.
    pub(super) fn expect(&mut self, now: Timestamp) {
        (self.pause, self.step) = (LOOK_FIRST, LOOK_STEP);
        self.brisk_until = now + LOOK_BRISK;
        self.look_at = now;
    }

    /// An event says that there may be a change.
    pub(super) fn hint(&mut self, now: Timestamp) {
        self.look_at = self.look_at.min(now);
    }

    pub(super) fn looks_soon(&self, now: Timestamp) -> bool {
        self.failure.is_none() && now < self.look_at && self.look_at <= now + LOOK_TOLD
    }

    /// A change is expected, and QEMU sends an event at its end.
    pub(super) fn expect_event(&mut self, now: Timestamp) {
        (self.pause, self.step) = (LOOK_TOLD, LOOK_TOLD);
        self.brisk_until = now + LOOK_BRISK;
        self.look_at = now + LOOK_TOLD;
    }

    /// Nothing has changed: schedules the next look.
    pub(super) fn wait(&mut self, now: Timestamp) {
        if now >= self.brisk_until {
            self.pause = LOOK_SLOW;
        }
        self.look_at = now + self.pause;
        let longest = self.step.0.max(LOOK_FIRST.0);
        self.pause = Span((self.pause.0 * 2).clamp(LOOK_FIRST.0, longest));
    }

    pub(super) fn rest(&mut self, now: Timestamp) {
        self.look_at = now + LOOK_IDLE;
    }

    pub(super) fn fail(&mut self, now: Timestamp, failure: QmpFailure) {
        self.failure = Some(failure);
        self.retry = Span((self.retry.0 * 2).clamp(RETRY_FIRST.0, RETRY_MOST.0));
        self.look_at = now + self.retry;
    }

    pub(super) fn succeed(&mut self) {
        self.failure = None;
        self.retry = Span(0);
    }
}
