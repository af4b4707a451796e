//! Exit codes, the same in every program.

/// Exit code of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Success, after open work has ended.
    Drained = 0,
    /// The answer to the question is no (a command for people only).
    NotSo = 1,
    /// Usage or configuration is wrong; nothing was started.
    Config = 64,
    /// A dependency was missing at start.
    Dependency = 69,
    /// A defect of the program.
    Bug = 70,
    /// Try again later: a lock is held, or a peer is not available.
    TryAgain = 75,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
