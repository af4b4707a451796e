//! Bearer tokens: `Authorization: Bearer TOKEN`.
//!
//! | token | made | stored |
//! |---|---|---|
//! | [`random`] | at each start | in memory |
//! | [`kept`] | once | in a file of mode 0600 |
//! | [`VmKey::token`] | from a kept key and the VM's identity | wherever the key is |

use std::fmt;
use std::io;
use std::path::Path;

use hmac::{Hmac, Mac as _};
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use sha2::{Digest as _, Sha256};

use crate::{durable, secret};

/// Random bytes of a token or key.
const RANDOM_BYTES: usize = 32;
/// Longest file of a token or key in bytes.
const FILE_LIMIT_BYTES: u64 = 1024;

/// The token that a caller must show, as its SHA-256 digest: comparing digests takes a time that
/// reveals nothing about the token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Expected([u8; 32]);

impl Expected {
    /// Expects exactly the text `token`, without a scheme in front.
    #[must_use]
    pub fn new(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }

    /// Whether `token` is the expected one.
    #[must_use]
    pub fn is(&self, token: &[u8]) -> bool {
        <[u8; 32]>::from(Sha256::digest(token)) == self.0
    }

    /// Whether a request with these headers has the expected token.
    #[must_use]
    pub fn is_shown(&self, headers: &HeaderMap) -> bool {
        shown(headers).is_some_and(|token| self.is(token))
    }
}

impl fmt::Debug for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Expected(not shown)")
    }
}

/// Token of a request's `Authorization` header.
#[must_use]
pub fn shown(headers: &HeaderMap) -> Option<&[u8]> {
    headers
        .get(AUTHORIZATION)?
        .as_bytes()
        .strip_prefix(b"Bearer ")
}

/// A new token of 32 random bytes, in hexadecimal digits.
#[must_use]
pub fn random() -> String {
    hex(&rand::random::<[u8; RANDOM_BYTES]>())
}

/// The token in the file at `path`. The first call makes the file, with mode 0600.
///
/// # Errors
/// The file cannot be made or read, is readable by other users, or holds no token.
pub fn kept(path: &Path) -> io::Result<String> {
    match secret::read(path, FILE_LIMIT_BYTES) {
        Ok(content) => token_of(path, &content),
        Err(secret::SecretError::Read { source, .. })
            if source.kind() == io::ErrorKind::NotFound =>
        {
            let token = random();
            durable::replace(path, format!("{token}\n").as_bytes())?;
            Ok(token)
        }
        Err(error) => Err(io::Error::other(error)),
    }
}

fn token_of(path: &Path, content: &[u8]) -> io::Result<String> {
    let text = std::str::from_utf8(content).unwrap_or_default().trim();
    if is_token(text) {
        return Ok(text.to_owned());
    }
    Err(io::Error::other(format!(
        "{} must hold {} hexadecimal digits: remove it, and the next start makes a new one",
        path.display(),
        2 * RANDOM_BYTES
    )))
}

fn is_token(text: &str) -> bool {
    text.len() == 2 * RANDOM_BYTES && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Errors of a key file.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read, or other users may read it.
    #[error(transparent)]
    File(#[from] secret::SecretError),
    /// The file holds no key.
    #[error(transparent)]
    NoKey(io::Error),
}

impl KeyError {
    /// Whether the file is missing.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        match self {
            Self::File(secret::SecretError::Read { source, .. }) => {
                source.kind() == io::ErrorKind::NotFound
            }
            _ => false,
        }
    }
}

/// Key from which the token of each VM's monitor is derived. The node driver gives the token to the
/// guest, and the agent shows it to the monitor; neither stores it.
#[derive(Clone)]
pub struct VmKey(String);

impl VmKey {
    /// The key in the file at `path`. The first call makes the file.
    ///
    /// # Errors
    /// Those of [`kept`].
    pub fn load_or_create(path: &Path) -> io::Result<Self> {
        kept(path).map(Self)
    }

