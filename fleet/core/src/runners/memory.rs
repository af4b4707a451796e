//! What a run remembers of an open move.

use protocol::time::Timestamp;

use super::world::{Guest, Migration};

/// What is remembered of a move beside the objects. A later run begins without it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Memory {
    /// Whether its migration was seen.
    pub was_seen: bool,
    /// Begin of the time in which the moved guest was well.
    pub well_since: Option<Timestamp>,
    /// Time at which the migration was first seen as done.
    pub moved_at: Option<Timestamp>,
    /// Why it cannot go on.
    pub refused: Option<String>,
    /// Why the field cannot be put back.
    pub stays: Option<String>,
}

impl Memory {
    pub(super) fn after(self, guest: &Guest, now: Timestamp) -> Self {
        let is_moved = guest.has_arrived();
        let is_well = is_moved && guest.is_well();
        Self {
            was_seen: self.was_seen || guest.migration != Migration::Absent,
            moved_at: is_moved.then(|| self.moved_at.unwrap_or(now)),
            well_since: is_well.then(|| self.well_since.unwrap_or(now)),
            refused: self.refused,
            stays: self.stays,
        }
    }
}
