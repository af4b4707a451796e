//! What comes back under an id, and how a call ends without it.

use protocol::monitor::{Allocation, MonitorBody};
use protocol::monitor_v2::{MonitorBodyV2, RefusalReason, Refused};
use protocol::units::Resources;

use crate::core::{DownscaleAnswer, Failure, Refusal};

/// What was asked under an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// To take note of a growth.
    Upscale,
    /// Whether it may shrink.
    Downscale,
    /// Whether it is well.
    Health,
    /// What it can do, version 2 only.
    Capabilities,
}

/// Longest words of a monitor that are kept, characters.
const WORDS: usize = 300;

/// A monitor's answer to a shrink, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Downscaled {
    /// Yes or no.
    pub answer: DownscaleAnswer,
    /// The monitor's own words, at most 300 characters of them.
    pub status: String,
    /// Why not, where the monitor says so.
    pub reason: Option<RefusalReason>,
}

/// What a monitor answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It has taken note of a growth.
    Upscale {
        /// What the guest is seen to have, where the monitor says so.
        observed: Option<Resources>,
    },
    /// It may shrink, or not.
    Downscale(Downscaled),
    /// It is well.
    Health,
    /// The names of what it will do.
    Capabilities(Vec<String>),
}

/// Why a call gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It never left.
    #[error("the call could not be sent")]
    NotSent,
    /// No answer in time.
    #[error("the monitor did not answer in time")]
    TimedOut,
    /// The connection ended before the answer.
    #[error("the connection to the monitor ended")]
    Disconnected,
    /// The monitor could not handle it.
    #[error("the monitor failed: {0}")]
    Internal(String),
    /// The monitor could not read it.
    #[error("the monitor did not understand: {0}")]
    Invalid(String),
    /// The answer does not decode.
    #[error("the monitor's answer does not decode")]
    BadAnswer,
    /// The answer is of a type nobody knows.
    #[error("the monitor's answer has an unknown type")]
    UnknownAnswer,
    /// The answer is of another kind than the call.
    #[error("the monitor's answer is of another kind")]
    WrongKind,
}

impl CallError {
    /// Whether the monitor may have acted on the call.
    #[must_use]
    pub const fn failure(&self) -> Failure {
        match self {
            Self::NotSent => Failure::NotApplied,
            _ => Failure::Unknown,
        }
    }
}

/// A size as the core has it: a part of a milli-CPU counts as a whole one; what is below zero, or
/// no number, as none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and NaN becomes 0"
)]
pub(super) fn size_of(allocation: Allocation) -> Resources {
    Resources::new((allocation.cpu * 1000.0).ceil() as u32, allocation.mem)
}

/// What a frame says to the call under its id; what answers no call at all is of the wrong kind.
pub(super) fn read(body: MonitorBodyV2) -> Result<Answer, CallError> {
    match body {
        MonitorBodyV2::Plain(body) => read_plain(body),
        MonitorBodyV2::Refused(Refused {
            status,
            reason,
            smallest,
            again,
        }) => Ok(Answer::Downscale(Downscaled {
            answer: DownscaleAnswer::Denied(Refusal {
                smallest: smallest.map(size_of),
                again,
            }),
            status: cut(&status),
            reason: Some(reason),
        })),
        MonitorBodyV2::Confirmed { observed } => Ok(Answer::Upscale {
            observed: Some(size_of(observed)),
        }),
        MonitorBodyV2::Capabilities { names } => Ok(Answer::Capabilities(names)),
        MonitorBodyV2::Asked(_) | MonitorBodyV2::Metrics(_) => Err(CallError::WrongKind),
    }
}

fn read_plain(body: MonitorBody) -> Result<Answer, CallError> {
    match body {
        MonitorBody::DownscaleResult { ok, status } => Ok(Answer::Downscale(Downscaled {
            answer: if ok {
                DownscaleAnswer::Allowed
            } else {
                DownscaleAnswer::DENIED
            },
            status: cut(&status),
            reason: None,
        })),
        MonitorBody::UpscaleConfirmation => Ok(Answer::Upscale { observed: None }),
        MonitorBody::HealthCheck => Ok(Answer::Health),
        MonitorBody::InternalError { error } => Err(CallError::Internal(error)),
        MonitorBody::InvalidMessage { error } => Err(CallError::Invalid(error)),
        MonitorBody::UpscaleRequest => Err(CallError::WrongKind),
    }
}

fn cut(words: &str) -> String {
    words.chars().take(WORDS).collect()
}

/// How a call ends that got this: an answer of another kind is none.
pub(super) fn outcome(ask: Ask, got: Result<Answer, CallError>) -> Result<Answer, CallError> {
    let answer = got?;
    match (ask, &answer) {
        (Ask::Upscale, Answer::Upscale { .. })
        | (Ask::Downscale, Answer::Downscale(_))
        | (Ask::Health, Answer::Health)
        | (Ask::Capabilities, Answer::Capabilities(_)) => Ok(answer),
        _ => Err(CallError::WrongKind),
    }
}
