//! The objects that a certificate is made with, and the steps that change them.

use std::fmt;

use protocol::time::WallTime;
use serde::Serialize;
use serde_json::Value;

use super::wanted::Wanted;

/// A public key, as its subject-public-key-info in DER.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey(pub Vec<u8>);

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.len().saturating_sub(4);
        write!(f, "PublicKey(..{:02x?})", &self.0[end..])
    }
}

/// The parts of a certificate that the decisions use.
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
    /// `metadata.resourceVersion` of the request. The watch for its status starts from it.
    pub version: String,
    /// Name of the ClusterIssuer.
    pub issuer: String,
    /// Name and key in the request; `None` if they are unreadable.
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
    /// Wait for a change of the request.
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

/// Objects and wanted certificate of the steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Order {
    /// Name of the secret that guests get.
    pub secret: String,
    /// The certificate in `spec.tls`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_shown_by_its_last_bytes() {
        let shown = |bytes: &[u8]| format!("{:?}", PublicKey(bytes.to_vec()));
        assert_eq!(
            shown(&[1, 2, 3, 4, 5, 0xab]),
            "PublicKey(..[03, 04, 05, ab])"
        );
        assert_eq!(shown(&[7]), "PublicKey(..[07])");
    }
}
