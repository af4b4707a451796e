//! The Lease that two replicas of the scheduler hold in turn, with the shipped election. What the
//! shells do between core and wire is repeated here: `leader-election/src/shell` and
//! `scheduler/src/shell/driver.rs`. A replica that receives SIGTERM hands over. A killed one does
//! not.

mod lease;
mod replicas;

use protocol::time::{Span, Timestamp};
use scheduler::core::elect::{Elector, LeaseState, LeaseWrite};

/// How long a Lease is respected after a renewal (`--lease-seconds`).
pub(crate) const LEASE_LASTS: Span = Span::from_secs(8);
/// Longer than a call of the last leader can take: the patience with one, and how late it can land
/// (`scheduler/src/args.rs`).
pub(crate) const SETTLE: Span = Span::from_secs(2);
/// How long a process that ends waits for its watches to show what it did
/// (`scheduler/src/shell/driver.rs`).
pub(crate) const SHOW_OWN: Span = Span::from_secs(1);
/// How long it waits for what is under way, and then for the Lease to be given up
/// (`scheduler/src/shell.rs`).
pub(crate) const HAND_OVER: Span = Span::from_secs(3);
/// What is counted when a leader is told to end.
pub(crate) const HANDED_OVER: &str = "scheduler told to end";

/// A call about the Lease.
#[derive(Debug, Clone)]
pub(crate) enum LeaseCall {
    Read,
    /// Makes or replaces it.
    Write(LeaseWrite),
}

/// How such a call ended.
#[derive(Debug, Clone)]
pub(crate) enum LeaseResponse {
    /// It was read; nothing: there is none.
    Read(Option<LeaseState>),
    /// It was written, and is this now.
    Written(LeaseState),
    /// It was refused, or nothing was heard.
    Failed,
}

/// A replica's part in the election.
pub(crate) struct Election {
    elector: Elector,
    /// When to wake up.
    pub(crate) alarm: Option<Timestamp>,
    /// The call under way.
    flight: Option<u64>,
    /// No state is told before one that was sent earlier.
    told: Timestamp,
    /// When it was told to end.
    retires: Option<Timestamp>,
    /// When it began to give the Lease up.
    leaves: Option<Timestamp>,
}

impl Election {
    /// Whether its process is ending.
    pub(crate) const fn retires(&self) -> bool {
        self.retires.is_some()
    }
}
