//! When the runners of a migration query QEMU, and when they give up.

use protocol::time::{Span, Timestamp};
use serde::Serialize;

/// Pause between two queries during a migration. QEMU sends an event when the status changes.
pub(super) const LOOK_EVERY: Span = Span::from_millis(100);
/// Pause between two queries when no change is expected.
pub(super) const LOOK_IDLE: Span = Span::from_secs(5);
/// Attempts at a command before its failure is final.
const TRIES: u32 = 5;

/// Schedule of the queries, and the number of consecutive failures.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Pacer {
    pub(super) busy: bool,
    /// A query has answered, and no decision followed yet.
    pub(super) fresh: bool,
    pub(super) look_at: Timestamp,
    pub(super) failed: u32,
}

impl Pacer {
    /// A query has answered: a decision is due.
    pub(super) fn saw(&mut self, now: Timestamp) {
        (self.busy, self.fresh, self.look_at) = (false, true, now);
    }

    /// An event hastens the next query.
    pub(super) fn hint(&mut self, now: Timestamp) {
        self.look_at = self.look_at.min(now);
    }

    /// Nothing in progress will be answered.
    pub(super) fn disconnected(&mut self) {
        (self.busy, self.fresh) = (false, false);
    }

    /// A command was carried out, so the last answer is out of date.
    pub(super) fn did(&mut self, now: Timestamp) {
        (self.busy, self.fresh, self.look_at) = (false, false, now);
    }

    /// Nothing is due before the next query.
    pub(super) fn wait(&mut self, now: Timestamp, pause: Span) {
        (self.fresh, self.look_at) = (false, now + pause);
    }

    /// A command failed. Returns whether that is final.
    pub(super) fn fail(&mut self, now: Timestamp) -> bool {
        self.fresh = false;
        self.failed = self.failed.saturating_add(1);
        self.look_at = now + Span(LOOK_EVERY.0 << self.failed.min(4));
        self.failed >= TRIES
    }
}
