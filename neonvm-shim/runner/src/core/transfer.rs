//! A guest's move from one QEMU to another: what the two sides' runners decide
//! ([`protocol::migration`] says what they are told and tell).
//!
//! * *Same shape.* The target is built from a [`Manifest`] taken when nothing of the source changes
//!   any more: the command line of the source's start, its machine type by version, and the CPUs
//!   plugged since. What virtio-mem has plugged comes with the stream.
//! * *One running guest.* The target is started stopped, and its disk is taken up by `begin` alone.
//!   The source does not go on by itself once all was sent; it does when it is recalled.
//! * *Level-triggered.* Both sides look at what QEMU says and act on that, so a runner that starts
//!   anew in the middle goes on.

mod incoming;
mod manifest;
mod outgoing;

use protocol::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};

pub use incoming::{Incoming, IncomingAction};
pub use manifest::{Arrival, Disk, DriveThere, Manifest, PluggedCpu, Unfit, version};
pub use outgoing::{Leaving, Outgoing, OutgoingAction};

/// Pause between two looks while something goes on; QEMU tells by an event when the status changes.
pub(super) const LOOK_EVERY: Span = Span::from_millis(100);
/// Pause between two looks when nothing is expected.
pub(super) const LOOK_IDLE: Span = Span::from_secs(5);
/// Tries at a command before it counts as refused for good.
pub(super) const TRIES: u32 = 5;

/// What a look at QEMU found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct View {
    /// `query-migrate`: `none` before the first one.
    pub migration: String,
    /// `error-desc` of it.
    pub error: Option<String>,
    /// Status from QEMU's `query-status`.
    pub run: String,
    /// The copy of the disk, if there is one: whether it has caught up.
    pub copy: Option<bool>,
    /// Progress of the migration, as the runner's state shows it.
    pub progress: protocol::migration::Progress,
}

/// A time for the next look, and how often in a row something failed.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Pacer {
    pub(super) busy: bool,
    /// QEMU was looked at and nothing was decided by it yet.
    pub(super) fresh: bool,
    pub(super) look_at: Timestamp,
    pub(super) failed: u32,
}

impl Pacer {
    /// It was looked at: to be decided by at once.
    pub(super) fn saw(&mut self, now: Timestamp) {
        (self.busy, self.fresh, self.look_at) = (false, true, now);
    }

    /// Something was done: what was seen before says nothing about now.
    pub(super) fn did(&mut self, now: Timestamp) {
        (self.busy, self.fresh, self.look_at) = (false, false, now);
    }

    /// Nothing is to be done before the next look.
    pub(super) fn wait(&mut self, now: Timestamp, pause: Span) {
        (self.fresh, self.look_at) = (false, now + pause);
    }

    /// It failed; whether that is final.
    pub(super) fn fail(&mut self, now: Timestamp) -> bool {
        self.fresh = false;
        self.failed = self.failed.saturating_add(1);
        self.look_at = now + Span(LOOK_EVERY.0 << self.failed.min(4));
        self.failed >= TRIES
    }
}

#[cfg(test)]
mod tests;
