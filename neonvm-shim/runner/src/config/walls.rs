//! How QEMU is kept from the machine that it runs on. One machine only: in a cluster the pod's
//! container does that.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The walls that the node driver asks for. What a runner made of them is in its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Walls {
    /// User and group of QEMU and of its network process, used by no other VM. `None` leaves them
    /// with the runner's own user, which is not root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// The program `passt`, which connects the guest.
    pub passt: PathBuf,
    /// Whether the guest may open connections. Without it only its own ports are served.
    pub outside: bool,
}
