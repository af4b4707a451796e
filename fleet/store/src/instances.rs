//! Instances of VMs, as they were read for moves to other runners.

use std::collections::BTreeMap;

use protocol::fleet::{RunnerMove, RunnerMoveEnd};
use serde_json::Value;

/// The instance of a VM, as far as its runner goes.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedInstance {
    /// Newest decision to move the guest, carried out or not.
    pub turn: Option<RunnerMove>,
    /// End of a move, or why there is none.
    pub end: Option<RunnerMoveEnd>,
    /// Whether a part of the guest is in a turn.
    pub has_open_turn: bool,
    /// Object as it was read, for a write that holds its version.
    pub(crate) object: Value,
}

/// Instances by namespace and name.
pub type Instances = BTreeMap<(String, String), LoadedInstance>;
