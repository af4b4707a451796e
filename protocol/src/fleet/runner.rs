//! Moves of guests to another runner, as a `FleetInstance` has them.

use serde::{Deserialize, Serialize};

use crate::time::WallTime;

/// Annotation of a `VirtualMachineMigration`: uid of the VM that the fleet moves by it.
pub const KEY_MOVES: &str = "fleet.bellows.dev/moves";

/// A decision to move a guest, written before it is carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunnerMove {
    /// Name of the `VirtualMachineMigration`. Each attempt has another.
    pub migration: String,
    /// `spec.runnerImage` of the VM before. `None`: it named no image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The new runner: its image, or `sha256:HEX` of its program on one machine.
    pub to: String,
    /// Version of the release that has the new runner.
    pub version: String,
    /// Number of the attempt to bring this runner to the VM, from 1.
    pub attempt: u32,
    /// Time of the decision.
    pub since: WallTime,
}

/// How the newest move of a guest ended, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunnerMoveEnd {
    /// Migration of the move. Empty for a guest that is not moved.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub migration: String,
    /// The runner that was to come.
    pub to: String,
    /// How it ended.
    pub result: MoveResult,
    /// Cause, for people. Empty for a good move.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Time of the end.
    pub at: WallTime,
}

/// Result of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoveResult {
    /// The guest runs by the new runner.
    Good,
    /// The guest could not be moved, or did not answer after it.
    Bad,
    /// The move was given up. It says nothing about the new runner.
    Skip,
    /// The guest cannot be moved. It gets the new runner with its next start.
    PendingRestart,
}
