//! Figures that the gate decides by. Agents report them for each hour; the controller adds them up.

use policy_contract::tally::NodeAlarms;
pub use policy_contract::tally::{Evidence, Tally};
use serde::{Deserialize, Serialize};

/// What agents report of a version that decides, newer than an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Alarms {
    /// Most faults in a row about one VM.
    pub faults_in_a_row: u32,
    /// Calls of the last ten minutes.
    pub calls: u64,
    /// Faults among these calls.
    pub faulty_calls: u64,
    /// VMs that ran out of memory while their node had headroom.
    pub out_of_memory: u32,
    /// Deaths of the worker in the last ten minutes.
    pub worker_deaths: u32,
    /// Smallest share of its VMs, percent, that it wanted smaller at once during the last minute.
    pub shrinks_at_once_percent: u32,
}

impl Alarms {
    /// Adds up what agents report. One VM may always shrink, so one alone is no share.
    #[must_use]
    pub fn of<'a>(nodes: impl IntoIterator<Item = &'a NodeAlarms>) -> Self {
        let mut sum = Self::default();
        let (mut deciding, mut shrinking) = (0_u64, 0_u64);
        for node in nodes {
            sum.faults_in_a_row = sum.faults_in_a_row.max(node.faults_in_a_row);
            sum.calls += node.calls;
            sum.faulty_calls += node.faulty_calls;
            sum.out_of_memory = sum.out_of_memory.saturating_add(node.out_of_memory);
            // Each node has workers of its own.
            sum.worker_deaths = sum.worker_deaths.max(node.worker_deaths);
            deciding += u64::from(node.deciding);
            shrinking += u64::from(node.shrinking);
        }
        if shrinking > 1 {
            let percent = 100 * shrinking / deciding.max(1);
            sum.shrinks_at_once_percent = u32::try_from(percent).unwrap_or(u32::MAX);
        }
        sum
    }
}
