//! The core's state as data, for `/debug/state` and metrics.

use std::collections::BTreeSet;

use protocol::monitor::Version;
use protocol::monitor_v2::Capabilities;
use protocol::units::Bytes;
use serde::Serialize;

use super::cache::CacheState;
use super::counters::Counters;
use super::event::{ConnectionId, Seen};
use super::files::{OomCounts, ReadFailure};
use super::growth_request::GrowthRequest;
use super::setup::Setup;

/// The state for people and tools: `/debug/state`, metrics. Never used for decisions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StateDump {
    /// Configuration of this process; it does not change while the process runs.
    pub setup: Setup,
    /// The agent being served.
    pub connection: Option<ConnectionId>,
    /// The version spoken with it.
    pub version: Option<Version>,
    /// What may be added to its frames.
    pub capabilities: Capabilities,
    /// What the guest sees of its size, as far as it was looked at.
    pub seen: Seen,
    /// The id of the next own transaction.
    pub next_id: Option<u64>,
    /// The use at which more memory is asked for.
    pub threshold: Option<Bytes>,
    /// The size the threshold was taken from.
    pub total: Option<Bytes>,
    /// The newest readings, oldest first.
    pub samples: Vec<Bytes>,
    /// Mean of `samples`, compared with the threshold; `None` without a sample.
    pub mean: Option<Bytes>,
    /// Age of the newest reading, milliseconds.
    pub sample_age_ms: Option<u64>,
    /// The most that was in use lately.
    pub peak: Option<Bytes>,
    /// What the group needs, by estimate.
    pub working_set: Option<Bytes>,
    /// The newest bound on use: `memory.current`, with its page cache.
    pub bound: Option<Bytes>,
    /// How fast use climbs, bytes a second.
    pub climb: u64,
    /// Time from asking for growth to having it, as learned, milliseconds.
    pub lead_ms: u64,
    /// When memory is looked at next, milliseconds from now.
    pub next_look_ms: Option<u64>,
    /// The newest request for growth.
    pub asked: Option<GrowthRequest>,
    /// Signals of the kernel's that are listened to.
    pub signals: BTreeSet<String>,
    /// Out-of-memory counts of the watched group.
    pub oom: Option<OomCounts>,
    /// Why the newest attempt to read failed, if it did.
    pub read_failure: Option<ReadFailure>,
    /// The file cache.
    pub file_cache: CacheState,
    /// Requests not yet answered.
    pub waiting: usize,
    /// What was done so far.
    pub counters: Counters,
}
