//! The certificate of a guest (docs/compatibility/neonvm.md §2.10). The question this answers:
//! given what `spec.tls` asks for, the three objects it is made with and the time, what is the one
//! next step?
//!
//! ```text
//!            key              request            certificate        both deleted
//!   nothing ─────► key alone ─────────► waiting ─────────────► kept ─────────────► rest until renewal
//!                      ▲                  │ denied, failed, or not fit for use
//!                      └── withdrawn ◄────┘ (after a pause that doubles)
//! ```
//!
//! The temporary secret `tls-neonvm-<vm>-tmp` holds the key as long as there is no certificate for
//! it; the CertificateRequest bears the VM's name; the secret `tls-neonvm-<vm>` gets key and
//! certificate in one write, so that nobody ever finds a certificate beside another's key. Every
//! step reads the objects again when it is done, so one that was interrupted, or done by another,
//! is taken up from where it stands.
//!
//! Until there is a certificate that belongs to its key the VM does not start. From then on it
//! does, also with one that is due or has expired: an issuer that is away must not keep guests
//! down. That is told instead.
//!
//! Invariants:
//! * A certificate is stored only with the key it belongs to, for the name asked for, and not
//!   expired. `what_the_issuer_hands_out_is_looked_at`
//! * The pair in use is left alone until the next one is complete.
//!   `renewal_goes_on_with_the_old_pair`
//! * Whatever step is interrupted, the next look leads on.
//!   `from_any_state_a_good_issuer_leads_to_rest`

mod decide;
mod state;
mod wanted;

use std::fmt;

use protocol::time::WallTime;
use serde::Serialize;
use serde_json::Value;

pub use decide::{Decision, decide, renewal};
pub use state::{CertificateDump, CertificateState, NextStep};
pub use wanted::{Span as Lifetime, TlsFault, Wanted};

/// A public key, as its subject-public-key-info in DER.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey(pub Vec<u8>);

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.len().saturating_sub(4);
        write!(f, "PublicKey(..{:02x?})", &self.0[end..])
    }
}

/// What a certificate says that matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// It is good from here on.
    pub not_before: WallTime,
    /// It is not good from here on.
    pub not_after: WallTime,
    /// Its common name and its DNS names.
    pub names: Vec<String>,
    /// The key it is for.
    pub key: PublicKey,
}

/// The secret that guests get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// No secret of this name exists.
    Absent,
    /// There is one of its name that is not this VM's.
    Foreign,
    /// There is one, without a certificate and a key that belong together.
    Unusable,
    /// A certificate beside its key.
    Pair(Certificate),
}

/// The secret that holds a key without a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemporaryKey {
    /// No secret of this name exists.
    Absent,
    /// There is one of its name that is not this VM's.
    Foreign,
    /// There is one without a key in it.
    Unusable,
    /// The key that belongs to this one.
    Key(PublicKey),
}

/// The CertificateRequest as the API server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// No certificate request of this name exists.
    Absent,
    /// There is one of its name that is not this VM's.
    Foreign,
    /// It belongs to this VM, by its owner reference.
    Ours(Box<OwnRequest>),
}

/// A certificate request that belongs to this VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnRequest {
    /// `metadata.uid` of the request.
    pub uid: String,
    /// `metadata.resourceVersion` of the request; a watch for the answer starts from it.
    pub version: String,
    /// Name of the ClusterIssuer.
    pub issuer: String,
    /// The name and the key it asks for; `None` if that cannot be read.
    pub subject: Option<(String, PublicKey)>,
    /// State of the request.
    pub status: RequestStatus,
}

/// State of a certificate request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestStatus {
    /// The issuer has neither issued nor refused.
    Waiting {
        /// Message of the `Ready` condition; empty if there is none.
        message: String,
    },
    /// The issuer refused; no certificate follows.
    Refused {
        /// `Denied`, `Failed` or `InvalidRequest`.
        reason: &'static str,
        /// The issuer's message.
        message: String,
    },
    /// The certificate, or why it is unreadable.
    Issued(Result<Certificate, String>),
}

/// The three objects of a certificate: both secrets and the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The secret that guests get.
    pub stored: Stored,
    /// The secret that holds a key without a certificate.
    pub key: TemporaryKey,
    /// The CertificateRequest that leads from the key to the certificate.
    pub request: Request,
}

/// One thing to do. Each ends with the three objects being read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// Read the three objects.
    Read,
    /// Put a new key into the temporary secret.
    MakeKey,
    /// Create the CertificateRequest for that key.
    #[serde(rename = "ask")]
    Request,
    /// Wait for news of the request.
    Await {
        /// `metadata.uid` of the request.
        uid: String,
        /// `metadata.resourceVersion` of the request. Any later change of it ends the wait.
        version: String,
    },
    /// Put the certificate and its key into the secret that guests get.
    Store,
    /// Delete the request.
    Withdraw {
        /// Uid of the request: a later request of this name is left alone.
        uid: String,
    },
    /// Delete the request and the temporary secret.
    Tidy,
}

/// What the steps are done with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Order {
    /// Name of the secret that guests get.
    pub secret: String,
    /// What the certificate is to be.
    pub wanted: Wanted,
    /// The owner reference all three objects get.
    pub owner: Value,
}

impl Order {
    /// Name of the secret that holds a key without a certificate.
    #[must_use]
    pub fn temporary(&self) -> String {
        format!("{}-tmp", self.secret)
    }
}

/// What stands in the way of a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "trouble", rename_all = "snake_case")]
pub enum CertificateFailure {
    /// The issuer takes its time.
    Awaited {
        /// Name of the ClusterIssuer.
        issuer: String,
        /// Its words; empty if none.
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
    /// What the issuer handed out is not fit for use.
    Unfit {
        /// Name of the ClusterIssuer.
        issuer: String,
        /// What is wrong with the certificate.
        why: Unfit,
    },
    /// The guest's certificate is past its end, and the next is not there.
    Expired {
        /// The `notAfter` of the certificate that the guest has.
        since: WallTime,
    },
    /// An object of a name that is needed belongs to somebody else.
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
        /// What the parser reported, or that the certificate is missing from its request.
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
            Self::Expired { at } => write!(f, "it has expired at {at}"),
            Self::NoLonger { at } => {
                write!(f, "it ends at {at}, no later than the one that is due")
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
                "ClusterIssuer {issuer} gives no certificate ({reason}): {message}"
            ),
            Self::Unfit { issuer, why } => {
                write!(
                    f,
                    "the certificate from ClusterIssuer {issuer} is of no use: {why}"
                )
            }
            Self::Expired { since } => {
                write!(f, "the guest's certificate has expired at {since}")
            }
            Self::Taken { kind } => write!(
                f,
                "the {kind} that its certificate needs belongs to another owner"
            ),
        }
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
