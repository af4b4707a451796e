//! Orders to a part's own process, on a Unix socket inside the guest.

use serde::{Deserialize, Serialize};

/// Path of the answer about the process itself.
pub const SELF: &str = "/v1/self";
/// Path of the order to execute another program in the same process.
pub const EXEC: &str = "/v1/exec";

/// Answer of `GET` [`SELF`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartSelf {
    /// Release of the program, a semantic version.
    pub version: String,
    /// SHA-256 of the program's file when the process began, lower-case hex.
    pub sha256: String,
    /// Process id in the guest.
    pub pid: u32,
    /// Times that the process has executed another program since it began.
    pub execs: u64,
    /// Whether an agent is connected.
    pub agent_connected: bool,
    /// Resident memory, bytes.
    pub resident_bytes: u64,
}

/// Body of `POST` [`EXEC`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// Absolute path of the program.
    pub path: String,
    /// SHA-256 that the file must have, lower-case hex.
    pub sha256: String,
}
