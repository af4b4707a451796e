//! The kernel's own signs of want: stalls (PSI) and out-of-memory events. They are the second
//! witness, for trouble that the readings of use do not show; alone they come late
//! (docs/compatibility/monitor.md §6).

use std::collections::BTreeMap;

use protocol::units::Bytes;
use serde::Serialize;

use super::files::MachineMemory;

/// Whose tasks were stalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Those of the watched group.
    Cgroup,
    /// Any of the machine's.
    Machine,
}

/// How many of the tasks were stalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stall {
    /// At least one waited for memory.
    Some,
    /// All of them waited for memory at once.
    Full,
}

/// A stall the kernel told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Stalled {
    /// Group or machine, by the PSI file whose trigger fired.
    pub scope: Scope,
    /// Line of the PSI file on which the trigger was set, `some` or `full`.
    pub stall: Stall,
    /// The machine's memory right after, if it could be read.
    pub machine: Option<MachineMemory>,
    /// Pages read back until now after they had been evicted while in use: its count is of the same
    /// tasks.
    pub refaults: Option<u64>,
}

/// Refaults, in pages, that tell a working set which no longer fits from page cache that goes
/// round: 4 MiB.
const THRASHING: u64 = 1024;

/// What was read back since the last shrink.
#[derive(Debug, Clone, Default)]
pub struct Refaults {
    /// The count at the first stall after it.
    at_first: BTreeMap<Scope, u64>,
}

impl Refaults {
    /// Whether what was taken by the shrink is missed. Without a count every stall is taken for
    /// that.
    pub(super) fn are_missed(&mut self, stalled: Stalled) -> bool {
        stalled.refaults.is_none_or(|count| {
            let at_first = *self.at_first.entry(stalled.scope).or_insert(count);
            count.saturating_sub(at_first) >= THRASHING
        })
    }

    /// There was a shrink.
    pub(super) fn restart(&mut self) {
        self.at_first.clear();
    }
}

impl Stalled {
    pub(super) const fn label(self) -> &'static str {
        match (self.scope, self.stall) {
            (Scope::Cgroup, Stall::Some) => "cgroup_some",
            (Scope::Cgroup, Stall::Full) => "cgroup_full",
            (Scope::Machine, Stall::Some) => "machine_some",
            (Scope::Machine, Stall::Full) => "machine_full",
        }
    }

    /// Whether these tasks waited because memory is short, not because page cache went round:
    /// either the machine has little left that could be had without swapping, or a good part of the
    /// threshold is in use already.
    pub(super) fn is_want(
        self,
        used: Option<Bytes>,
        threshold: Option<Bytes>,
        reserve_permille: u16,
    ) -> bool {
        let is_short = self.machine.is_some_and(|machine| {
            let reserve = u128::from(machine.total.0) * u128::from(reserve_permille) / 1000;
            u128::from(machine.available.0) < reserve
        });
        // Three quarters, or half where everything stands still.
        let quarters = match self.stall {
            Stall::Some => 3,
            Stall::Full => 2,
        };
        let is_well_used = used
            .zip(threshold)
            .is_some_and(|(used, threshold)| used.0 >= threshold.0 / 4 * quarters);
        is_short || is_well_used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn stalled(stall: Stall, available: u64) -> Stalled {
        let machine = MachineMemory {
            total: Bytes::mib(1000),
            available: Bytes::mib(available),
            cached: Bytes(0),
        };
        Stalled {
            scope: Scope::Cgroup,
            stall,
            machine: Some(machine),
            refaults: None,
        }
    }

    #[test]
    fn n30_page_cache_going_round_is_no_want() {
        let threshold = Some(Bytes::mib(800));
        for (stall, available, used, want) in [
            (Stall::Some, 700, 100, false),
            (Stall::Some, 149, 100, true),
            (Stall::Some, 151, 599, false),
            (Stall::Some, 700, 600, true),
            (Stall::Full, 700, 399, false),
            (Stall::Full, 700, 400, true),
        ] {
            let judged = stalled(stall, available).is_want(Some(Bytes::mib(used)), threshold, 150);
            assert_eq!(judged, want, "{stall:?} {available} {used}");
        }
        let unknown = Stalled {
            machine: None,
            ..stalled(Stall::Full, 0)
        };
        assert!(
            !unknown.is_want(None, threshold, 150),
            "nothing known, nothing asked"
        );
    }
}
