//! Fault phases and quiescent phases. In a fault phase loads change and components fail. A
//! quiescent phase has neither, and at its end the world must have converged.

mod inject;
mod phases;

use protocol::time::{Span, Timestamp};

use crate::faults::Tally;

/// Number of kinds that `play_fault` draws from. Frequent kinds have two numbers.
pub(crate) const FAULT_KINDS: u64 = 22;
/// Phases of a run. Fault phases and quiescent phases alternate.
#[derive(Debug, Clone, Default)]
pub struct FaultSchedule {
    /// Whether faults happen and loads change.
    pub is_active: bool,
    /// End of the fault phase.
    pub faults_end: Timestamp,
    /// Begin of the quiescent phase.
    pub quiescent_since: Timestamp,
    /// End of the API server's outage.
    pub away_until: Timestamp,
    /// Time at which the last stalled call is carried out.
    pub stalled_until: Timestamp,
    /// Number of quiescent phases at whose end the world had converged.
    pub converged: u64,
    /// Counts of faults when the phase began.
    pub(crate) tally_before: Tally,
    /// Bound of every quiescent phase in place of that of its faults. Set only in tests.
    pub(crate) fixed_bound: Option<Span>,
}

/// Where a fault strikes and for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FaultTarget {
    pub(crate) vm: usize,
    pub(crate) node: usize,
    /// Time until a crashed component starts again.
    pub(crate) short: Span,
    /// End of a fault of a guest or of a watch.
    pub(crate) until: Timestamp,
}

impl FaultSchedule {
    /// Whether the API server gives no responses at `now`.
    #[must_use]
    pub fn api_is_away(&self, now: Timestamp) -> bool {
        now < self.away_until
    }
}
