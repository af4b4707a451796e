//! Why a runner gave no response.

use std::time::Duration;

use daemon_kit::http_client::HttpError;
use hyper::StatusCode;

use super::address::RunnerAddress;
use crate::shell::api::ApiError;

/// Failure of a request to a runner.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The runner's socket or port did not accept a connection.
    #[error("failed to connect to the runner at {peer}")]
    Connect {
        /// Address of the runner.
        peer: RunnerAddress,
        /// Error of the connection attempt.
        #[source]
        source: std::io::Error,
    },
    /// The HTTP connection failed, or the body was too long.
    #[error("HTTP connection to the runner failed")]
    Http(#[source] HttpError),
    /// The runner did not respond within this time.
    #[error("no response from the runner within {0:?}")]
    Timeout(Duration),
    /// The runner refused the order.
    #[error("the runner refused with {status}: {text}")]
    Refused {
        /// Status of the response; any but a success.
        status: StatusCode,
        /// Body of the response, with the reason of the refusal.
        text: String,
    },
    /// The response is not a state.
    #[error("malformed state in the runner's response")]
    Decode(#[source] serde_json::Error),
    /// The secret with the runner's credentials could not be read.
    #[error("failed to read the secret of the VM's runners")]
    Token(#[source] Box<ApiError>),
    /// The TLS handshake failed.
    #[error("TLS handshake with the runner at {peer} failed")]
    Tls {
        /// Address of the runner.
        peer: RunnerAddress,
        /// Error of the TLS handshake.
        #[source]
        source: std::io::Error,
    },
    /// The runner responds in the clear, where TLS is required.
    #[error(
        "the runner at {peer} does not speak TLS: its image is older than this controller, or another \
         program listens there"
    )]
    Clear {
        /// Address of the runner.
        peer: RunnerAddress,
    },
    /// TLS is required, and the VM's secret has no certificate for it.
    #[error(
        "no certificate to recognize the runner at {peer} by: its VM's secret is missing or lacks \
         tls.crt"
    )]
    NoCertificate {
        /// Address of the runner.
        peer: RunnerAddress,
    },
}

impl LinkError {
    /// Whether the same request can never work.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        // The token may have been replaced, and an overtaken order is decided again.
        let passing = [StatusCode::UNAUTHORIZED, StatusCode::PRECONDITION_FAILED];
        matches!(self, Self::Refused { status, .. }
            if status.is_client_error() && !passing.contains(status))
    }
}
