//! The first exchange of a connection: the agent's range of versions, our answer.

use protocol::monitor::{Version, VersionRange, VersionResponse};
use serde::Serialize;

/// The versions this monitor speaks.
pub const SPOKEN: VersionRange = VersionRange::V1_TO_V2;

/// Why a connection did not get past its handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HandshakeFailure {
    /// The first frame was not text.
    NotText,
    /// The first frame was not `{"min":N,"max":N}`.
    NotARange,
    /// The ranges do not meet, or the agent's is empty.
    NoCommonVersion,
    /// It was not ready within the time limit.
    TimedOut,
    /// The peer went away.
    Closed,
    /// Too many connections were shaking hands already.
    TooMany,
    /// What came was no HTTP: TLS to a port without, most likely.
    NotHttp,
    /// The agent showed no token or a wrong one, on a port that asks for one.
    NoToken,
    /// What came was no TLS, on a port that speaks nothing else.
    NotTls,
    /// The agent showed no certificate.
    TlsNoCertificate,
    /// The agent's certificate is not of the authority that was named.
    TlsUntrusted,
    /// The agent's certificate is out of date, or not yet good.
    TlsExpired,
    /// The two sides did not agree on anything, or the agent did not like our certificate.
    TlsFailed,
}

impl HandshakeFailure {
    /// Every kind, for counters.
    pub const ALL: [Self; 13] = [
        Self::NotText,
        Self::NotARange,
        Self::NoCommonVersion,
        Self::TimedOut,
        Self::Closed,
        Self::TooMany,
        Self::NotHttp,
        Self::NoToken,
        Self::NotTls,
        Self::TlsNoCertificate,
        Self::TlsUntrusted,
        Self::TlsExpired,
        Self::TlsFailed,
    ];

    /// The counter's label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::NotText => "not_text",
            Self::NotARange => "not_a_range",
            Self::NoCommonVersion => "no_common_version",
            Self::TimedOut => "timed_out",
            Self::Closed => "closed",
            Self::TooMany => "too_many",
            Self::NotHttp => "not_http",
            Self::NoToken => "no_token",
            Self::NotTls => "not_tls",
            Self::TlsNoCertificate => "tls_no_certificate",
            Self::TlsUntrusted => "tls_untrusted",
            Self::TlsExpired => "tls_expired",
            Self::TlsFailed => "tls_failed",
        }
    }
}

/// A handshake that fails: why, and what to tell the peer before closing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Reason for the log and for the counter of failed handshakes; the peer gets `answer`.
    pub failure: HandshakeFailure,
    /// The answer, `{"error":"…"}`.
    pub answer: VersionResponse,
}

impl Refused {
    /// A refusal with this sentence.
    #[must_use]
    pub fn new(failure: HandshakeFailure, error: &str) -> Self {
        // A JSON error may quote what it found; the peer needs only the beginning.
        let error = error.chars().take(200).collect();
        Self {
            failure,
            answer: VersionResponse::Error(error),
        }
    }
}

/// What the first frame leads to: a version, or a refusal to send before closing.
///
/// # Errors
/// [`Refused`].
pub fn negotiate(first_frame: &str) -> Result<Version, Refused> {
    let range: VersionRange = serde_json::from_str(first_frame).map_err(|error| {
        let error =
            format!("first frame is not a version range like {{\"min\":1,\"max\":1}}: {error}");
        Refused::new(HandshakeFailure::NotARange, &error)
    })?;
    SPOKEN
        .highest_common(range)
        .map_err(|error| Refused::new(HandshakeFailure::NoCommonVersion, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n32_every_range_pair_gets_the_highest_common_version_or_an_error() {
        for min in 0..=4_u8 {
            for max in 0..=4_u8 {
                let got = negotiate(&format!(r#"{{"min":{min},"max":{max}}}"#));
                if min <= 2 && 2 <= max {
                    assert_eq!(got, Ok(Version::V2), "{min}..{max}");
                } else if min <= 1 && 1 <= max {
                    assert_eq!(got, Ok(Version::V1), "{min}..{max}");
                } else {
                    let refused = got.expect_err("does not meet 1..2");
                    assert_eq!(
                        refused.failure,
                        HandshakeFailure::NoCommonVersion,
                        "{min}..{max}"
                    );
                    assert!(matches!(refused.answer, VersionResponse::Error(_)));
                }
            }
        }
    }

    #[test]
    fn n32_what_is_no_range_is_told_so() {
        for text in [
            "",
            "1",
            "[]",
            "[1,1]",
            "{}",
            r#"{"min":1}"#,
            r#"{"min":"1","max":1}"#,
            r#"{"min":-1,"max":1}"#,
        ] {
            let refused = negotiate(text).expect_err(text);
            assert_eq!(refused.failure, HandshakeFailure::NotARange, "{text:?}");
        }
    }

    #[test]
    fn labels_are_the_serialized_names() {
        for failure in HandshakeFailure::ALL {
            let name = serde_json::to_value(failure).expect("encodes");
            assert_eq!(name, failure.label());
        }
    }
}
