//! A checksum in a record, for `#[serde(with = "hash")]`.

use serde::{Deserialize, Deserializer, Serializer};

/// A checksum as it is written: eight lower-case hex digits.
#[must_use]
pub fn hash_text(hash: u32) -> String {
    format!("{hash:08x}")
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
pub(super) fn serialize<S: Serializer>(hash: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&hash_text(*hash))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let text = String::deserialize(deserializer)?;
    u32::from_str_radix(&text, 16).map_err(serde::de::Error::custom)
}
