//! Why a request to the API server failed.

use std::time::Duration;

use daemon_kit::chain;
use kube::core::request;

use crate::core::Refusal;
use crate::shell::certificate::CertificateError;
use crate::shell::decode::DecodeError;
use crate::shell::secret::KeyError;

/// A request that takes longer has failed.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A request to the API server that did not work.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The request could not be built.
    #[error("failed to build a request to the API server")]
    Build(#[source] request::Error),
    /// The server refused, or was not reached.
    #[error("request to the API server failed")]
    Kube(#[source] Box<kube::Error>),
    /// The API server did not respond within the timeout.
    #[error("no response from the API server within {REQUEST_TIMEOUT:?}")]
    Timeout,
    /// The response is not the object.
    #[error("malformed response from the API server")]
    Decode(#[source] DecodeError),
    /// A key pair or a certificate could not be made.
    #[error("failed to make a secret of the VM")]
    Key(#[source] KeyError),
    /// A step to the guest's certificate failed.
    #[error("failed to make the guest's certificate")]
    Certificate(#[source] CertificateError),
}

impl ApiError {
    /// The HTTP status of a refusal.
    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Self::Kube(error) => match error.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the API server was unreachable or overloaded, so that the same request may work
    /// later. Other errors need a change by a person.
    pub(crate) fn is_away(&self) -> bool {
        match self {
            Self::Timeout => true,
            Self::Kube(error) => match error.as_ref() {
                kube::Error::Api(status) => status.code >= 500 || status.code == 429,
                kube::Error::HyperError(_) | kube::Error::Service(_) => true,
                _ => false,
            },
            _ => false,
        }
    }

    pub(crate) fn refusal(&self) -> Refusal {
        let code = self.code();
        let message = match self {
            Self::Kube(error) => match error.as_ref() {
                kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
                other => chain(other),
            },
            other => chain(other),
        };
        let permanent = code.is_some_and(|code| (400..500).contains(&code) && code != 429);
        Refusal::Failed { message, permanent }
    }
}
