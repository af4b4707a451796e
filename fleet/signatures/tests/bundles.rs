//! Bundles that `cosign` 3.1.1 wrote, and bundles that were changed on the way.
//!
//! The key was made for this test. `manifest.json` is the manifest of the image. `image.json`,
//! `other-image.json` and `by-other-key.json` are of `cosign sign`, `blob.json` is of
//! `cosign sign-blob` over the manifest, and `scan.json` of `cosign attest-blob`.

use fleet_signatures::{ImageFault, ImageKey};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use test_authority::ImageSigner;

const KEY: &str = include_str!("cosign/key.pub");
const OTHER_KEY: &str = include_str!("cosign/other-key.pub");
const MANIFEST: &[u8] = include_bytes!("cosign/manifest.json");
const IMAGE: &str = include_str!("cosign/image.json");
const BLOB: &str = include_str!("cosign/blob.json");
const SCAN: &str = include_str!("cosign/scan.json");
const OTHER_IMAGE: &str = include_str!("cosign/other-image.json");
const BY_OTHER_KEY: &str = include_str!("cosign/by-other-key.json");

fn digest() -> String {
    let digest = Sha256::digest(MANIFEST);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn key() -> ImageKey {
    ImageKey::parse(KEY).expect("a key")
}

fn fault(sha256: &str, bundle: &str) -> ImageFault {
    let refused = key().verify(sha256, bundle).expect_err("it is refused");
    assert_eq!(refused.sha256, sha256);
    refused.fault
}

/// Requirement: R25
#[test]
fn image_signed_by_cosign_with_the_key_is_verified() {
    for bundle in [IMAGE, BLOB] {
        assert_eq!(key().verify(&digest(), bundle), Ok(()));
    }
}

/// Requirement: R25
#[test]
fn unsigned_image_is_refused() {
    assert_eq!(fault(&digest(), ""), ImageFault::Unsigned);
    let text = key().verify(&digest(), "").expect_err("unsigned");
    let text = text.to_string();
    assert!(
        text.starts_with(&format!("image sha256:{}", digest())),
        "{text}"
    );
    assert!(text.contains("--bundle"), "the fix: {text}");
}

/// Requirement: R25
#[test]
fn image_signed_by_another_key_is_refused() {
    assert_eq!(fault(&digest(), BY_OTHER_KEY), ImageFault::WrongSignature);
    let other = ImageKey::parse(OTHER_KEY).expect("a key");
    assert_eq!(
        other.verify(&digest(), BY_OTHER_KEY),
        Ok(()),
        "it is signed"
    );
    for bundle in [IMAGE, BLOB] {
        let refused = other.verify(&digest(), bundle).expect_err("another key");
        assert_eq!(refused.fault, ImageFault::WrongSignature);
    }
}

/// Requirement: R25
#[test]
fn bundle_of_another_image_is_refused() {
    assert_eq!(fault(&digest(), OTHER_IMAGE), ImageFault::OtherImage);
    for wrong in ["0".repeat(64), digest().replace('9', "8")] {
        assert_eq!(fault(&wrong, IMAGE), ImageFault::OtherImage);
        assert_eq!(fault(&wrong, BLOB), ImageFault::OtherImage);
    }
    let mut unnamed: Value = serde_json::from_str(BLOB).expect("JSON");
    let signature = unnamed["messageSignature"].as_object_mut();
    signature.expect("a signature").remove("messageDigest");
    let unnamed = unnamed.to_string();
    assert_eq!(
        key().verify(&digest(), &unnamed),
        Ok(()),
        "it is only a hint"
    );
    assert_eq!(fault(&"0".repeat(64), &unnamed), ImageFault::WrongSignature);
}

/// An attestation by the same key may say that the image is bad.
///
/// Requirement: R25
#[test]
fn attestation_about_the_image_is_no_signature_of_it() {
    let purpose = "https://example.com/scan".to_owned();
    assert_eq!(fault(&digest(), SCAN), ImageFault::OtherPurpose(purpose));
}

/// Bits of the parts that are signed. The rest, as spaces and hints, means nothing.
///
/// Requirement: R25
#[test]
fn flipped_bit_of_what_is_signed_is_refused() {
    let rows = [
        (IMAGE, "/dsseEnvelope/payload"),
        (IMAGE, "/dsseEnvelope/payloadType"),
        (IMAGE, "/dsseEnvelope/signatures/0/sig"),
        (BLOB, "/messageSignature/signature"),
        (BLOB, "/messageSignature/messageDigest/digest"),
    ];
    for (bundle, pointer) in rows {
        let whole: Value = serde_json::from_str(bundle).expect("JSON");
        let text = whole.pointer(pointer).and_then(Value::as_str);
        let text = text.expect(pointer).to_owned().into_bytes();
        let mut flips = 0;
        for bit in 0..text.len() * 8 {
            let mut flipped = text.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let Ok(flipped) = String::from_utf8(flipped) else {
                continue;
            };
            let mut changed = whole.clone();
            *changed.pointer_mut(pointer).expect(pointer) = json!(flipped);
            let refused = key().verify(&digest(), &changed.to_string());
            assert!(refused.is_err(), "{pointer} bit {bit}");
            flips += 1;
        }
        assert!(flips > 100, "{pointer}: {flips}");
    }
}

/// Requirement: R25
#[test]
fn file_that_is_no_bundle_by_a_key_is_refused() {
    let changed = |pointer: &str, value: Value| {
        let mut bundle: Value = serde_json::from_str(IMAGE).expect("JSON");
        *bundle.pointer_mut(pointer).expect(pointer) = value;
        bundle.to_string()
    };
    let certificate = json!({"certificate": {"rawBytes": "AAAA"}});
    let keyless = changed("/verificationMaterial", certificate);
    assert_eq!(fault(&digest(), &keyless), ImageFault::Keyless);
    let signatures = json!([{"sig": "AAAA"}, {"sig": "AAAA"}]);
    for text in [
        "signed".to_owned(),
        "{}".to_owned(),
        "null".to_owned(),
        IMAGE[..400].to_owned(),
        changed("/mediaType", json!("application/json")),
        changed("/dsseEnvelope/signatures", signatures),
        changed("/dsseEnvelope/signatures", json!([])),
        changed("/verificationMaterial", json!({})),
    ] {
        let fault = fault(&digest(), &text);
        assert!(
            matches!(fault, ImageFault::Malformed(_)),
            "{text}: {fault:?}"
        );
    }
    let long = format!("{IMAGE}{}", " ".repeat(protocol::fleet::BUNDLE_BYTES));
    assert_eq!(fault(&digest(), &long), ImageFault::TooLarge(long.len()));
}

/// Requirement: R25
#[test]
fn text_that_is_no_public_key_is_refused_with_the_fix() {
    let private = KEY.replace("PUBLIC KEY", "PRIVATE KEY");
    let cut: String = KEY
        .lines()
        .filter(|line| !line.ends_with("=="))
        .map(|line| format!("{line}\n"))
        .collect();
    for text in ["", "key", &private, &cut, &format!("{KEY}{OTHER_KEY}")] {
        let error = ImageKey::parse(text).expect_err(text).to_string();
        assert!(error.contains("give the file cosign.pub"), "{error}");
    }
}

/// Other tests sign with it.
#[test]
fn bundle_of_the_tests_signer_is_one_of_cosign() {
    let signer = ImageSigner::new();
    let own = ImageKey::parse(&signer.public_key()).expect("a key");
    let bundle = signer.bundle(&digest());
    assert_eq!(own.verify(&digest(), &bundle), Ok(()));
    assert_eq!(fault(&digest(), &bundle), ImageFault::WrongSignature);
}
