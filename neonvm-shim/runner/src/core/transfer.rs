//! Migration of a guest from one QEMU to another: the decisions of the two runners. Their orders
//! and reports are in [`protocol::migration`].
//!
//! * *Same shape.* The target is built from a [`Manifest`] of the source at rest: its command line
//!   at the start, its machine type by version, and the CPUs plugged since. The stream carries the
//!   memory of virtio-mem.
//! * *One running guest.* The target starts stopped, and only `begin` activates its disk. The
//!   source stays stopped once all was sent, unless it is recalled.
//! * *Level-triggered.* Both sides query QEMU and act on the answer, so a runner that restarts in
//!   the middle continues.

mod incoming;
mod manifest;
mod outgoing;

use protocol::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};

pub use incoming::{Incoming, IncomingAction, IncomingEvent};
pub use manifest::{Arrival, Disk, DriveThere, Manifest, PluggedCpu, Unfit, version};
pub use outgoing::{Leaving, Outgoing, OutgoingAction, OutgoingEvent};

/// Pause between two queries during a migration. QEMU sends an event when the status changes.
pub(super) const LOOK_EVERY: Span = Span::from_millis(100);
/// Pause between two queries when no change is expected.
pub(super) const LOOK_IDLE: Span = Span::from_secs(5);
/// Attempts at a command before its failure is final.
pub(super) const TRIES: u32 = 5;

/// Result of a query of QEMU.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct View {
    /// Status from `query-migrate`; `none` before the first migration.
    pub migration: String,
    /// `error-desc` from `query-migrate`, if the migration failed.
    pub error: Option<String>,
    /// Status from `query-status`, such as `running` or `postmigrate`.
    pub run: String,
    /// Whether the copy of the disk is in sync with it. `None` without a copy.
    pub copy: Option<bool>,
    /// Progress of the migration, as the runner's state shows it.
    pub progress: protocol::migration::Progress,
}

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

#[cfg(test)]
mod tests;
