//! Checksum of a directory of files. Runner and daemon are upgraded separately, so the algorithm is
//! fixed. Source: docs/compatibility/neonvm.md §3.7.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use blake2::digest::consts::U32;
use blake2::{Blake2b, Digest};

/// BLAKE2b-256 over the files sorted by name: each as name, a zero byte, the length as 64 bits
/// little-endian, content. Encoded as standard base64 without padding.
#[must_use]
pub fn checksum(files: &BTreeMap<String, Vec<u8>>) -> String {
    let mut hash = Blake2b::<U32>::new();
    for (name, content) in files {
        hash.update(name.as_bytes());
        hash.update([0]);
        hash.update(
            u64::try_from(content.len())
                .unwrap_or(u64::MAX)
                .to_le_bytes(),
        );
        hash.update(content);
    }
    STANDARD_NO_PAD.encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &[u8])]) -> String {
        checksum(
            &files
                .iter()
                .map(|(n, c)| ((*n).to_owned(), c.to_vec()))
                .collect(),
        )
    }

    #[test]
    fn known_values() {
        // Computed with another implementation of BLAKE2b (Python's hashlib, digest_size=32).
        assert_eq!(of(&[]), "DldRwCblQ7Loqy6wYJnaodHl30d3j3eH+qtFzfEv46g");
        assert_eq!(of(&[("a", b"x")]), A_X);
        assert_eq!(of(&[("b", b""), ("a", b"hello\n")]), A_B);
    }

    const A_X: &str = "R8iKWsEoYMk86C76Ij7ZkXjHR2OLYp9wbP7ATnj/LHQ";
    const A_B: &str = "VXYZJJhAMfi3jany7z4ngfhXcknH/8rGcU8hq9R+l3I";

    #[test]
    fn byte_moved_from_name_to_content_changes_the_checksum() {
        assert_ne!(of(&[("ab", b"c")]), of(&[("a", b"bc")]));
        assert_ne!(
            of(&[("a", b"b"), ("c", b"")]),
            of(&[("a", b""), ("c", b"b")])
        );
    }
}
