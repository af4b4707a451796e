//! Refusals of orders, each with the status of its response.

use protocol::parts::PROGRAM_BYTES;

/// Why an order is refused. The text names the rule and the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A member of the request is malformed.
    #[error("{field}: {rule}")]
    Malformed {
        /// Name of the member.
        field: &'static str,
        /// What it must be.
        rule: &'static str,
    },
    /// A program of the part is on trial.
    #[error("{0} is on trial under another order: keep it or take it back first")]
    OnTrial(String),
    /// The token's order was for another program.
    #[error("token {0} was given for another program: take a new token")]
    OtherProgram(String),
    /// The part cannot change now.
    #[error("busy: {0}")]
    Busy(String),
    /// A newer order was seen.
    #[error("epoch {given} is lower than {known}, which an earlier order had")]
    Epoch {
        /// Epoch of the order.
        given: u64,
        /// Highest epoch of an earlier order.
        known: u64,
    },
    /// There is no program that this order could act on.
    #[error("no program was brought under token {0}: send it with PUT first")]
    NothingStaged(String),
    /// The program on trial has been taken back.
    #[error("the program of token {0} has gone back already{1}")]
    GoneBack(String, String),
    /// The program was kept, so its token acts no more.
    #[error("the program of token {0} is kept: going back takes a new token")]
    Kept(String),
    /// The body is too long.
    #[error("the program is longer than {PROGRAM_BYTES} bytes")]
    TooLong,
    /// The program is not what the request says, or cannot run here.
    #[error("{0}")]
    Unfit(String),
    /// The disk has no room.
    #[error("{free} bytes are free in the guest, and a program of {bytes} needs twice its size")]
    NoRoom {
        /// Bytes that the file system of the parts has left.
        free: u64,
        /// Size of the program.
        bytes: u64,
    },
}

impl Refusal {
    /// Status of the response.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::Malformed { .. } => 400,
            Self::NothingStaged(_) => 404,
            Self::OnTrial(_) | Self::OtherProgram(_) | Self::Busy(_) => 409,
            Self::GoneBack(..) | Self::Kept(_) => 410,
            Self::Epoch { .. } => 412,
            Self::TooLong => 413,
            Self::Unfit(_) => 422,
            Self::NoRoom { .. } => 507,
        }
    }
}
