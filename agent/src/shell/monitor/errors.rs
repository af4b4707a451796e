//! Failures of requests and links, and their labels.

use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::tls::TlsError;
use crate::core::conversation::{Breach, HandshakeError, MonitorRequest, MonitorRequestError};

/// Longest reason in a close frame, bytes; the protocol's limit.
const CLOSE_REASON_BYTES: usize = 123;

/// The `endpoint` label of the outbound counter.
pub(super) const fn endpoint_of(request: MonitorRequest) -> &'static str {
    match request {
        MonitorRequest::Upscale => "UpscaleNotification",
        MonitorRequest::Downscale => "DownscaleRequest",
        MonitorRequest::Health => "HealthCheck",
        MonitorRequest::Capabilities => "Capabilities",
    }
}

/// The `code` label of the outbound counter.
pub(super) const fn code_of(error: &MonitorRequestError) -> &'static str {
    match error {
        MonitorRequestError::NotSent => "[error: failed to send]",
        MonitorRequestError::TimedOut => "[error: timed out waiting for response]",
        MonitorRequestError::Internal(_) => "[error: vm-monitor internal error]",
        MonitorRequestError::BadResponse => "[error: failed unmarshaling JSON]",
        MonitorRequestError::UnknownResponse => "[error: received unknown message type]",
        MonitorRequestError::Disconnected
        | MonitorRequestError::Invalid(_)
        | MonitorRequestError::WrongKind => "[error: unknown]",
    }
}

/// Why a link ended or could not be made.
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
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("the connection broke")]
    Broken(#[source] Box<WsError>),
    #[error("the monitor closed the connection")]
    Closed,
    #[error("the monitor changes its program")]
    Restarting,
    #[error(transparent)]
    Breach(#[from] Breach),
    #[error("a frame could not be written in time")]
    WriteBlocked,
}

impl Ended {
    /// Whether the monitor exceeded its rate for too long.
    pub(super) const fn is_flood(&self) -> bool {
        matches!(self, Self::Breach(Breach::Flood))
    }

    fn close_code(&self) -> CloseCode {
        match self {
            Self::Cancelled | Self::TaskGone => CloseCode::Normal,
            Self::Handshake(_) => CloseCode::Protocol,
            _ => CloseCode::Error,
        }
    }
}

/// Close frame with the reason for the monitor.
pub(super) fn close_frame(ended: &Ended) -> CloseFrame {
    let mut reason = daemon_kit::chain(ended);
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
