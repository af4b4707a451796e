//! Isolation of QEMU from its machine. Only on one machine: in a cluster the pod's container
//! isolates it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Isolation that the node driver asks for. The runner's record says which walls stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Walls {
    /// User and group of QEMU and of its network process, used by no other VM. `None` leaves them
    /// with the runner's own user, which is not root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// Path of the program `passt`, which connects the guest to the network.
    pub passt: PathBuf,
    /// Whether the guest may open connections. Otherwise only its own ports are served.
    pub outside: bool,
}
