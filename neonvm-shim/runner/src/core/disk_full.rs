//! Recovers a guest that stopped because a disk of the node is full.
//!
//! QEMU stops a guest whose write finds no space on the disk, in a state of its own ([`STOPPED`]),
//! and keeps the write. When the guest is resumed, QEMU writes again, and stops again if there is
//! still no space. So nothing is lost, and the guest goes on by itself once there is space.
//!
//! ```text
//! event, or every 30 s ─► query ─► stopped by it: report ─┬─► query ─► still: resume, unless it migrates ─┐
//!                                                         └───────────── a moment later ◄───────────────┘
//! ```
//!
//! Events only hasten a query: the status that QEMU returns decides. A guest that is stopped for
//! another reason is left alone.

use protocol::core::Core;
use protocol::runner::DiskFull;
use protocol::time::{Span, Timestamp, WallTime};

use super::disks::Drive;

/// `query-status` of a guest that QEMU has stopped because a disk of the host is full.
pub const STOPPED: &str = "io-error";
/// Pause between two attempts to resume: long enough to cost nothing, short enough for a person who
/// has just freed space.
pub const AGAIN: Span = Span::from_secs(3);
/// Pause between two queries without an event: events of QEMU may be lost.
pub const LOOK_IDLE: Span = Span::from_secs(30);
/// Name of the root disk in messages.
const ROOT_DISK: &str = "rootdisk";

/// Answer of QEMU to [`RecoveryAction::Query`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunStatus {
    /// Status from QEMU's `query-status`; [`STOPPED`] if a disk of the host is full.
    pub run: String,
    /// Ids of the drives whose writes found the disk full.
    pub full_drives: Vec<String>,
}

/// Commands to QEMU, at most one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryAction {
    /// Query the status of guest and drives.
    Query,
    /// Resume the guest, which repeats its failed writes.
    Resume,
}

/// Something that the recovery depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecoveryEvent {
    /// QEMU has stopped the guest, or may have.
    Hint,
    /// The monitor is disconnected. The known state stays until the next query, which is due at
    /// reconnection.
    Disconnected,
    /// Whether the guest migrates. Then it is not resumed, as the migration decides where it runs.
    Migrates(bool),
    /// Result of a query, with the time; `None` if QEMU did not answer.
    Queried(WallTime, Option<RunStatus>),
    /// QEMU has resumed the guest or refused to. The next query shows the effect.
    Resumed,
}

/// Name of a drive in its VM's spec, by its id.
#[must_use]
pub fn disk_name(id: &str) -> String {
    let name = if id == "root" {
        ROOT_DISK
    } else {
        Drive::name_of(id)
    };
    name.to_owned()
}

/// State of one guest's recovery from full disks.
#[derive(Debug, Clone, Default)]
pub struct DiskFullRecovery {
    full: Option<DiskFull>,
    /// A query has answered, and no decision followed yet.
    fresh: bool,
    under_way: Option<RecoveryAction>,
    /// An event arrived since the current query began.
    hinted: bool,
    due: Timestamp,
    migrates: bool,
}

impl DiskFullRecovery {
    /// Since when the guest is stopped by full disks, and by which. `None` if it is not.
    #[must_use]
    pub fn full(&self) -> Option<&DiskFull> {
        self.full.as_ref()
    }

    /// Whether a resume is in progress.
    #[must_use]
    pub fn is_resuming(&self) -> bool {
        self.under_way == Some(RecoveryAction::Resume)
    }

    /// Hastens the next query after an event. Not while the guest is known to be stopped: each
    /// attempt to resume makes QEMU send another event.
    fn hint(&mut self, now: Timestamp) {
        if self.full.is_none() {
            self.due = self.due.min(now);
            self.hinted = true;
        }
    }

