//! A property of the reader of bundles, as a body for the coverage-guided fuzzer of `fuzz/` and for
//! property tests.

#![expect(
    clippy::missing_panics_doc,
    reason = "to panic is what this is for: a panic is a finding"
)]

use crate::ImageKey;

/// Public key of the seeds, which `cosign` signed.
const KEY: &str = include_str!("../tests/cosign/key.pub");
/// Digest of the image of the seeds.
const IMAGE: &str = "962b1ae83825c37b6eb3ee98dbe587461074a338cc0b838a635d274e2844096d";

/// A bundle. It holds for one image at most, and a refusal names the image.
pub fn image_bundle(data: &[u8]) {
    let Ok(key) = ImageKey::parse(KEY) else {
        unreachable!("the key of the seeds is sound");
    };
    let text = String::from_utf8_lossy(data);
    let other = "0".repeat(64);
    let results = [IMAGE, other.as_str()].map(|image| key.verify(image, &text));
    for (image, result) in [IMAGE, &other].into_iter().zip(&results) {
        if let Err(refused) = result {
            assert!(refused.to_string().contains(image));
        }
    }
    assert!(results[1].is_err(), "nobody signed that image");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIGNED: &str = include_str!("../tests/cosign/image.json");

    #[test]
    fn every_seed_of_bundles_holds() {
        test_seeds::hold(&[("image_bundle", image_bundle)]);
    }

    proptest! {
        /// Requirement: R25
        #[test]
        fn any_bundle_holds(text in "\\PC{0,400}") {
            image_bundle(text.as_bytes());
        }

        /// Requirement: R25
        #[test]
        fn changed_bundle_holds(at in 0..SIGNED.len(), bytes in prop::collection::vec(any::<u8>(), 0..8)) {
            let mut changed = SIGNED.as_bytes().to_vec();
            let end = (at + bytes.len()).min(changed.len());
            changed.splice(at..end, bytes);
            image_bundle(&changed);
        }
    }
}
