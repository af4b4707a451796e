//! Walls around a guest's processes on one machine, and whether they stand.

use serde::{Deserialize, Serialize};

/// Something that keeps QEMU from the machine. The name in a record is the variant in snake case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wall {
    /// The guest is connected by passt: it reaches no loopback address of the machine.
    Passt,
    /// QEMU has a user of the VM's own.
    User,
    /// QEMU has an empty network, and no process of the machine in sight.
    Namespaces,
    /// QEMU sees its own files and its images, nothing else.
    Files,
    /// QEMU's memory and processes are bounded by the kernel.
    Memory,
}

impl Wall {
    /// All of them, in the order in which they are listed.
    pub const ALL: [Self; 5] = [
        Self::Passt,
        Self::User,
        Self::Namespaces,
        Self::Files,
        Self::Memory,
    ];

    /// The name in `bellows status`.
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

/// Whether a wall stands, as its runner made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WallState {
    /// Which one it is of.
    pub wall: Wall,
    /// Why it does not stand; absent when it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

impl WallState {
    /// One that stands.
    #[must_use]
    pub fn stands(wall: Wall) -> Self {
        Self {
            wall,
            missing: None,
        }
    }

    /// One that does not.
    #[must_use]
    pub fn missing(wall: Wall, why: impl Into<String>) -> Self {
        Self {
            wall,
            missing: Some(why.into()),
        }
    }
}