    fn queried(&mut self, now: Timestamp, wall: WallTime, found: Option<&RunStatus>) {
        self.under_way = None;
        self.due = now + AGAIN;
        let Some(found) = found else { return };
        if found.run != STOPPED {
            self.full = None;
            let hinted = std::mem::take(&mut self.hinted);
            self.due = if hinted { now } else { now + LOOK_IDLE };
            return;
        }
        // Its first write has just failed.
        self.fresh = self.full.is_some();
        let mut disks: Vec<String> = found.full_drives.iter().map(|id| disk_name(id)).collect();
        let before = self.full.take();
        if let Some(before) = before.as_ref().filter(|_| disks.is_empty()) {
            disks.clone_from(&before.disks);
        }
        self.full = Some(DiskFull {
            since_unix_us: before.map_or(wall.0, |before| before.since_unix_us),
            disks,
        });
    }
}

impl Core for DiskFullRecovery {
    type Time = Timestamp;
    type Event = RecoveryEvent;
    type Action = RecoveryAction;

    fn handle(&mut self, now: Timestamp, event: RecoveryEvent) {
        match event {
            RecoveryEvent::Hint => self.hint(now),
            RecoveryEvent::Disconnected => {
                (self.fresh, self.under_way, self.due) = (false, None, Timestamp(0));
            }
            RecoveryEvent::Migrates(migrates) => self.migrates = migrates,
            RecoveryEvent::Queried(wall, found) => self.queried(now, wall, found.as_ref()),
            RecoveryEvent::Resumed => {
                (self.under_way, self.fresh, self.due) = (None, false, now + AGAIN);
            }
        }
    }

