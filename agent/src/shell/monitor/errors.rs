//! How calls and connections fail.

use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::tls::TlsError;
use crate::core::Failure;

/// Longest reason in a close frame, bytes.
const CLOSE_REASON_BYTES: usize = 123;

/// Why a call gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::shell) enum CallError {
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
    pub(in crate::shell) fn failure(&self) -> Failure {
        match self {
            Self::NotSent => Failure::NotApplied,
            _ => Failure::Unknown,
        }
    }

    /// The `code` label of the outbound counter.
    #[must_use]
    pub(in crate::shell) fn code(&self) -> &'static str {
        match self {
            Self::NotSent => "[error: failed to send]",
            Self::TimedOut => "[error: timed out waiting for response]",
            Self::Internal(_) => "[error: vm-monitor internal error]",
            Self::BadAnswer => "[error: failed unmarshaling JSON]",
            Self::UnknownAnswer => "[error: received unknown message type]",
            Self::Disconnected | Self::Invalid(_) | Self::WrongKind => "[error: unknown]",
        }
    }
}

/// Why a connection ended or could not be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error("normal exit")]
    Cancelled,
    #[error("the VM's task has gone")]
    TaskGone,
    #[error("could not connect")]
    Connect(#[source] std::io::Error),
    #[error("could not connect by TLS")]
    Tls(#[from] TlsError),
    #[error("the WebSocket handshake failed")]
    Upgrade(#[source] Box<WsError>),
    #[error("no connection in time")]
    ConnectTimedOut,
    #[error("the monitor refused the protocol: {0}")]
    Refused(String),
    #[error("the monitor chose protocol version {0}, which was not offered")]
    Version(u8),
    #[error("the monitor's first frame does not decode")]
    Handshake,
    #[error("the connection broke")]
    Broken(#[source] Box<WsError>),
    #[error("the monitor closed the connection")]
    Closed,
    #[error("the monitor sent something that is no frame: {0}")]
    NotAFrame(String),
    #[error("a known message of the monitor does not decode: {0}")]
    BadContent(String),
    #[error("a frame could not be written in time")]
    WriteBlocked,
    #[error("no health check succeeded for too long")]
    Unhealthy,
}

impl Ended {
    fn close_code(&self) -> CloseCode {
        match self {
            Self::Cancelled | Self::TaskGone => CloseCode::Normal,
            Self::Refused(_) | Self::Version(_) | Self::Handshake => CloseCode::Protocol,
            _ => CloseCode::Error,
        }
    }
}

/// The frame that tells the monitor why.
pub(super) fn close_frame(ended: &Ended) -> CloseFrame {
    let mut reason = telemetry::chain(ended);
    let mut end = reason.len().min(CLOSE_REASON_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason.truncate(end);
    CloseFrame {
        code: ended.close_code(),
        reason: reason.into(),
    }
}
