//! Configuration of the core. It does not change while the process runs.

use protocol::time::Span;
use serde::Serialize;

use super::cache::CacheMode;
use super::decision::Watched;
use super::file_cache::Sizing;
use super::memory::Rules;

/// How the monitor is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Setup {
    /// The numbers of the memory rules.
    pub rules: Rules,
    /// The numbers of the file cache's size.
    pub sizing: Sizing,
    /// What is watched.
    pub watched: Watched,
    /// Whether there is a file cache.
    pub file_cache: CacheMode,
    /// Whether there may be hooks to run.
    pub hooks: bool,
    /// Whether the working set is estimated by taking memory from the group.
    pub estimates: bool,
    /// Whether the group is brought down to its new size before a shrink is approved.
    pub squeezes: bool,
    /// Whether the agent is asked for the schedule of upgrades.
    pub asks_schedule: bool,
    /// Time without an agent, or without a schedule that is asked for, after which the monitor
    /// ends, whole seconds. `None`: it stays.
    pub exit_when_alone: Option<Span>,
}