    fn poll_action(&mut self, now: Timestamp) -> Option<RecoveryAction> {
        if self.under_way.is_some() {
            return None;
        }
        let action = if std::mem::take(&mut self.fresh) && !self.migrates {
            RecoveryAction::Resume
        } else if now >= self.due {
            self.hinted = false;
            RecoveryAction::Query
        } else {
            return None;
        };
        self.under_way = Some(action);
        Some(action)
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        // The answer to the action in progress is an event.
        self.under_way.is_none().then_some(self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: WallTime = WallTime(1_700_000_000_000_000);

    fn at(s: u64) -> Timestamp {
        Timestamp(0) + Span::from_secs(s)
    }

    fn stands(run: &str, full_drives: &[&str]) -> RunStatus {
        RunStatus {
            run: run.to_owned(),
            full_drives: full_drives.iter().map(|id| (*id).to_owned()).collect(),
        }
    }

    /// Answers the query that is due.
    fn look(recovery: &mut DiskFullRecovery, now: Timestamp, found: &RunStatus) {
        assert_eq!(recovery.poll_action(now), Some(RecoveryAction::Query));
        assert_eq!(recovery.poll_action(now), None, "one at a time");
        recovery.handle(now, RecoveryEvent::Queried(WALL, Some(found.clone())));
    }

    fn disks(recovery: &DiskFullRecovery) -> Option<Vec<&str>> {
        let full = recovery.full()?;
        Some(full.disks.iter().map(String::as_str).collect())
    }

    #[test]
    fn guest_stopped_by_a_full_disk_is_reported_and_resumed_every_few_seconds() {
        let mut recovery = DiskFullRecovery::default();
        look(&mut recovery, at(0), &stands("running", &[]));
        assert_eq!(recovery.full(), None);
        assert_eq!(
            recovery.poll_deadline(),
            Some(at(30)),
            "looked at now and then"
        );
        recovery.handle(at(10), RecoveryEvent::Hint);
        let full = stands(STOPPED, &["root", "disk-data", "swapdisk"]);
        look(&mut recovery, at(10), &full);
        assert_eq!(disks(&recovery), Some(vec!["rootdisk", "data", "swapdisk"]));
        assert_eq!(recovery.poll_action(at(12)), None, "it has just failed");
        for s in [13, 16, 19] {
            look(&mut recovery, at(s), &full);
            assert_eq!(recovery.poll_action(at(s)), Some(RecoveryAction::Resume));
            assert!(recovery.is_resuming());
            recovery.handle(at(s), RecoveryEvent::Resumed);
            // The write failed again, and QEMU sends an event: it hastens nothing.
            recovery.handle(at(s), RecoveryEvent::Hint);
            assert_eq!(recovery.poll_action(at(s + 1)), None);
        }
        let since = recovery.full().map(|full| full.since_unix_us);
        assert_eq!(since, Some(WALL.0), "since it was first seen");
        look(&mut recovery, at(22), &stands("running", &[]));
        assert_eq!(recovery.full(), None, "there is space");
        assert_eq!(recovery.poll_action(at(22)), None);
    }

    #[test]
    fn guest_stopped_for_another_reason_is_left_alone() {
        let words = "paused finish-migrate postmigrate inmigrate prelaunch shutdown guest-panicked internal-error";
        let mut recovery = DiskFullRecovery::default();
        for (hour, run) in (1..).zip(words.split(' ')) {
            let now = at(hour * 3600);
            look(&mut recovery, now, &stands(run, &[]));
            assert_eq!(recovery.full(), None, "{run}");
            assert_eq!(recovery.poll_action(now), None, "{run}");
        }
        // A person stopped the guest after it was reported.
        look(&mut recovery, at(90_000), &stands(STOPPED, &["root"]));
        look(&mut recovery, at(90_003), &stands("paused", &[]));
        assert_eq!(recovery.full(), None);
        assert_eq!(recovery.poll_action(at(90_004)), None);
    }

    #[test]
    fn migrating_guest_is_reported_and_not_resumed() {
        let mut recovery = DiskFullRecovery::default();
        let full = stands(STOPPED, &["root"]);
        recovery.handle(at(0), RecoveryEvent::Migrates(true));
        look(&mut recovery, at(0), &full);
        for s in [3, 6, 9] {
            look(&mut recovery, at(s), &full);
            assert_eq!(recovery.poll_action(at(s)), None);
            assert_eq!(disks(&recovery), Some(vec!["rootdisk"]));
        }
        recovery.handle(at(9), RecoveryEvent::Migrates(false));
        // A result from the time of a migration has no effect afterwards.
        assert_eq!(recovery.poll_action(at(11)), None);
        look(&mut recovery, at(12), &full);
        assert_eq!(recovery.poll_action(at(12)), Some(RecoveryAction::Resume));
    }

    #[test]
    fn event_during_a_query_is_not_lost() {
        let mut recovery = DiskFullRecovery::default();
        assert_eq!(recovery.poll_action(at(0)), Some(RecoveryAction::Query));
        // QEMU reports the failed write before it stops the guest.
        recovery.handle(at(0), RecoveryEvent::Hint);
        let running = Some(stands("running", &[]));
        recovery.handle(at(0), RecoveryEvent::Queried(WALL, running));
        look(&mut recovery, at(0), &stands(STOPPED, &["root"]));
        assert_eq!(disks(&recovery), Some(vec!["rootdisk"]));
    }

    #[test]
    fn reconnected_monitor_is_queried_first() {
        let mut recovery = DiskFullRecovery::default();
        look(&mut recovery, at(0), &stands(STOPPED, &["root"]));
        look(&mut recovery, at(3), &stands(STOPPED, &[]));
        assert_eq!(recovery.poll_action(at(3)), Some(RecoveryAction::Resume));
        assert_eq!(recovery.poll_deadline(), None);
        recovery.handle(at(6), RecoveryEvent::Disconnected);
        assert_eq!(
            disks(&recovery),
            Some(vec!["rootdisk"]),
            "as far as is known"
        );
        look(&mut recovery, at(4), &stands("running", &[]));
        assert_eq!(recovery.full(), None);
        // Without an answer the state is unchanged.
        assert_eq!(recovery.poll_action(at(34)), Some(RecoveryAction::Query));
        recovery.handle(at(34), RecoveryEvent::Queried(WALL, None));
        assert_eq!(
            (recovery.full(), recovery.poll_deadline()),
            (None, Some(at(37)))
        );
    }
}
