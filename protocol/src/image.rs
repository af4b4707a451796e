//! Built images: the `manifest.json` that lies beside the files of a guest image or of the runner's
//! root file system.
//!
//! The digest of an image is the SHA-256 of the bytes of this file. Since it names every other file
//! with its own SHA-256, the digest stands for the whole artefact. Anything that differs between
//! two builds of the same inputs (times, paths, the package mirror) has no place in it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The manifest's file name inside an artefact's directory.
pub const MANIFEST_FILE: &str = "manifest.json";

/// The format this code writes and reads.
pub const MANIFEST_FORMAT: u32 = 1;

/// A SHA-256 as 64 lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(String);

/// A text that is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a digest: 64 lower-case hexadecimal digits are needed")]
pub struct DigestError(pub String);

impl Digest {
    /// Reads 64 lower-case hexadecimal digits.
    ///
    /// # Errors
    /// When `text` is anything else.
    pub fn parse(text: &str) -> Result<Self, DigestError> {
        let is_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        if text.len() == 64 && text.bytes().all(is_hex) {
            Ok(Self(text.to_owned()))
        } else {
            Err(DigestError(text.chars().take(80).collect()))
        }
    }

    /// From the 32 bytes of a hash.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
        Self(
            bytes
                .iter()
                .flat_map(|b| [digit(b >> 4), digit(b & 15)])
                .collect(),
        )
    }

    /// The digest as 64 lower-case hex digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first 12 digits, for display.
    #[must_use]
    pub fn short(&self) -> &str {
        &self.0[..12]
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// Content of an artefact's `manifest.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageManifest {
    /// Format of the manifest: [`MANIFEST_FORMAT`].
    pub format: u32,
    /// Name of the artefact, for example `bellows/postgres:15`.
    pub name: String,
    /// Debian's architecture name, for example `amd64`.
    pub architecture: String,
    /// Debian's code name of the release it was made from, for example `bookworm`.
    pub suite: String,
    /// SHA-256 of the recipe's text.
    pub recipe_sha256: Digest,
    /// Every file outside trees, by its name inside the artefact's directory.
    pub files: BTreeMap<String, FileRecord>,
    /// Every Debian package it was made from, sorted by name.
    pub packages: Vec<PackageRecord>,
    /// SHA-256 of each file of ours that was put in, by the file's name.
    pub inputs: BTreeMap<String, Digest>,
    /// Whether a second build from the same packages and inputs gives the same digest.
    pub reproducible: bool,
    /// If not: the files that differ from build to build.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreproducible: Vec<String>,
    /// Use of the artefact, with what the user of it needs.
    pub content: ImageContent,
}

/// What an artefact is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ImageContent {
    /// A virtual machine boots it.
    Guest(GuestContent),
    /// The runner executes programs out of it.
    Runtime(RuntimeContent),
}

/// A guest that QEMU can boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestContent {
    /// File name of the kernel (bzImage).
    pub kernel: String,
    /// Its version, for example `6.1.0-50-cloud-amd64`.
    pub kernel_version: String,
    /// File name of the initial RAM disk.
    pub initrd: String,
    /// File name of the root disk. It is never written to: use an overlay.
    pub root_disk: String,
    /// Its format in QEMU's word: `raw`.
    pub root_disk_format: String,
    /// Its size in bytes; an overlay may be larger, the guest grows its file system into it.
    pub root_disk_bytes: u64,
    /// Kernel command line that the image needs on every accelerator.
    pub cmdline: String,
    /// What to append when the accelerator is TCG: there the guest's protections against
    /// speculation cost much and protect nothing.
    pub cmdline_tcg: String,
    /// TCP ports somebody listens on in the guest.
    pub ports: Vec<GuestPortRecord>,
    /// The line on the first serial port, after `[guest UPTIME] `, that says that the guest is
    /// ready.
    pub ready_line: String,
    /// Name of the cgroup under the guest's cgroup root that holds what is to be scaled.
    pub cgroup: Option<String>,
}

/// A TCP port on which a program of the guest listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestPortRecord {
    /// What listens there, for example `postgres`.
    pub name: String,
    /// Port number in the guest.
    pub port: u16,
}

/// Programs with everything they need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuntimeContent {
    /// Directory of the root file system inside the artefact's directory.
    pub root: String,
    /// SHA-256 over the sorted listing of that tree (path, type, mode, size, SHA-256 of the
    /// content).
    pub root_sha256: Digest,
    /// Bytes of all files of the tree.
    pub root_bytes: u64,
    /// QEMU's version, for example `10.0.2`.
    pub qemu_version: String,
    /// Path inside the artefact's directory of an executable wrapper, by program name.
    pub programs: BTreeMap<String, String>,
}

/// A file of an artefact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// Its length in bytes, holes included.
    pub bytes: u64,
    /// SHA-256 of the file's content.
    pub sha256: Digest,
}

/// A Debian package in an artefact.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageRecord {
    /// Name of the package.
    pub name: String,
    /// Its full version, epoch included.
    pub version: String,
    /// SHA-256 of the package file.
    pub sha256: Digest,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ImageManifest {
        ImageManifest {
            format: MANIFEST_FORMAT,
            name: "bellows/minimal".into(),
            architecture: "amd64".into(),
            suite: "bookworm".into(),
            recipe_sha256: Digest::from_bytes([0xa5; 32]),
            files: BTreeMap::from([(
                "vmlinuz".to_owned(),
                FileRecord {
                    bytes: 3,
                    sha256: Digest::from_bytes([1; 32]),
                },
            )]),
            packages: vec![PackageRecord {
                name: "libc6".into(),
                version: "2.36-9+deb12u14".into(),
                sha256: Digest::from_bytes([2; 32]),
            }],
            inputs: BTreeMap::new(),
            reproducible: true,
            unreproducible: Vec::new(),
            content: ImageContent::Runtime(RuntimeContent {
                root: "root".into(),
                root_sha256: Digest::from_bytes([3; 32]),
                root_bytes: 4,
                qemu_version: "10.0.2".into(),
                programs: BTreeMap::from([("qemu-img".to_owned(), "bin/qemu-img".to_owned())]),
            }),
        }
    }

    #[test]
    fn n46_manifest_survives_a_round_trip_and_refuses_unknown_fields() {
        let text = serde_json::to_string_pretty(&sample()).unwrap();
        assert_eq!(
            serde_json::from_str::<ImageManifest>(&text).unwrap(),
            sample()
        );
        assert!(text.contains("\"kind\": \"runtime\""), "{text}");
        let extra = text.replacen("\"name\"", "\"surprise\": 1, \"name\"", 1);
        assert!(serde_json::from_str::<ImageManifest>(&extra).is_err());
    }

    #[test]
    fn n46_digest_takes_exactly_64_lower_case_hex_digits() {
        let good = "0123456789abcdef".repeat(4);
        assert_eq!(Digest::parse(&good).unwrap().as_str(), good);
        assert_eq!(Digest::parse(&good).unwrap().short(), "0123456789ab");
        assert_eq!(Digest::parse(&good).unwrap().to_string(), good);
        for bad in [
            "",
            "0123",
            &good.to_uppercase(),
            &format!("{good}0"),
            &"g".repeat(64),
        ] {
            assert!(Digest::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(Digest::from_bytes([0x0f; 32]).as_str(), "0f".repeat(32));
    }
}
