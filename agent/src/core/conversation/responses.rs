//! Responses of a monitor, and the failures of requests to it.

use protocol::monitor::{Allocation, MonitorBody};
use protocol::monitor_v2::{MonitorBodyV2, RefusalReason, Refused};
use protocol::units::Resources;

use crate::core::{DownscaleResponse, Failure, Refusal};

/// Kind of a request to the monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MonitorRequest {
    /// Notification of a growth.
    Upscale,
    /// Request to approve a smaller size.
    Downscale,
    /// Check that the monitor still answers.
    Health,
    /// Exchange of capabilities, version 2 only.
    Capabilities,
}

/// Longest status text of a monitor that is kept, characters.
const STATUS_CHARS: usize = 300;

/// A monitor's response to a downscale request, with its explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownscaleResult {
    /// Approval or refusal.
    pub response: DownscaleResponse,
    /// Status text of the monitor, at most 300 characters.
    pub status: String,
    /// Rule by which the monitor refused, if it names one.
    pub reason: Option<RefusalReason>,
}

/// A monitor's response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MonitorResponse {
    /// Confirmation of a growth.
    Upscale {
        /// Size that the monitor sees in the guest, if it reports one.
        observed: Option<Resources>,
    },
    /// Approval or refusal of a shrink.
    Downscale(DownscaleResult),
    /// Successful health check.
    Health,
    /// Names of the monitor's capabilities.
    Capabilities(Vec<String>),
}

/// Why a request to the monitor failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MonitorRequestError {
    /// The frame could not be sent.
    #[error("the call could not be sent")]
    NotSent,
    /// No response came in time.
    #[error("the monitor did not answer in time")]
    TimedOut,
    /// The link went down before the response.
    #[error("the connection to the monitor ended")]
    Disconnected,
    /// The monitor reports an internal error.
    #[error("the monitor failed: {0}")]
    Internal(String),
    /// The monitor reports that the request is invalid.
    #[error("the monitor did not understand: {0}")]
    Invalid(String),
    /// The response is malformed.
    #[error("the monitor's answer does not decode")]
    BadResponse,
    /// The response has an unknown type.
    #[error("the monitor's answer has an unknown type")]
    UnknownResponse,
    /// The response belongs to another kind of request.
    #[error("the monitor's answer is of another kind")]
    WrongKind,
}

impl MonitorRequestError {
    /// Whether the monitor may have acted on the request.
    #[must_use]
    pub const fn failure(&self) -> Failure {
        match self {
            Self::NotSent => Failure::NotApplied,
            _ => Failure::Unknown,
        }
    }
}

/// Converts a size of the link. A part of a milli-CPU counts as a whole one. A CPU below zero or
/// NaN counts as zero.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and NaN becomes 0"
)]
pub(super) fn size_of(allocation: Allocation) -> Resources {
    Resources::new((allocation.cpu * 1000.0).ceil() as u32, allocation.mem)
}

/// Reads a frame as a response. A frame that is never a response is of the wrong kind.
pub(super) fn read(body: MonitorBodyV2) -> Result<MonitorResponse, MonitorRequestError> {
    match body {
        MonitorBodyV2::Plain(body) => read_plain(body),
        MonitorBodyV2::Refused(Refused {
            status,
            reason,
            smallest,
            again,
        }) => Ok(MonitorResponse::Downscale(DownscaleResult {
            response: DownscaleResponse::Denied(Refusal {
                smallest: smallest.map(size_of),
                again,
            }),
            status: cut(&status),
            reason: Some(reason),
        })),
        MonitorBodyV2::Confirmed { observed } => Ok(MonitorResponse::Upscale {
            observed: Some(size_of(observed)),
        }),
        MonitorBodyV2::Capabilities { names } => Ok(MonitorResponse::Capabilities(names)),
        MonitorBodyV2::Asked(_) | MonitorBodyV2::Metrics(_) | MonitorBodyV2::ScheduleRequest(_) => {
            Err(MonitorRequestError::WrongKind)
        }
    }
}

fn read_plain(body: MonitorBody) -> Result<MonitorResponse, MonitorRequestError> {
    match body {
        MonitorBody::DownscaleResult { ok, status } => {
            Ok(MonitorResponse::Downscale(DownscaleResult {
                response: if ok {
                    DownscaleResponse::Allowed
                } else {
                    DownscaleResponse::DENIED
                },
                status: cut(&status),
                reason: None,
            }))
        }
        MonitorBody::UpscaleConfirmation => Ok(MonitorResponse::Upscale { observed: None }),
        MonitorBody::HealthCheck => Ok(MonitorResponse::Health),
        MonitorBody::InternalError { error } => Err(MonitorRequestError::Internal(error)),
        MonitorBody::InvalidMessage { error } => Err(MonitorRequestError::Invalid(error)),
        MonitorBody::UpscaleRequest => Err(MonitorRequestError::WrongKind),
    }
}

fn cut(status: &str) -> String {
    status.chars().take(STATUS_CHARS).collect()
}

/// Outcome of `request` with the frame that has its id. A response of another kind is a failure.
pub(super) fn outcome(
    request: MonitorRequest,
    got: Result<MonitorResponse, MonitorRequestError>,
) -> Result<MonitorResponse, MonitorRequestError> {
    let response = got?;
    match (request, &response) {
        (MonitorRequest::Upscale, MonitorResponse::Upscale { .. })
        | (MonitorRequest::Downscale, MonitorResponse::Downscale(_))
        | (MonitorRequest::Health, MonitorResponse::Health)
        | (MonitorRequest::Capabilities, MonitorResponse::Capabilities(_)) => Ok(response),
        _ => Err(MonitorRequestError::WrongKind),
    }
}
