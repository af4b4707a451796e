//! The key that authenticates the runner to the guest's daemon. A guest gets one per boot, in the
//! runner's directory and on the guest's runtime drive.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Length of a key in bytes.
pub const KEY_BYTES: usize = 32;

/// A key as 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GuestdKey(String);

/// Error for a text that is not a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the key of the guest's daemon is not 64 digits of 0-9 and a-f")]
pub struct NotAKey;

impl GuestdKey {
    /// Makes a key from random bytes.
    #[must_use]
    pub fn new(random: [u8; KEY_BYTES]) -> Self {
        Self(random.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The 64 hexadecimal digits that the runner sends to the guest's daemon.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for GuestdKey {
    type Error = NotAKey;

    fn try_from(text: String) -> Result<Self, NotAKey> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() == 2 * KEY_BYTES && text.bytes().all(is_digit) {
            Ok(Self(text))
        } else {
            Err(NotAKey)
        }
    }
}

impl From<GuestdKey> for String {
    fn from(key: GuestdKey) -> Self {
        key.0
    }
}

/// Logs must not hold the key.
impl fmt::Debug for GuestdKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GuestdKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_64_hexadecimal_digits_are_a_key() {
        let key = GuestdKey::new([0xa5; KEY_BYTES]);
        assert_eq!(key.as_str(), "a5".repeat(32));
        assert_eq!(GuestdKey::try_from(key.as_str().to_owned()), Ok(key));
        for wrong in ["", "a5", &"A5".repeat(32), &"a\n".repeat(32)] {
            assert_eq!(GuestdKey::try_from(wrong.to_owned()), Err(NotAKey));
        }
    }

    #[test]
    fn debug_output_does_not_hold_the_key() {
        let key = GuestdKey::new([0xa5; KEY_BYTES]);
        assert_eq!(format!("{key:?}"), "GuestdKey(..)");
    }
}
