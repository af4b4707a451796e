//! Signatures of container images, in the bundles that `cosign sign` writes.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{KeyPair, SigningKey as _};
use serde_json::json;

/// Type of the signed payload.
const STATEMENT: &str = "application/vnd.in-toto+json";

/// Key of a test by which images are signed.
#[derive(Debug)]
pub struct ImageSigner(KeyPair);

impl ImageSigner {
    /// A new key.
    ///
    /// # Panics
    /// When there is no randomness for a key.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each one differs")]
    pub fn new() -> Self {
        Self(KeyPair::generate().expect("a key"))
    }

    /// Public key, PEM.
    #[must_use]
    pub fn public_key(&self) -> String {
        self.0.public_key_pem()
    }

    /// Bundle of the image of this digest, lower-case hex.
    ///
    /// # Panics
    /// When there is no randomness for a signature.
    #[must_use]
    pub fn bundle(&self, sha256: &str) -> String {
        let statement = json!({
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"digest": {"sha256": sha256}}],
            "predicateType": "https://sigstore.dev/cosign/sign/v1",
            "predicate": {},
        });
        let statement = statement.to_string();
        let (kind, length) = (STATEMENT.len(), statement.len());
        let signed = format!("DSSEv1 {kind} {STATEMENT} {length} {statement}");
        let signature = self.0.sign(signed.as_bytes()).expect("signed");
        json!({
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {"publicKey": {"hint": "a test"}},
            "dsseEnvelope": {
                "payload": BASE64_STANDARD.encode(&statement),
                "payloadType": STATEMENT,
                "signatures": [{"sig": BASE64_STANDARD.encode(signature)}],
            },
        })
        .to_string()
    }
}
