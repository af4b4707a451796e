//! The manifest of a release: its programs, and the links that they speak.

use std::collections::BTreeMap;

use semver::Version;
use serde::{Deserialize, Serialize};

use super::texts::check_version;
use crate::parts::{PROGRAM_BYTES, PartName};
use crate::permit::PROTO_VERSION;

/// Most bytes of a manifest.
pub const MANIFEST_BYTES: usize = 64 << 10;
/// Most bytes of the bundle of an image.
pub const BUNDLE_BYTES: usize = 16 << 10;
/// Most parts, platforms of a part, images or links.
const MAX_ENTRIES: usize = 32;
/// Longest name of a part, platform, image or link, bytes.
const NAME_BYTES: usize = 32;
/// Most bytes of the notes.
const NOTES_BYTES: usize = 8 << 10;

/// What a release consists of. Members of later versions of this document are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseManifest {
    /// Semantic version, without a leading v.
    pub version: String,
    /// Programs by part and platform. A part that this build does not know is kept and not used.
    #[serde(default)]
    pub parts: BTreeMap<String, BTreeMap<String, ReleaseProgram>>,
    /// Container images by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<String, ReleaseImage>,
    /// Versions of each link that the release speaks.
    #[serde(default)]
    pub links: BTreeMap<String, LinkRange>,
    /// Whether the release waits for no other part.
    #[serde(default)]
    pub independent: bool,
    /// Version that must have run before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<String>,
    /// Text for people, which no program reads.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub notes: String,
}

/// A program of a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseProgram {
    /// SHA-256 of the file, lower-case hex.
    pub sha256: String,
    /// Bytes of the file.
    pub size: u64,
}

/// A container image of a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseImage {
    /// Digest, as `sha256:HEX`.
    pub digest: String,
    /// Signature of the image, as `cosign` wrote it. Empty if the image is not signed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub bundle: String,
}

/// Versions of a link, from the lowest to the highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRange {
    /// Lowest version of the link.
    pub min: u32,
    /// Highest version of the link.
    pub max: u32,
}

/// Versions of each link that this build speaks.
#[must_use]
pub fn own_links() -> BTreeMap<String, LinkRange> {
    let link = |name: &str, min, max| (name.to_owned(), LinkRange { min, max });
    [
        link("monitor", 1, 2),
        link("permit", PROTO_VERSION, PROTO_VERSION),
        link("runner", 1, 1),
        link("guestd", 1, 1),
        link("parts", 1, 1),
    ]
    .into()
}

impl ReleaseManifest {
    /// Reads and checks a manifest.
    ///
    /// # Errors
    /// The member at fault and the rule that it breaks.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() > MANIFEST_BYTES {
            return Err(format!("must be at most {MANIFEST_BYTES} bytes"));
        }
        let manifest: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Checks a manifest that is to be published.
    ///
    /// # Errors
    /// The member at fault and the rule that it breaks.
    pub fn check(&self) -> Result<(), String> {
        let version = check_version(&self.version).map_err(|rule| format!("version {rule}"))?;
        self.check_at_least(&version)?;
        entries("parts", self.parts.keys())?;
        entries("images", self.images.keys())?;
        entries("links", self.links.keys())?;
        for (part, platforms) in &self.parts {
            entries(&format!("parts.{part}"), platforms.keys())?;
            for (platform, program) in platforms {
                check_program(program).map_err(|rule| format!("parts.{part}.{platform}{rule}"))?;
            }
        }
        for (name, image) in &self.images {
            let hex = image.digest.strip_prefix("sha256:").unwrap_or_default();
            if !is_sha256(hex) {
                return Err(format!("images.{name}.digest must be sha256:HEX"));
            }
            if image.bundle.len() > BUNDLE_BYTES {
                let rule = format!("must be at most {BUNDLE_BYTES} bytes");
                return Err(format!("images.{name}.bundle {rule}"));
            }
        }
        let mut links = self.links.iter();
        if let Some((name, _)) = links.find(|(_, range)| range.min > range.max) {
            return Err(format!("links.{name}.min must not be above its max"));
        }
        if self.notes.len() > NOTES_BYTES {
            return Err(format!("notes must be at most {NOTES_BYTES} bytes"));
        }
        Ok(())
    }

    fn check_at_least(&self, version: &Version) -> Result<(), String> {
        let Some(least) = &self.at_least else {
            return Ok(());
        };
        let least = check_version(least).map_err(|rule| format!("atLeast {rule}"))?;
        if least < *version {
            Ok(())
        } else {
            Err("atLeast must be below the version".to_owned())
        }
    }

    /// The program of a part for a platform, as `x86_64`.
    #[must_use]
    pub fn program(&self, part: PartName, platform: &str) -> Option<&ReleaseProgram> {
        self.parts.get(part.as_str())?.get(platform)
    }
}

