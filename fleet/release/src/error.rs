//! Why a channel or a release was not read.

use std::error::Error as _;

use tough::TransportErrorKind;
use tough::error::Error as TufError;

use crate::fetch::FetchError;

/// Why a channel or a release was not read. Nothing of it was used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// A file is not there, or its server does not hand it out.
    #[error("{0}")]
    Unavailable(String),
    /// The publisher has not renewed the metadata in time.
    #[error("{0}")]
    Expired(String),
    /// Signatures, hashes, versions or bounds do not hold.
    #[error("{0}")]
    Unverified(String),
    /// A signed document breaks its own rules.
    #[error("{0}")]
    Invalid(String),
    /// The way of trust is not allowed here.
    #[error("{0}")]
    Refused(String),
}

impl ReadError {
    /// The word by which conditions name it.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "Unavailable",
            Self::Expired(_) => "Expired",
            Self::Unverified(_) => "Unverified",
            Self::Invalid(_) => "Invalid",
            Self::Refused(_) => "Refused",
        }
    }
}

impl From<TufError> for ReadError {
    fn from(error: TufError) -> Self {
        let text = chain(&error);
        match &error {
            TufError::ExpiredMetadata { .. } => Self::Expired(text),
            // The folder of the verified metadata, on this machine.
            TufError::DatastoreInit { .. }
            | TufError::DatastoreCreate { .. }
            | TufError::DatastoreOpen { .. }
            | TufError::DatastoreRemove { .. } => Self::Unavailable(text),
            TufError::Transport { source, .. } => {
                if source.kind() == TransportErrorKind::FileNotFound || is_of_fetch(source) {
                    Self::Unavailable(text)
                } else {
                    Self::Unverified(text)
                }
            }
            _ => Self::Unverified(text),
        }
    }
}

impl From<FetchError> for ReadError {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::TooLarge { .. } => Self::Unverified(error.to_string()),
            FetchError::Scheme(_) => Self::Refused(error.to_string()),
            FetchError::NotFound(_) | FetchError::Failed { .. } => {
                Self::Unavailable(error.to_string())
            }
        }
    }
}

/// Whether the server failed, and not a bound or a hash.
fn is_of_fetch(error: &tough::TransportError) -> bool {
    let cause = error
        .source()
        .and_then(|it| it.downcast_ref::<FetchError>());
    matches!(
        cause,
        Some(FetchError::Failed { .. } | FetchError::NotFound(_))
    )
}

/// A failure with its causes, each once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(one) = cause {
        let more = one.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = one.source();
    }
    text
}
