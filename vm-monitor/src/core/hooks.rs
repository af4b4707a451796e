//! Programs of the guest's owner that have a say in a resize: before a shrink they may veto, after
//! a growth they may use what has come.

use protocol::monitor::Allocation;
use protocol::units::Bytes;
use serde::Serialize;

/// When hooks run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HookEvent {
    /// A shrink would be approved; a hook may veto it.
    BeforeShrink,
    /// A growth is there and the file cache has grown; hooks run before it is confirmed.
    AfterGrow,
}

impl HookEvent {
    /// The hook's first argument.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::BeforeShrink => "before-shrink",
            Self::AfterGrow => "after-grow",
        }
    }
}

/// The sizes a hook is told.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HookSizes {
    /// The size the VM will have, or has.
    pub target: Allocation,
    /// What of its memory programs can use.
    pub usable: Bytes,
    /// The usable memory until now, if known.
    pub was_usable: Option<Bytes>,
    /// Memory in use, if known.
    pub used: Option<Bytes>,
}

/// A hook that said no, or did not do what it should.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{name}: {detail}")]
pub struct HookVeto {
    /// The hook's file name.
    pub name: String,
    /// What it said, or how it ended.
    pub detail: String,
}

impl HookVeto {
    /// Longest name and text kept, in characters: they go into a `Status`.
    pub const LIMIT: usize = 200;

    /// A veto with this text.
    #[must_use]
    pub fn new(name: &str, detail: &str) -> Self {
        Self {
            name: name.chars().take(Self::LIMIT).collect(),
            detail: detail.chars().take(Self::LIMIT).collect(),
        }
    }
}
