//! The key of images, and the bundles that it signed.

use protocol::fleet::BUNDLE_BYTES;
use sigstore_crypto::{
    KeyAlgorithm, VerificationKey, verify_signature, verify_signature_prehashed,
};
use sigstore_types::bundle::{MessageSignature, VerificationMaterialContent};
use sigstore_types::{
    Bundle, DerPublicKey, DsseEnvelope, HashAlgorithm, Sha256Hash, SignatureContent, Statement,
};

use crate::refusal::{ImageFault, ImageRefused};

/// Type of the statement that is a signature of an image.
pub(crate) const PURPOSE: &str = "https://sigstore.dev/cosign/sign/v1";
/// Type of the payload of an envelope that has a statement.
const STATEMENT: &str = "application/vnd.in-toto+json";
/// Most characters of another's text in a refusal.
const TEXT_CHARS: usize = 120;

/// Public key by which images are signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageKey {
    key: DerPublicKey,
    algorithm: KeyAlgorithm,
}

/// A text is no public key that can verify images.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the key of images cannot be used ({0}): it must be one PUBLIC KEY in PEM, of ECDSA P-256 or \
     P-384, Ed25519 or RSA of 2048 bits or more; give the file cosign.pub"
)]
pub struct KeyError(String);

impl ImageKey {
    /// Reads a public key in PEM, as `cosign generate-key-pair` writes it.
    ///
    /// # Errors
    /// The text is no such key.
    pub fn parse(pem: &str) -> Result<Self, KeyError> {
        let unusable = |error: &dyn std::fmt::Display| KeyError(shortened(&error.to_string()));
        if pem.matches("-----BEGIN ").count() > 1 {
            return Err(KeyError("it has more than one block".to_owned()));
        }
        let key = DerPublicKey::from_pem(pem).map_err(|error| unusable(&error))?;
        let algorithm = KeyAlgorithm::from_spki(&key).map_err(|error| unusable(&error))?;
        let whole = VerificationKey::from_spki(&key).map_err(|error| unusable(&error))?;
        sigstore_crypto::validate_raw_public_key(whole.scheme(), whole.as_bytes())
            .map_err(|error| unusable(&error))?;
        Ok(Self { key, algorithm })
    }

    /// Checks that this key signed the image of a digest, 64 lower-case hexadecimal digits. The
    /// bundle is the JSON file that `cosign` wrote, and empty for an image without one.
    ///
    /// # Errors
    /// The image, the rule that its bundle breaks, and what to do.
    pub fn verify(&self, sha256: &str, bundle: &str) -> Result<(), ImageRefused> {
        self.check(sha256, bundle).map_err(|fault| ImageRefused {
            sha256: shortened(sha256),
            fault,
        })
    }

    fn check(&self, sha256: &str, bundle: &str) -> Result<(), ImageFault> {
        if bundle.is_empty() {
            return Err(ImageFault::Unsigned);
        }
        if bundle.len() > BUNDLE_BYTES {
            return Err(ImageFault::TooLarge(bundle.len()));
        }
        let image = Sha256Hash::from_hex(sha256).map_err(|_| ImageFault::OtherImage)?;
        let bundle = Bundle::from_json(bundle).map_err(|error| malformed(&error))?;
        let material = &bundle.verification_material.content;
        if !matches!(material, VerificationMaterialContent::PublicKey(_)) {
            return Err(ImageFault::Keyless);
        }
        match &bundle.content {
            SignatureContent::DsseEnvelope(envelope) => self.check_statement(&image, envelope),
            SignatureContent::MessageSignature(signature) => self.check_blob(&image, signature),
            _ => Err(malformed(&"it has a signature of an unknown kind")),
        }
    }

    /// A signature over a statement that names the image: `cosign sign`.
    fn check_statement(
        &self,
        image: &Sha256Hash,
        envelope: &DsseEnvelope,
    ) -> Result<(), ImageFault> {
        let scheme = self.algorithm.default_signing_scheme();
        verify_signature(&self.key, &envelope.pae(), &envelope.signature.sig, scheme)
            .map_err(|_| ImageFault::WrongSignature)?;
        if envelope.payload_type != STATEMENT {
            return Err(ImageFault::OtherPurpose(shortened(&envelope.payload_type)));
        }
        let statement: Statement = serde_json::from_slice(envelope.payload.as_bytes())
            .map_err(|error| malformed(&error))?;
        if statement.predicate_type != PURPOSE {
            return Err(ImageFault::OtherPurpose(shortened(
                &statement.predicate_type,
            )));
        }
        match statement.matches_sha256(image) {
            true => Ok(()),
            false => Err(ImageFault::OtherImage),
        }
    }

    /// A signature over the image's manifest, whose hash is the image's digest: `cosign sign-blob`.
    fn check_blob(
        &self,
        image: &Sha256Hash,
        signature: &MessageSignature,
    ) -> Result<(), ImageFault> {
        let named = signature.message_digest.as_ref();
        let is_other = |digest: &&sigstore_types::bundle::MessageDigest| {
            let is_sha256 = digest.algorithm == HashAlgorithm::Sha2256;
            !is_sha256 || digest.digest != *image
        };
        if named.is_some_and(|digest| is_other(&digest)) {
            return Err(ImageFault::OtherImage);
        }
        let scheme = self
            .algorithm
            .resolve_signing_scheme(HashAlgorithm::Sha2256)
            .map_err(|error| malformed(&error))?;
        if !scheme.supports_prehashed() {
            return Err(malformed(
                &"such a key signs no manifest by its hash: sign by cosign sign",
            ));
        }
        verify_signature_prehashed(&self.key, image.as_bytes(), &signature.signature, scheme)
            .map_err(|_| ImageFault::WrongSignature)
    }
}

fn malformed(error: &dyn std::fmt::Display) -> ImageFault {
    ImageFault::Malformed(shortened(&error.to_string()))
}

/// Printable text of a bounded length: a stranger may have written it.
fn shortened(text: &str) -> String {
    let printable = text.replace(char::is_control, " ");
    printable.chars().take(TEXT_CHARS).collect()
}
