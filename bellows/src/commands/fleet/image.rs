//! Signatures of container images, checked by hand as the fleet checks them.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;
use fleet_signatures::ImageKey;
use protocol::fleet::{BUNDLE_BYTES, ReleaseImage};
use protocol::image::Digest;
use serde_json::json;

use crate::fail::{Fail, Outcome};
use crate::output::{Format, print_value};
use crate::terminal::out;

/// Most bytes of a key that are read.
const KEY_BYTES: usize = 16 << 10;

/// An image and its signature.
#[derive(Debug, Clone, Args)]
pub(crate) struct VerifyImageArgs {
    /// Digest of the image, as sha256:HEX
    #[arg(value_name = "DIGEST", value_parser = digest)]
    digest: String,
    /// The bundle that cosign wrote
    #[arg(long, value_name = "FILE")]
    bundle: PathBuf,
    /// Public key in PEM by which the image must be signed
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// Digits of a digest, as `sha256:HEX`.
pub(super) fn digest(text: &str) -> Result<String, String> {
    let hex = text.strip_prefix("sha256:").unwrap_or_default();
    let digest = Digest::parse(hex).map_err(|_| {
        "the digest must be sha256: and 64 lower-case hexadecimal digits".to_owned()
    })?;
    Ok(digest.to_string())
}

pub(super) fn verify(args: &VerifyImageArgs) -> Outcome {
    let image = ReleaseImage {
        digest: format!("sha256:{}", args.digest),
        bundle: bundle(&args.bundle)?,
    };
    verified(&key(&args.key)?, &image)?;
    if matches!(args.output, Format::Json | Format::Yaml) {
        let value = json!({"digest": image.digest, "verified": true});
        return print_value(args.output, &value);
    }
    out(&format!("image {} verified", image.digest));
    Ok(())
}

/// Reads a bundle.
///
/// # Errors
/// 64 if the file cannot be one.
pub(super) fn bundle(file: &Path) -> Outcome<String> {
    let text = text(file, BUNDLE_BYTES).map_err(|error| {
        Fail::usage(format!("bundle {}: {error}", file.display()))
            .rule(format!("a bundle is JSON of at most {BUNDLE_BYTES} bytes"))
            .fix("name the file that cosign sign --bundle wrote")
    })?;
    match text.trim().is_empty() {
        false => Ok(text),
        true => Err(Fail::usage(format!("bundle {} is empty", file.display()))
            .rule("an image is signed by its bundle")
            .fix("name the file that cosign sign --bundle wrote")),
    }
}

/// Reads a key of images.
///
/// # Errors
/// 64 if the file has none.
pub(super) fn key(file: &Path) -> Outcome<ImageKey> {
    let refused = |what: String| {
        Fail::usage(format!("key {}: {what}", file.display()))
            .rule("images are verified by a public key in PEM")
            .fix("name the file cosign.pub of cosign generate-key-pair")
    };
    let pem = text(file, KEY_BYTES).map_err(refused)?;
    ImageKey::parse(&pem).map_err(|error| refused(error.to_string()))
}

/// Checks the signature of an image.
///
/// # Errors
/// 1 if the image is not signed by the key.
pub(super) fn verified(key: &ImageKey, image: &ReleaseImage) -> Outcome {
    let sha256 = image.digest.strip_prefix("sha256:").unwrap_or_default();
    key.verify(sha256, &image.bundle)
        .map_err(|refused| Fail::not_so(refused.to_string()))
}

fn text(file: &Path, most: usize) -> Result<String, String> {
    let source = std::fs::File::open(file).map_err(|error| error.to_string())?;
    let limit = u64::try_from(most).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    let mut bounded = source.take(limit.saturating_add(1));
    let read = bounded.read_to_end(&mut bytes);
    read.map_err(|error| error.to_string())?;
    if bytes.len() > most {
        return Err(format!("it has more than {most} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "it is no text".to_owned())
}