    /// The key in a file that another program has made and may replace.
    ///
    /// # Errors
    /// The file cannot be read, is readable by other users, or holds no key.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let content = secret::read(path, FILE_LIMIT_BYTES)?;
        token_of(path, &content).map(Self).map_err(KeyError::NoKey)
    }

    /// The key in a text of the format of [`random`]; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        is_token(text).then(|| Self(text.to_owned()))
    }

    /// Token of one VM: HMAC-SHA256 of `NAMESPACE/NAME/UID`, in hexadecimal digits. A later VM of
    /// the same name has another uid and so another token.
    #[must_use]
    pub fn token(&self, namespace: &str, name: &str, uid: &str) -> String {
        let mac = Hmac::<Sha256>::new_from_slice(self.0.as_bytes());
        // HMAC takes a key of any length.
        let Ok(mut mac) = mac else {
            unreachable!("a key of {} bytes", self.0.len())
        };
        mac.update(format!("{namespace}/{name}/{uid}").as_bytes());
        hex(&mac.finalize().into_bytes())
    }
}

impl fmt::Debug for VmKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VmKey(not shown)")
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn headers(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, value.parse().expect("a header"));
        headers
    }

    #[test]
    fn only_the_expected_token_is_accepted() {
        let token = random();
        let expected = Expected::new(&token);
        assert!(expected.is_shown(&headers(&format!("Bearer {token}"))));
        assert!(!expected.is_shown(&HeaderMap::new()));
        for wrong in [
            token.clone(),
            format!("Basic {token}"),
            format!("Bearer {token}0"),
            format!("Bearer {}", random()),
            "Bearer ".to_owned(),
        ] {
            assert!(!expected.is_shown(&headers(&wrong)), "{wrong}");
        }
        assert!(!format!("{expected:?}").contains(&token));
    }

    #[test]
    fn kept_token_is_made_once_and_is_private() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let token = kept(&path).expect("made");
        assert_eq!(token.len(), 64);
        assert_eq!(kept(&path).expect("read"), token);
        let mode = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode));
        let found = std::fs::metadata(&path).expect("is there").permissions();
        assert_eq!(found.mode() & 0o777, 0o600);
        mode(0o644).expect("set");
        assert!(kept(&path).expect_err("open").to_string().contains("0600"));
        mode(0o600).expect("set");
        for wrong in ["", "0", "not hexadecimal"] {
            std::fs::write(&path, wrong).expect("written");
            let error = kept(&path).expect_err(wrong).to_string();
            assert!(error.contains("64 hexadecimal digits"), "{error}");
        }
    }

    #[test]
    fn key_is_loaded_from_a_private_file_and_never_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        assert!(VmKey::load(&path).expect_err("missing").is_missing());
        let made = VmKey::load_or_create(&path).expect("made");
        let loaded = VmKey::load(&path).expect("loaded");
        let token = |key: &VmKey| key.token("default", "pg", "1");
        assert_eq!(token(&loaded), token(&made));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("set");
        let error = VmKey::load(&path).expect_err("open");
        assert!(
            !error.is_missing() && error.to_string().contains("0600"),
            "{error}"
        );
        assert!(VmKey::parse(&random()).is_some() && VmKey::parse("short").is_none());
    }

    #[test]
    fn token_of_a_vm_depends_on_key_namespace_name_and_uid() {
        let key = VmKey("k".repeat(64));
        let token = key.token("default", "pg", "1-2");
        // printf default/pg/1-2 | openssl dgst -sha256 -hmac kkk…
        assert_eq!(token, OPENSSL);
        assert_eq!(key.token("default", "pg", "1-2"), token);
        for (namespace, name, uid) in [
            ("other", "pg", "1-2"),
            ("default", "pg2", "1-2"),
            ("default", "pg", "1-3"),
        ] {
            assert_ne!(key.token(namespace, name, uid), token);
        }
        assert_ne!(VmKey("l".repeat(64)).token("default", "pg", "1-2"), token);
        assert!(!format!("{key:?}").contains("kk"));
    }

    const OPENSSL: &str = "e2292047b28ed5c88d168c41e85e2efaf2524e262a169fb80ee0eb10be57c142";
}
