//! One file of a policy, to be carried to another machine or cluster.
//!
//! It has the source, parameters, series, feeds and fixtures. Limits, gate and namespaces are left
//! out: those of the object where the file is applied hold. A file is pinned by the SHA-256 of its
//! bytes, so an altered one is refused before any member of it is read.

use serde::{Deserialize, Serialize};

use crate::{Digest, Spec, canonical};

/// Most bytes of a packed policy. Source and fixtures are the long members.
pub const MAX_PACK_BYTES: usize = 1 << 20;
/// Version of the format.
const FORMAT: u32 = 1;
/// Longest name of a Kubernetes object.
const MAX_NAME_BYTES: usize = 253;

/// A packed policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pack {
    format: u32,
    /// Name of the policy.
    pub name: String,
    /// What its answers depend on.
    pub spec: Spec,
    /// Its fixtures, TOML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixtures: Option<String>,
}

/// Why a file is no packed policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// The file has more than [`MAX_PACK_BYTES`].
    #[error("it has more than {MAX_PACK_BYTES} bytes")]
    TooLarge,
    /// The file's SHA-256 is not the one that was given.
    #[error("its SHA-256 is {found}, not {wanted}")]
    Altered {
        /// The one that was given.
        wanted: Digest,
        /// That of the bytes.
        found: Digest,
    },
    /// A member is missing, unknown or breaks a rule.
    #[error("it is not a packed policy: {0}")]
    Malformed(String),
}

impl Pack {
    /// A policy with its fixtures.
    ///
    /// # Errors
    /// If a member breaks a rule, or the file would be too large.
    pub fn new(name: &str, spec: Spec, fixtures: Option<String>) -> Result<Self, PackError> {
        let pack = Self {
            format: FORMAT,
            name: name.to_owned(),
            spec,
            fixtures,
        };
        pack.check()?;
        if pack.to_bytes().len() > MAX_PACK_BYTES {
            return Err(PackError::TooLarge);
        }
        Ok(pack)
    }

    /// The file. Equal policies have equal bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut text = canonical::text(self);
        text.push('\n');
        text.into_bytes()
    }

    /// Reads a file that must have a SHA-256.
    ///
    /// # Errors
    /// If the file has another one, or is no packed policy.
    pub fn read_pinned(bytes: &[u8], wanted: Digest) -> Result<Self, PackError> {
        let found = Digest::of_bytes(bytes);
        if found != wanted {
            return Err(PackError::Altered { wanted, found });
        }
        Self::read(bytes)
    }

    /// Reads a file without a look at its SHA-256.
    ///
    /// # Errors
    /// If it is no packed policy.
    pub fn read(bytes: &[u8]) -> Result<Self, PackError> {
        if bytes.len() > MAX_PACK_BYTES {
            return Err(PackError::TooLarge);
        }
        let pack: Self = serde_json::from_slice(bytes)
            .map_err(|error| PackError::Malformed(error.to_string()))?;
        pack.check()?;
        Ok(pack)
    }

    fn check(&self) -> Result<(), PackError> {
        let malformed = |text: String| Err(PackError::Malformed(text));
        if self.format != FORMAT {
            return malformed(format!("format is {}; must be {FORMAT}", self.format));
        }
        if !is_object_name(&self.name) {
            return malformed(format!(
                "name is {:?}; must be a-z, 0-9, '-' and '.', with a letter or digit at both ends",
                self.name
            ));
        }
        let spec = self.spec.check();
        spec.or_else(|refusal| malformed(format!("spec.{refusal}")))
    }
}

/// Whether Kubernetes allows the name. The name also becomes that of a file, without a folder.
fn is_object_name(name: &str) -> bool {
    let is_end = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    bytes.len() <= MAX_NAME_BYTES
        && bytes.first().is_some_and(is_end)
        && bytes.last().is_some_and(is_end)
        && bytes.iter().all(|b| is_end(b) || matches!(b, b'-' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed() -> Pack {
        let mut spec = Spec::of_source("return function(i) return std.hold('x') end");
        spec.params = [("headroom".into(), 1.15)].into();
        Pack::new("db", spec, Some("[[fixture]]\n".into())).expect("a pack")
    }

    /// Requirement: V40
    #[test]
    fn v40_packed_policy_is_read_as_it_was_written() {
        let bytes = packed().to_bytes();
        let read = Pack::read_pinned(&bytes, Digest::of_bytes(&bytes)).expect("a pack");
        assert_eq!(read, packed());
        assert_eq!(read.spec.digest(), packed().spec.digest());
        assert_eq!(read.to_bytes(), bytes, "equal policies have equal bytes");
    }

    /// Requirement: V40
    #[test]
    fn v40_file_with_any_byte_altered_is_refused() {
        let bytes = packed().to_bytes();
        let wanted = Digest::of_bytes(&bytes);
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            let refusal = Pack::read_pinned(&altered, wanted).expect_err("another digest");
            assert!(matches!(refusal, PackError::Altered { .. }), "{at}");
        }
        let refusal = Pack::read_pinned(&bytes[1..], wanted).expect_err("another digest");
        assert!(refusal.to_string().contains(&wanted.to_string()));
    }

    #[test]
    fn file_that_breaks_a_rule_is_refused_though_its_digest_is_right() {
        let good = serde_json::to_value(packed()).expect("JSON");
        let cases = [
            ("/format", serde_json::json!(2), "format"),
            ("/name", serde_json::json!("../db"), "name"),
            ("/name", serde_json::json!(""), "name"),
            ("/name", serde_json::json!("a".repeat(254)), "name"),
            ("/spec/contract", serde_json::json!(2), "spec.contract"),
            ("/spec/source", serde_json::json!(" "), "spec.source"),
            ("/fixtures", serde_json::json!(1), "string"),
        ];
        for (member, value, named) in cases {
            let mut other = good.clone();
            *other.pointer_mut(member).expect(member) = value;
            let bytes = other.to_string().into_bytes();
            let refusal = Pack::read_pinned(&bytes, Digest::of_bytes(&bytes)).expect_err(member);
            assert!(refusal.to_string().contains(named), "{member}: {refusal}");
        }
        let mut more = good;
        more["limits"] = serde_json::json!({"maxUnits": 99});
        let refusal = Pack::read(more.to_string().as_bytes()).expect_err("an unknown member");
        assert!(refusal.to_string().contains("limits"), "{refusal}");
        let large = vec![b' '; MAX_PACK_BYTES + 1];
        assert_eq!(Pack::read(&large), Err(PackError::TooLarge));
        assert!(Pack::read(b"return function(i) end").is_err());
    }
}
