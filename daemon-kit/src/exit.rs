//! Exit codes, the same in every binary.

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Drained and done.
    Drained = 0,
    /// What was asked about is not so (a command for people only).
    NotSo = 1,
    /// Usage or configuration is wrong; nothing was started.
    Config = 64,
    /// Something it needs was missing at start.
    Dependency = 69,
    /// A defect of ours.
    Bug = 70,
    /// Try again later: a lock is held, a peer is not there yet.
    TryAgain = 75,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
