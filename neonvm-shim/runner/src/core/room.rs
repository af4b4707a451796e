//! Whether the node's disk has room for what the guest writes.
//!
//! QEMU stops a guest whose write finds no room on the disk, in a state of its own ([`STOPPED`]),
//! and keeps what was to be written. Told to go on, it writes again, and stops again if there is
//! still none. So nothing is lost, and nobody but the runner has to do anything once there is room.
//!
//! ```text
//! told, or from time to time ─► look ─► stopped by it: told of ─┬─► look ─► still: let it go on, unless it moves ─┐
//!                                                               └──────────────────── a moment later ◄────────────┘
//! ```
//!
//! QEMU's words only hurry a look: what it says of itself counts. A guest that stands still by
//! anything else is left alone.

use protocol::runner::DiskFull;
use protocol::time::{Span, Timestamp, WallTime};

use super::disks::Drive;

/// `query-status` of a guest that QEMU has stopped because a disk of the host is full.
pub const STOPPED: &str = "io-error";
/// Between two attempts to let it go on: long enough to cost nothing, short enough that nobody
/// waits for it who has made room.
pub const AGAIN: Span = Span::from_secs(3);
/// Between two looks when nothing was told: a word of QEMU's may be lost.
pub const LOOK_IDLE: Span = Span::from_secs(30);
/// What the root disk is called where disks have names.
const ROOT_DISK: &str = "rootdisk";

/// What a look found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    /// Status from QEMU's `query-status`; [`STOPPED`] if a disk of the host is full.
    pub run: String,
    /// Ids of the drives whose writes found no room.
    pub without_room: Vec<String>,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoomAction {
    /// See what QEMU says.
    Look,
    /// Let the guest go on.
    GoOn,
}

/// The name of a drive as its VM's spec has it, by its id.
#[must_use]
pub fn disk_name(id: &str) -> String {
    let name = if id == "root" {
        ROOT_DISK
    } else {
        Drive::name_of(id)
    };
    name.to_owned()
}

/// What is known of it.
#[derive(Debug, Clone, Default)]
pub struct Room {
    full: Option<DiskFull>,
    /// QEMU was looked at, and nothing was decided by it yet.
    fresh: bool,
    under_way: Option<RoomAction>,
    /// Something was told since the look under way began.
    hinted: bool,
    due: Timestamp,
}

impl Room {
    /// Since when the guest stands still by it, and for want of room for which disks.
    #[must_use]
    pub fn full(&self) -> Option<&DiskFull> {
        self.full.as_ref()
    }

    /// Whether QEMU was told to let the guest go on, and has not answered.
    #[must_use]
    pub fn is_going_on(&self) -> bool {
        self.under_way == Some(RoomAction::GoOn)
    }

    /// Something was told: look at once. Not while it is known: then the next attempt would come at
    /// once, and make QEMU tell again.
    pub fn hint(&mut self, now: Timestamp) {
        if self.full.is_none() {
            self.due = self.due.min(now);
            self.hinted = true;
        }
    }

    /// The monitor is lost. What is known stands until the next look, which is due as soon as it is
    /// there again.
    pub fn disconnected(&mut self) {
        (self.fresh, self.under_way, self.due) = (false, None, Timestamp(0));
    }

    /// The next thing to do. A guest that moves is not let go on: whoever moves it decides where it
    /// runs.
    pub fn poll_action(&mut self, now: Timestamp, moves: bool) -> Option<RoomAction> {
        if self.under_way.is_some() {
            return None;
        }
        let action = if std::mem::take(&mut self.fresh) && !moves {
            RoomAction::GoOn
        } else if now >= self.due {
            self.hinted = false;
            RoomAction::Look
        } else {
            return None;
        };
        self.under_way = Some(action);
        Some(action)
    }

    /// What a look found; `None` when QEMU did not say.
    pub fn looked(&mut self, now: Timestamp, wall: WallTime, found: Option<&Standing>) {
        self.under_way = None;
        self.due = now + AGAIN;
        let Some(found) = found else { return };
        if found.run != STOPPED {
            self.full = None;
            let hinted = std::mem::take(&mut self.hinted);
            self.due = if hinted { now } else { now + LOOK_IDLE };
            return;
        }
        // The first time it has just failed to write.
        self.fresh = self.full.is_some();
        let mut disks: Vec<String> = found.without_room.iter().map(|id| disk_name(id)).collect();
        let before = self.full.take();
        if let Some(before) = before.as_ref().filter(|_| disks.is_empty()) {
            disks.clone_from(&before.disks);
        }
        self.full = Some(DiskFull {
            since_unix_us: before.map_or(wall.0, |before| before.since_unix_us),
            disks,
        });
    }

    /// The guest was told to go on, or QEMU refused that. Whether it does is seen a moment later.
    pub fn went_on(&mut self, now: Timestamp) {
        (self.under_way, self.fresh, self.due) = (None, false, now + AGAIN);
    }

