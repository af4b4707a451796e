//! The pace of one lane: when to look, and when to try again.

use protocol::time::{Span, Timestamp};
use serde::Serialize;

use super::parts::QmpFailure;

/// First pause between two looks while something is expected.
const LOOK_FIRST: Span = Span::from_millis(5);
/// Longest such pause within [`LOOK_BRISK`].
const LOOK_STEP: Span = Span::from_millis(25);
/// Pause where QEMU tells by an event: a look only keeps a guest waiting that has work to do, and
/// makes up for a lost event.
const LOOK_TOLD: Span = Span::from_millis(100);
/// How long looks come quickly.
const LOOK_BRISK: Span = Span::from_secs(2);
/// Pause when nothing is expected: the bound on how long a change nobody told of goes unseen.
const LOOK_IDLE: Span = Span::from_secs(5);
/// First pause after a refused command; doubles up to [`RETRY_MOST`].
const RETRY_FIRST: Span = Span::from_millis(250);
/// Longest pause after a refused command.
const RETRY_MOST: Span = Span::from_secs(5);
pub(super) const LOOK_SLOW: Span = Span::from_secs(1);

/// A lane: at most one command under way, a time for the next look, a pause that grows.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Lane {
    pub(super) busy: bool,
    pub(super) look_at: Timestamp,
    pause: Span,
    /// Longest pause within [`LOOK_BRISK`].
    step: Span,
    brisk_until: Timestamp,
    pub(super) failure: Option<QmpFailure>,
    retry: Span,
}

impl Lane {
    /// Something is expected from now on.
    pub(super) fn expect(&mut self, now: Timestamp) {
        (self.pause, self.step) = (LOOK_FIRST, LOOK_STEP);
        self.brisk_until = now + LOOK_BRISK;
        self.look_at = now;
    }

    /// There may be something to see.
    pub(super) fn hint(&mut self, now: Timestamp) {
        self.look_at = self.look_at.min(now);
    }

    /// Whether a look is due soon.
    pub(super) fn looks_soon(&self, now: Timestamp) -> bool {
        self.failure.is_none() && now < self.look_at && self.look_at <= now + LOOK_TOLD
    }

    /// Something is expected that QEMU tells of when it has happened.
    pub(super) fn expect_event(&mut self, now: Timestamp) {
        (self.pause, self.step) = (LOOK_TOLD, LOOK_TOLD);
        self.brisk_until = now + LOOK_BRISK;
        self.look_at = now + LOOK_TOLD;
    }

    /// Nothing new: when to look next.
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
