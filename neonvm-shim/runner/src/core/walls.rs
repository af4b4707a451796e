//! Isolation of a guest's processes on one machine, and its state.

use serde::{Deserialize, Serialize};

/// One kind of isolation between QEMU and the machine. Its name in a record is the variant in snake
/// case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wall {
    /// passt connects the guest: it reaches no loopback address of the machine.
    Passt,
    /// QEMU runs as a user of the VM's own.
    User,
    /// QEMU has an empty network namespace and sees no process of the machine.
    Namespaces,
    /// QEMU sees its own files and its images, nothing else.
    Files,
    /// A cgroup bounds QEMU's memory and processes.
    Memory,
}

impl Wall {
    /// All walls, in the order of `bellows status`.
    pub const ALL: [Self; 5] = [
        Self::Passt,
        Self::User,
        Self::Namespaces,
        Self::Files,
        Self::Memory,
    ];

    /// Name in the output of `bellows status`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Passt => "guest's network",
            Self::User => "QEMU's user",
            Self::Namespaces => "QEMU's namespaces",
            Self::Files => "QEMU's files",
            Self::Memory => "QEMU's memory",
        }
    }
}

/// Whether a wall stands, as its runner recorded it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WallState {
    /// The wall of this state.
    pub wall: Wall,
    /// Why the wall does not stand. `None` if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

impl WallState {
    /// State of a wall that stands.
    #[must_use]
    pub fn stands(wall: Wall) -> Self {
        Self {
            wall,
            missing: None,
        }
    }

    /// State of a wall that does not stand, with the reason.
    #[must_use]
    pub fn missing(wall: Wall, why: impl Into<String>) -> Self {
        Self {
            wall,
            missing: Some(why.into()),
        }
    }
}