    /// When to ask again.
    #[must_use]
    pub fn poll_deadline(&self) -> Timestamp {
        if self.under_way.is_some() {
            // Its answer comes by itself.
            return Timestamp(u64::MAX);
        }
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: WallTime = WallTime(1_700_000_000_000_000);

    fn at(s: u64) -> Timestamp {
        Timestamp(0) + Span::from_secs(s)
    }

    fn stands(run: &str, without_room: &[&str]) -> Standing {
        Standing {
            run: run.to_owned(),
            without_room: without_room.iter().map(|id| (*id).to_owned()).collect(),
        }
    }

    /// One look, which must be due.
    fn look(room: &mut Room, now: Timestamp, found: &Standing) {
        assert_eq!(room.poll_action(now, false), Some(RoomAction::Look));
        assert_eq!(room.poll_action(now, false), None, "one at a time");
        room.looked(now, WALL, Some(found));
    }

    fn disks(room: &Room) -> Option<Vec<&str>> {
        let full = room.full()?;
        Some(full.disks.iter().map(String::as_str).collect())
    }

    #[test]
    fn a_guest_without_room_is_told_of_and_let_go_on_every_few_seconds_until_it_does() {
        let mut room = Room::default();
        look(&mut room, at(0), &stands("running", &[]));
        assert_eq!(room.full(), None);
        assert_eq!(room.poll_deadline(), at(30), "looked at now and then");
        room.hint(at(10));
        let full = stands(STOPPED, &["root", "disk-data", "swapdisk"]);
        look(&mut room, at(10), &full);
        assert_eq!(disks(&room), Some(vec!["rootdisk", "data", "swapdisk"]));
        assert_eq!(room.poll_action(at(12), false), None, "it has just failed");
        for s in [13, 16, 19] {
            look(&mut room, at(s), &full);
            assert_eq!(room.poll_action(at(s), false), Some(RoomAction::GoOn));
            assert!(room.is_going_on());
            room.went_on(at(s));
            // It failed again at once, and QEMU says so: that hurries nothing.
            room.hint(at(s));
            assert_eq!(room.poll_action(at(s + 1), false), None);
        }
        let since = room.full().map(|full| full.since_unix_us);
        assert_eq!(since, Some(WALL.0), "since it was first seen");
        look(&mut room, at(22), &stands("running", &[]));
        assert_eq!(room.full(), None, "there is room");
        assert_eq!(room.poll_action(at(22), false), None);
    }

    #[test]
    fn a_guest_that_stands_still_by_anything_else_is_left_alone() {
        let words = "paused finish-migrate postmigrate inmigrate prelaunch shutdown guest-panicked internal-error";
        let mut room = Room::default();
        for (hour, run) in (1..).zip(words.split(' ')) {
            let now = at(hour * 3600);
            look(&mut room, now, &stands(run, &[]));
            assert_eq!(room.full(), None, "{run}");
            assert_eq!(room.poll_action(now, false), None, "{run}");
        }
        // Stopped by somebody after it was told of.
        look(&mut room, at(90_000), &stands(STOPPED, &["root"]));
        look(&mut room, at(90_003), &stands("paused", &[]));
        assert_eq!(room.full(), None);
        assert_eq!(room.poll_action(at(90_004), false), None);
    }

    #[test]
    fn a_guest_that_moves_is_told_of_and_not_let_go_on_until_it_stays() {
        let mut room = Room::default();
        let full = stands(STOPPED, &["root"]);
        look(&mut room, at(0), &full);
        for s in [3, 6, 9] {
            look(&mut room, at(s), &full);
            assert_eq!(room.poll_action(at(s), true), None);
            assert_eq!(disks(&room), Some(vec!["rootdisk"]));
        }
        // What was seen while it moved is not acted on after.
        assert_eq!(room.poll_action(at(11), false), None);
        look(&mut room, at(12), &full);
        assert_eq!(room.poll_action(at(12), false), Some(RoomAction::GoOn));
    }

    #[test]
    fn a_word_that_comes_while_it_is_looked_at_is_not_lost() {
        let mut room = Room::default();
        assert_eq!(room.poll_action(at(0), false), Some(RoomAction::Look));
        // QEMU tells of the failed write before it stops the guest.
        room.hint(at(0));
        room.looked(at(0), WALL, Some(&stands("running", &[])));
        look(&mut room, at(0), &stands(STOPPED, &["root"]));
        assert_eq!(disks(&room), Some(vec!["rootdisk"]));
    }

    #[test]
    fn a_monitor_that_is_lost_is_asked_first_when_it_is_there_again() {
        let mut room = Room::default();
        look(&mut room, at(0), &stands(STOPPED, &["root"]));
        look(&mut room, at(3), &stands(STOPPED, &[]));
        assert_eq!(room.poll_action(at(3), false), Some(RoomAction::GoOn));
        assert_eq!(room.poll_deadline(), Timestamp(u64::MAX));
        room.disconnected();
        assert_eq!(disks(&room), Some(vec!["rootdisk"]), "as far as is known");
        look(&mut room, at(4), &stands("running", &[]));
        assert_eq!(room.full(), None);
        // Without an answer nothing is known to have changed.
        assert_eq!(room.poll_action(at(34), false), Some(RoomAction::Look));
        room.looked(at(34), WALL, None);
        assert_eq!((room.full(), room.poll_deadline()), (None, at(37)));
    }
}
