//! Why an image is not used.

use protocol::fleet::BUNDLE_BYTES;

/// An image that is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("image sha256:{sha256} {fault}")]
pub struct ImageRefused {
    /// Digest of the image, lower-case hex.
    pub sha256: String,
    /// Rule that its bundle breaks.
    pub fault: ImageFault,
}

/// What is wrong with the bundle of an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageFault {
    /// There is no bundle.
    #[error(
        "is not signed: with a key of images each image needs a bundle; sign it by cosign, and \
         publish the release with --image and --bundle"
    )]
    Unsigned,
    /// The bundle has too many bytes.
    #[error("has a bundle of {0} bytes: it must have at most {BUNDLE_BYTES}; sign it again")]
    TooLarge(usize),
    /// The bundle is no Sigstore bundle.
    #[error(
        "has a bundle that cannot be read ({0}): it must be a Sigstore bundle of version 0.1 to \
         0.3 in JSON; publish the file that cosign wrote"
    )]
    Malformed(String),
    /// The bundle has a certificate in place of a key.
    #[error(
        "is signed with a certificate: it must be signed with the key of images; sign it by \
         cosign sign --key"
    )]
    Keyless,
    /// The signature does not hold for the key of images, or its bytes were changed.
    #[error(
        "has a signature that is not by the key of images, or was changed: it must hold byte for \
         byte; sign the image with that key, or set fleet.images.key to the signer's"
    )]
    WrongSignature,
    /// The key signed another image.
    #[error(
        "has the bundle of another image: the signature must cover the image's own digest; \
         publish each image with the bundle that was made for it"
    )]
    OtherImage,
    /// The key signed a statement of another kind about the image.
    #[error(
        "has a statement of type {0:?} about it: it must be {purpose:?}; sign it by cosign sign",
        purpose = crate::key::PURPOSE
    )]
    OtherPurpose(String),
}
