//! The ledger of one machine: its units, and those that its own VM and its members of the set have.
//!
//! No unit is promised twice: each machine promises its own units alone, and what is promised is
//! never more than what it has.

use crate::rng::Rng;

/// Units of each machine.
const UNITS: u32 = 12;
/// Most units that a machine's own VM wants. The members have room beside it.
const LOAD_MAX: u64 = 5;
/// One step in so many changes what a VM wants.
const CHANGES_EACH: u64 = 10;

/// What a machine's VM wants now. `None` while it wants what it has.
pub(super) fn next_load(rng: &mut Rng) -> Option<u32> {
    let changes = rng.below(CHANGES_EACH) == 0;
    let units = 1 + rng.below(LOAD_MAX);
    changes.then(|| u32::try_from(units).unwrap_or(1))
}

/// Units that are promised. A member has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ledger {
    own: u32,
    /// Members that run.
    pub(super) members: u32,
    /// Number of times that the own VM has grown.
    pub(super) grown: u32,
}

impl Default for Ledger {
    /// The own VM has its least size.
    fn default() -> Self {
        Self {
            own: 1,
            members: 0,
            grown: 0,
        }
    }
}

impl Ledger {
    /// Whether the own VM has room for all that it may want beside the members.
    pub(super) fn has_room(self) -> bool {
        u64::from(UNITS.saturating_sub(self.members)) >= LOAD_MAX
    }

    pub(super) fn free(self) -> u32 {
        UNITS.saturating_sub(self.own).saturating_sub(self.members)
    }

    /// Gives the own VM what it wants, as far as there is room.
    pub(super) fn size(&mut self, wanted: u32) {
        let units = wanted.min(self.own + self.free());
        self.grown += u32::from(units > self.own);
        self.own = units;
    }

    /// Runs as many of the members as there is room for.
    pub(super) fn start_members(&mut self, count: u32) {
        self.members = count.min(self.members + self.free());
    }

    /// Runs all members, whether there is room or not.
    pub(super) fn force_members(&mut self, count: u32) {
        self.members = count;
    }

    pub(super) fn check(self) -> Result<(), String> {
        let promised = self.own + self.members;
        if promised <= UNITS {
            return Ok(());
        }
        Err(format!("{promised} of {UNITS} units are promised"))
    }
}
