//! References of container images.

use protocol::image::Digest;

/// The digest in a reference of an image, or in the id of one.
pub(crate) fn digest(image: &str) -> Option<String> {
    let (_, hex) = image.rsplit_once("sha256:")?;
    Digest::parse(hex).ok().map(|digest| digest.to_string())
}

/// An image pinned by digest, in the repository of another reference. It has no tag.
pub(crate) fn pinned(image: &str, sha256: &str) -> String {
    let name = image.split('@').next().unwrap_or_default();
    let start = name.rfind('/').map_or(0, |slash| slash + 1);
    let repository = match name[start..].find(':') {
        Some(colon) => &name[..start + colon],
        None => name,
    };
    format!("{repository}@sha256:{sha256}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    /// Requirement: R23
    #[test]
    fn image_is_pinned_in_its_repository_without_a_tag() {
        let rows = [
            ("bellows/agent:0.1.0", "bellows/agent"),
            ("bellows/agent", "bellows/agent"),
            (
                "r.example:5000/bellows/agent",
                "r.example:5000/bellows/agent",
            ),
            (
                "r.example:5000/bellows/agent:1",
                "r.example:5000/bellows/agent",
            ),
            ("agent:1@sha256:00", "agent"),
        ];
        for (image, repository) in rows {
            let expected = format!("{repository}@sha256:{HEX}");
            assert_eq!(pinned(image, HEX), expected, "{image}");
            assert_eq!(digest(&expected).as_deref(), Some(HEX));
        }
        for bad in ["agent:1", "sha256:", "a@sha256:ABC", "a@sha256:00"] {
            assert_eq!(digest(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_reference_is_pinned_with_one_digest(image in "[a-z0-9./:@-]{0,60}") {
            let pinned = pinned(&image, HEX);
            let digest = digest(&pinned);
            prop_assert_eq!(digest.as_deref(), Some(HEX));
            prop_assert_eq!(pinned.matches("@sha256:").count(), 1);
        }
    }
}
