//! Names that follow from texts.

use sha2::{Digest as _, Sha256};

/// The first bytes of a text's SHA-256, as lower-case hex.
pub(crate) fn short_digest(text: &str, bytes: usize) -> String {
    let digest = Sha256::digest(text);
    let digits = digest.iter().take(bytes);
    digits.map(|byte| format!("{byte:02x}")).collect()
}
