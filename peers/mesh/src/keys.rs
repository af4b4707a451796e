//! The key file: one key, or two while the key changes.
//!
//! The first key of the file seals what this machine sends. Each key of the file opens what it
//! receives. To change the key, give every machine the file with `old, new`, then with `new, old`,
//! then with `new` alone.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use daemon_kit::bearer::Expected;
use daemon_kit::secret;
use ring::hmac;

use crate::identity::{Identity, IdentityError};
use crate::seal::SealKey;

/// Most keys of a file.
const MAX_KEYS: usize = 2;
/// Hexadecimal digits of a key.
const DIGITS: usize = 64;
/// Longest file, bytes.
const FILE_LIMIT_BYTES: u64 = 1024;

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read, or other users may read it.
    #[error(transparent)]
    File(#[from] secret::SecretError),
    /// The file has another form.
    #[error("{0} must hold one or two keys of 64 hexadecimal digits, one a line")]
    Form(String),
    /// The certificate of a key cannot be made.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// What follows from one key.
pub(crate) struct Key {
    pub(crate) seal: SealKey,
    pub(crate) bearer: String,
    pub(crate) expected: Expected,
    pub(crate) identity: Identity,
}

/// The keys of this machine. Clones share them.
#[derive(Clone)]
pub struct Keys(Arc<Vec<Key>>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({}, not shown)", self.0.len())
    }
}

impl Keys {
    /// Reads a key file.
    ///
    /// # Errors
    /// [`KeyError`]
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let content = secret::read(path, FILE_LIMIT_BYTES)?;
        let secrets = parse(&content).ok_or_else(|| KeyError::Form(path.display().to_string()))?;
        Self::from_secrets(&secrets)
    }

    pub(crate) fn from_secrets(secrets: &[[u8; 32]]) -> Result<Self, KeyError> {
        let keys: Result<Vec<Key>, KeyError> = secrets.iter().map(Key::new).collect();
        Ok(Self(Arc::new(keys?)))
    }

    /// The key that seals what this machine sends.
    pub(crate) fn own(&self) -> &Key {
        // A file without a key is refused.
        &self.0[0]
    }

    pub(crate) fn all(&self) -> &[Key] {
        &self.0
    }
}

impl Key {
    fn new(secret: &[u8; 32]) -> Result<Self, KeyError> {
        let bearer: String = derive(secret, "bearer")
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Ok(Self {
            seal: SealKey::new(&derive(secret, "datagrams")),
            expected: Expected::new(&bearer),
            bearer,
            identity: Identity::new(&derive(secret, "tls"))?,
        })
    }
}

/// A key for one use. Nothing follows from it about the others.
fn derive(secret: &[u8; 32], purpose: &str) -> [u8; 32] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let tag = hmac::sign(&key, format!("bellows peers 1 {purpose}").as_bytes());
    let mut derived = [0; 32];
    derived.copy_from_slice(tag.as_ref());
    derived
}

fn parse(content: &[u8]) -> Option<Vec<[u8; 32]>> {
    let text = std::str::from_utf8(content).ok()?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let keys: Vec<[u8; 32]> = lines.map(key_of).collect::<Option<_>>()?;
    (1..=MAX_KEYS).contains(&keys.len()).then_some(keys)
}

fn key_of(line: &str) -> Option<[u8; 32]> {
    if line.len() != DIGITS || !line.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut key = [0; 32];
    for (index, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(line.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Requirement: V23
    #[test]
    fn v23_key_file_has_one_or_two_keys_and_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("peers.key");
        let write = |content: &str, mode| {
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Keys::load(&path)
                .map(|keys| keys.all().len())
                .map_err(|error| error.to_string())
        };
        let key = "0f".repeat(32);
        assert_eq!(write(&key, 0o600), Ok(1));
        assert_eq!(
            write(&format!("{key}\n{}\n", "a0".repeat(32)), 0o600),
            Ok(2)
        );
        for wrong in ["", "short", &"zz".repeat(32), &format!("{key}\n").repeat(3)] {
            assert!(
                write(wrong, 0o600)
                    .unwrap_err()
                    .contains("64 hexadecimal digits"),
                "{wrong}"
            );
        }
        assert!(write(&key, 0o644).unwrap_err().contains("make it 0600"));
    }
}
