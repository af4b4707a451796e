//! Who may ask for permits: anyone, as in the deployed system, or whoever has a token of a file.
//!
//! ```text
//! # one token a line; after it, the only node whose pods it may ask for
//! 0f3c27a9d15e4b60 node-7
//! 77ab90c41d2e8f35
//! ```
//!
//! Several tokens are valid at once, so that they can be changed one by one.

use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use protocol::permit::PermitRefusal;

/// Shortest token: what is shorter can be guessed.
const MIN_TOKEN: usize = 16;
/// Longest file.
const MAX_FILE: u64 = 1 << 20;
/// Most tokens: each is compared with, whoever asks.
const MAX_TOKENS: usize = 4096;

/// What a caller may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Scope {
    /// Pods of any node.
    AnyNode,
    /// Pods of this node.
    Node(String),
}

/// Who may ask. Tokens are never shown.
#[derive(Default)]
pub struct Callers(Option<Vec<(String, Scope)>>);

/// Why a file of tokens is not used.
#[derive(Debug, thiserror::Error)]
pub enum CallersError {
    /// It cannot be read.
    #[error("could not read {path}")]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Others than its owner may read it.
    #[error("{path} has mode {mode:03o}; nobody but its owner may read it (0600)")]
    Open {
        /// Its path.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It says something else than tokens.
    #[error("{path}, line {line}: {why}")]
    Line {
        /// Its path.
        path: PathBuf,
        /// Which line, from 1; 0 for the file as a whole.
        line: usize,
        /// What is wrong.
        why: &'static str,
    },
}

impl Callers {
    /// Anyone who reaches the port.
    #[must_use]
    pub const fn anyone() -> Self {
        Self(None)
    }

    /// Whoever has a token of this file.
    ///
    /// # Errors
    /// [`CallersError`].
    pub fn load(path: &Path) -> Result<Self, CallersError> {
        let failed = |source| CallersError::Read {
            path: path.to_owned(),
            source,
        };
        let file = std::fs::File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let path = path.to_owned();
            return Err(CallersError::Open { path, mode });
        }
        let mut text = String::new();
        file.take(MAX_FILE)
            .read_to_string(&mut text)
            .map_err(failed)?;
        let tokens = parse(&text).map_err(|(line, why)| CallersError::Line {
            path: path.to_owned(),
            line,
            why,
        })?;
        Ok(Self(Some(tokens)))
    }

    /// What the sender of this `Authorization` header may ask for.
    pub(super) fn scope(&self, header: Option<&[u8]>) -> Result<Scope, PermitRefusal> {
        let Some(tokens) = &self.0 else {
            return Ok(Scope::AnyNode);
        };
        let given = header.and_then(|header| header.strip_prefix(b"Bearer "));
        let given = given.ok_or(PermitRefusal::Unauthorized)?;
        // Every token is looked at, so that the time taken tells nothing of them.
        let found = tokens.iter().fold(None, |found, (token, scope)| {
            let same = is_same(token.as_bytes(), given);
            found.or(same.then_some(scope))
        });
        found.cloned().ok_or(PermitRefusal::Unauthorized)
    }
}

fn parse(text: &str) -> Result<Vec<(String, Scope)>, (usize, &'static str)> {
    let mut tokens = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let mut words = line.split_whitespace();
        let Some(token) = words.next().filter(|word| !word.starts_with('#')) else {
            continue;
        };
        let scope = words
            .next()
            .map_or(Scope::AnyNode, |node| Scope::Node(node.to_owned()));
        if words.next().is_some() {
            return Err((number, "more than a token and a node"));
        }
        if token.len() < MIN_TOKEN {
            return Err((number, "a token has at least 16 characters"));
        }
        tokens.push((token.to_owned(), scope));
    }
    match tokens.len() {
        0 => Err((0, "there is no token in it")),
        count if count > MAX_TOKENS => Err((0, "there are more than 4096 tokens in it")),
        _ => Ok(tokens),
    }
}

/// Takes as long wherever they differ.
fn is_same(token: &[u8], given: &[u8]) -> bool {
    let differ = token
        .iter()
        .zip(given)
        .fold(0, |differ, (a, b)| differ | (a ^ b));
    token.len() == given.len() && std::hint::black_box(differ) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "0123456789abcdef";
    const SECOND: &str = "fedcba9876543210";

    #[test]
    fn a_token_says_what_may_be_asked_for() {
        let text = format!("# ours\n{FIRST}\n\n  {SECOND}  node-7 \n");
        let callers = Callers(Some(parse(&text).expect("is valid")));
        let scope = |header: &str| callers.scope(Some(header.as_bytes()));
        assert_eq!(scope(&format!("Bearer {FIRST}")), Ok(Scope::AnyNode));
        let node = Scope::Node("node-7".into());
        assert_eq!(scope(&format!("Bearer {SECOND}")), Ok(node));
        for wrong in [
            "",
            "Bearer ",
            FIRST,
            "Bearer 0123456789abcdeg",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdeff",
            "Basic 0123456789abcdef",
        ] {
            assert_eq!(scope(wrong), Err(PermitRefusal::Unauthorized), "{wrong:?}");
        }
        assert_eq!(callers.scope(None), Err(PermitRefusal::Unauthorized));
        assert_eq!(Callers::anyone().scope(None), Ok(Scope::AnyNode));
    }

    #[test]
    fn a_file_that_is_wrong_is_not_used() {
        for (text, expected) in [
            ("", (0, "there is no token in it")),
            ("# only this\n", (0, "there is no token in it")),
            ("short", (1, "a token has at least 16 characters")),
            (
                "\n0123456789abcdef a b",
                (2, "more than a token and a node"),
            ),
        ] {
            assert_eq!(parse(text), Err(expected), "{text:?}");
        }
        let many = format!("{FIRST}\n").repeat(MAX_TOKENS + 1);
        assert!(parse(&many).is_err());

        let dir = tempfile::tempdir().expect("makes a directory");
        let path = dir.path().join("tokens");
        assert!(matches!(
            Callers::load(&path),
            Err(CallersError::Read { .. })
        ));
        std::fs::write(&path, FIRST).expect("writes");
        let mode = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode));
        for open in [0o644, 0o640, 0o604] {
            mode(open).expect("sets");
            let error = Callers::load(&path).err().expect("is open");
            assert!(
                error.to_string().contains(&format!("mode {open:03o}")),
                "{error}"
            );
        }
        mode(0o600).expect("sets");
        assert!(Callers::load(&path).is_ok());
    }
}
