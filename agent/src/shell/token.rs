//! The token for the scheduler: given at the start, or in a file that may be replaced at any time,
//! such as the token of a service account.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use daemon_kit::reload::Stamp;
use daemon_kit::secret::{self, SecretError};
use hyper::header::HeaderValue;

/// Longest file, bytes. A service account's token has about a thousand.
const FILE_LIMIT_BYTES: u64 = 16 * 1024;

/// Why the token file gives no token.
#[derive(Debug, thiserror::Error)]
pub(super) enum TokenError {
    /// The file is missing, too large or open to others.
    #[error(transparent)]
    File(#[from] SecretError),
    /// The file holds no single token.
    #[error("{} must hold one token, without spaces", .0.display())]
    NoToken(PathBuf),
}

/// Source of the token.
#[derive(Debug)]
pub(super) enum Token {
    /// Given at the start.
    Fixed(HeaderValue),
    /// Content of a file.
    File(TokenFile),
}

impl Token {
    /// Value of `Authorization`.
    pub(super) fn header(&self) -> Result<HeaderValue, TokenError> {
        match self {
            Self::Fixed(header) => Ok(header.clone()),
            Self::File(file) => file.header(),
        }
    }
}

/// The value `Bearer TOKEN`; `None` if the token has bytes that no header can hold.
pub(super) fn bearer_header(token: &[u8]) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_bytes(&[b"Bearer ", token].concat()).ok()?;
    // Keeps the value out of logs and of header compression.
    value.set_sensitive(true);
    Some(value)
}

/// A token file and the header of its last content.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    /// Header, and the stamp of the file that it was read from.
    kept: Mutex<Option<(Stamp, HeaderValue)>>,
}

impl TokenFile {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self {
            path,
            kept: Mutex::new(None),
        }
    }

    /// The header. A changed file is read again.
    fn header(&self) -> Result<HeaderValue, TokenError> {
        // From before the read, so a later change is read next time.
        let now = Stamp::of([self.path.as_path()]);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((then, header)) = &*kept
            && now == *then
        {
            return Ok(header.clone());
        }
        *kept = None;
        let header = self.read()?;
        *kept = Some((now, header.clone()));
        Ok(header)
    }

    fn read(&self) -> Result<HeaderValue, TokenError> {
        let none = || TokenError::NoToken(self.path.clone());
        let content = secret::read(&self.path, FILE_LIMIT_BYTES)?;
        let token = content.trim_ascii();
        if token.is_empty() || !token.iter().all(u8::is_ascii_graphic) {
            return Err(none());
        }
        bearer_header(token).ok_or_else(none)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::*;

    fn put(path: &Path, content: &str) {
        let next = path.with_extension("next");
        fs::write(&next, content).expect("written");
        fs::set_permissions(&next, Permissions::from_mode(0o600)).expect("set");
        fs::rename(next, path).expect("renamed");
    }

    #[test]
    fn newest_token_is_used_and_none_that_is_missing_or_malformed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let token = TokenFile::new(path.clone());
        let shown = || token.header().map_err(|error| error.to_string());
        assert!(shown().is_err());
        for name in ["first", "other"] {
            put(&path, &format!("{name}\n"));
            for _ in 0..2 {
                let header = shown().expect("a token");
                assert_eq!(header.as_bytes(), format!("Bearer {name}").as_bytes());
                assert!(header.is_sensitive() && !format!("{header:?}").contains(name));
            }
        }
        for wrong in ["", " \n", "two words", "line\nline", "\u{fc}ber"] {
            put(&path, wrong);
            let error = shown().expect_err(wrong);
            assert!(error.contains("must hold one token"), "{error}");
        }
        put(&path, "third");
        assert!(shown().is_ok());
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("set");
        assert!(shown().expect_err("open").contains("0600"));
        fs::remove_file(&path).expect("removed");
        assert!(shown().is_err());
    }
}
