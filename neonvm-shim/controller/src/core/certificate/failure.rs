//! Why a guest has no certificate, or none that is good, as data.

use std::fmt;

use protocol::time::WallTime;
use serde::Serialize;

/// Why there is no certificate, or no new one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "trouble", rename_all = "snake_case")]
pub enum CertificateFailure {
    /// The issuer takes its time.
    Awaited {
        /// Name of the ClusterIssuer.
        issuer: String,
        /// Message of the issuer; empty if there is none.
        message: String,
    },
    /// The issuer refuses to issue the certificate.
    Refused {
        /// Name of the ClusterIssuer.
        issuer: String,
        /// Reason of the refusal: `Denied`, `Failed` or `InvalidRequest`.
        reason: &'static str,
        /// Message of the condition that refuses, cut to a bounded length.
        message: String,
    },
    /// The issued certificate is not fit for use.
    Unfit {
        /// Name of the ClusterIssuer.
        issuer: String,
        /// Why the certificate is unfit.
        why: Unfit,
    },
    /// The guest's certificate is past its end, and the next is not there.
    Expired {
        /// The `notAfter` of the certificate that the guest has.
        since: WallTime,
    },
    /// An object with a needed name belongs to another owner.
    Taken {
        /// Kind of the object: `secret` or `CertificateRequest`.
        kind: &'static str,
    },
}

/// Why a certificate is not fit for use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Unfit {
    /// The certificate or its key is unreadable.
    Unreadable {
        /// Error of the parser, or that the request holds no certificate.
        message: String,
    },
    /// It is for another key.
    OtherKey,
    /// It is for other names.
    OtherName {
        /// The one it should bear.
        wanted: String,
    },
    /// The certificate had already expired when the controller read it.
    Expired {
        /// The `notAfter` of the certificate, not later than now.
        at: WallTime,
    },
    /// The one that it should take the place of, which is due, is good for as long.
    NoLonger {
        /// Until when it is good.
        at: WallTime,
    },
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { message } => write!(f, "it cannot be read: {message}"),
            Self::OtherKey => f.write_str("it does not belong to the key"),
            Self::OtherName { wanted } => write!(f, "it is not for {wanted}"),
            Self::Expired { at } => write!(f, "it expired at {at}"),
            Self::NoLonger { at } => {
                write!(
                    f,
                    "it ends at {at}, no later than the certificate that it replaces"
                )
            }
        }
    }
}

impl fmt::Display for CertificateFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Awaited { issuer, message } if message.is_empty() => {
                write!(f, "no certificate from ClusterIssuer {issuer} yet")
            }
            Self::Awaited { issuer, message } => {
                write!(
                    f,
                    "no certificate from ClusterIssuer {issuer} yet: {message}"
                )
            }
            Self::Refused {
                issuer,
                reason,
                message,
            } => write!(
                f,
                "ClusterIssuer {issuer} refused the certificate ({reason}): {message}"
            ),
            Self::Unfit { issuer, why } => {
                write!(
                    f,
                    "the certificate from ClusterIssuer {issuer} is unusable: {why}"
                )
            }
            Self::Expired { since } => {
                write!(f, "the guest's certificate expired at {since}")
            }
            Self::Taken { kind } => {
                write!(f, "the {kind} for the certificate belongs to another owner")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn awaited_certificate_is_told_with_the_message_of_its_issuer() {
        let text = |message: &str| {
            let awaited = CertificateFailure::Awaited {
                issuer: "ca".into(),
                message: message.into(),
            };
            awaited.to_string()
        };
        assert_eq!(text(""), "no certificate from ClusterIssuer ca yet");
        assert_eq!(
            text("not ready"),
            "no certificate from ClusterIssuer ca yet: not ready"
        );
    }
}