fn check_program(program: &ReleaseProgram) -> Result<(), String> {
    if !is_sha256(&program.sha256) {
        return Err(".sha256 must be 64 lower-case hex digits".to_owned());
    }
    if program.size == 0 || program.size > PROGRAM_BYTES {
        return Err(format!(".size must be 1 to {PROGRAM_BYTES} bytes"));
    }
    Ok(())
}

fn is_sha256(text: &str) -> bool {
    let mut digits = text.bytes();
    text.len() == 64 && digits.all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Checks names that become parts of file names.
fn entries<'a>(what: &str, names: impl ExactSizeIterator<Item = &'a String>) -> Result<(), String> {
    if names.len() > MAX_ENTRIES {
        return Err(format!("{what} must have at most {MAX_ENTRIES} members"));
    }
    let is_sound = |name: &str| {
        let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        (1..=NAME_BYTES).contains(&name.len())
            && name
                .bytes()
                .all(|byte| is_inner(byte) || matches!(byte, b'-' | b'_'))
    };
    match names.into_iter().find(|name| !is_sound(name)) {
        Some(_) => Err(format!(
            "{what} must have names of at most {NAME_BYTES} lower-case letters, digits, - and _"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sound() -> Value {
        json!({
            "version": "1.2.3",
            "parts": {"monitor": {"x86_64": {"sha256": "ab".repeat(32), "size": 10}}},
            "images": {"agent": {"digest": format!("sha256:{}", "cd".repeat(32)), "bundle": "{}"}},
            "links": {"monitor": {"min": 1, "max": 2}},
            "atLeast": "1.1.0",
            "notes": "text",
            "later": {"member": 1},
        })
    }

    #[test]
    fn manifest_is_read_and_written() {
        let text = serde_json::to_vec(&sound()).expect("JSON");
        let manifest = ReleaseManifest::parse(&text).expect("a manifest");
        let program = manifest.program(PartName::Monitor, "x86_64");
        assert_eq!(program.map(|one| one.size), Some(10));
        assert_eq!(manifest.program(PartName::Guestd, "x86_64"), None);
        let again = serde_json::to_vec(&manifest).expect("JSON");
        assert_eq!(ReleaseManifest::parse(&again), Ok(manifest));
    }

    #[test]
    fn bad_manifests_are_refused_with_the_member() {
        let many: BTreeMap<String, Value> = (0..33)
            .map(|number| (format!("p{number}"), json!({})))
            .collect();
        let program = sound()["parts"]["monitor"]["x86_64"].clone();
        let rows = [
            ("/version", json!("1.2"), "version"),
            ("/version", json!("v1.2.3"), "version"),
            ("/atLeast", json!("1.2.3"), "atLeast"),
            ("/atLeast", json!("x"), "atLeast"),
            ("/parts", json!(many), "parts must have at most 32"),
            ("/parts", json!({"../x": {}}), "parts must have names"),
            ("/parts/monitor", json!({"": program}), "parts.monitor"),
            ("/parts/monitor/x86_64/sha256", json!("AB"), "sha256"),
            ("/parts/monitor/x86_64/size", json!(0), "size"),
            ("/parts/monitor/x86_64/size", json!((32 << 20) + 1), "size"),
            ("/parts/monitor/x86_64/size", json!(-1), "integer `-1`"),
            ("/images/agent/digest", json!("latest"), "images.agent"),
            (
                "/images/agent/bundle",
                json!("x".repeat(BUNDLE_BYTES + 1)),
                "images.agent.bundle",
            ),
            ("/images/agent/bundle", json!(1), "integer `1`"),
            ("/links/monitor/min", json!(3), "links.monitor.min"),
            ("/notes", json!("x".repeat(8193)), "notes"),
            ("/notes", json!("x".repeat(1 << 17)), "must be at most"),
        ];
        for (pointer, value, expected) in rows {
            let mut manifest = sound();
            *manifest.pointer_mut(pointer).expect(pointer) = value;
            let text = serde_json::to_vec(&manifest).expect("JSON");
            let problem = ReleaseManifest::parse(&text).expect_err(pointer);
            assert!(problem.contains(expected), "{pointer}: {problem}");
        }
        for text in ["", "<html>", "[]", "null", "{}"] {
            assert!(ReleaseManifest::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
