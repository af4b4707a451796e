//! The token that an agent must show: the value of `Authorization: Bearer TOKEN` in the request for
//! the WebSocket. Only its holder may take the present agent's place.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

/// Longest file, bytes. A token of ours has 64.
const FILE_LIMIT_BYTES: u64 = 4096;
/// Shortest token: a shorter one can be guessed.
const MIN_BYTES: usize = 16;

/// Why there is no token to compare with.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// Token file, as configured by `--agent-token-file`.
        path: PathBuf,
        /// Error of opening or reading the file.
        #[source]
        source: io::Error,
    },
    /// The file holds something else.
    #[error("{} must hold one token of at least 16 printable characters without spaces", .0.display())]
    NoToken(PathBuf),
}

/// An agent's token. Clones share it.
#[derive(Clone, PartialEq, Eq)]
pub struct AgentToken(Arc<[u8]>);

impl AgentToken {
    /// Reads it from a file.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn load(path: &Path) -> Result<Self, TokenError> {
        let mut content = Vec::new();
        let read =
            File::open(path).and_then(|file| file.take(FILE_LIMIT_BYTES).read_to_end(&mut content));
        read.map_err(|source| TokenError::Read {
            path: path.to_owned(),
            source,
        })?;
        let token = content.trim_ascii();
        if token.len() < MIN_BYTES || !token.iter().all(u8::is_ascii_graphic) {
            return Err(TokenError::NoToken(path.to_owned()));
        }
        Ok(Self(token.into()))
    }

    /// Whether a request with these headers shows it. The comparison takes as long wherever the
    /// tokens differ.
    #[must_use]
    pub fn is_shown(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(AUTHORIZATION);
        let shown = shown.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        shown.is_some_and(|shown| {
            let pairs = self.0.iter().zip(shown);
            let differ = pairs.fold(0, |differ, (a, b)| differ | (a ^ b));
            self.0.len() == shown.len() && std::hint::black_box(differ) == 0
        })
    }
}

impl fmt::Debug for AgentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(not shown)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    #[test]
    fn only_the_whole_token_is_accepted() {
        let token = AgentToken(TOKEN.as_bytes().into());
        let shows = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().expect("a header"));
            token.is_shown(&headers)
        };
        assert!(shows("Bearer 0123456789abcdef"));
        assert!(!token.is_shown(&HeaderMap::new()));
        for wrong in [
            "",
            "Bearer ",
            TOKEN,
            "Basic 0123456789abcdef",
            "Bearer 0123456789abcdeg",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
        ] {
            assert!(!shows(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn a_file_without_a_token_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let load = || AgentToken::load(&path).map_err(|error| error.to_string());
        assert!(load().expect_err("none").contains("cannot read"));
        std::fs::write(&path, format!("{TOKEN}\n")).expect("written");
        assert!(load().is_ok());
        for wrong in ["", "\n", "short", "0123456789 abcdef"] {
            std::fs::write(&path, wrong).expect("written");
            assert!(
                load().expect_err(wrong).contains("at least 16"),
                "{wrong:?}"
            );
        }
    }
}
