//! State of the scheduler's processes: one without a Lease, or two replicas that hold one in turn
//! ([`crate::election`]).

mod actions;
mod process;
mod watches;

use std::collections::BTreeMap;

use protocol::permit::AgentRequest;
use protocol::time::Timestamp;
use scheduler::core::Core;
use scheduler::core::event::RequestId;

use crate::election::Election;

/// Counts of those that began to lead: with what they knew already, and with lists.
pub(crate) const TAKEN_WARM: &str = "lead taken over warm";
pub(crate) const TAKEN_COLD: &str = "lead taken over with lists";

/// One replica's process, with the permit requests it has not answered.
#[derive(Default)]
pub struct SchedulerPart {
    /// The shipped core, while it runs.
    pub core: Option<Core>,
    /// Number of the replica's process. Each start raises it.
    pub epoch: u64,
    /// When to wake up.
    pub alarm: Option<Timestamp>,
    /// Its part in the election, if there is another replica.
    pub(crate) election: Option<Election>,
    /// Lists were asked for since it was last ready.
    pub(crate) lists: bool,
    was_ready: bool,
    requests: BTreeMap<RequestId, (u64, AgentRequest)>,
    last_request: RequestId,
}

impl SchedulerPart {
    /// Whether it has its lists.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.core.as_ref().is_some_and(Core::is_ready)
    }

    /// Whether its server takes requests.
    #[must_use]
    pub fn serves(&self) -> bool {
        let retires = self.election.as_ref().is_some_and(Election::retires);
        self.core.is_some() && !retires
    }
}
