//! Callers that may request permits. A scheduler without a configured proof refuses every caller,
//! unless it is started for anyone ([`Callers::anyone`]), as the deployed system is.
//!
//! | proof | caller |
//! |---|---|
//! | a client certificate signed by a given authority | an agent, beside a token |
//! | the secret that this process shares with its agent | the agent of one machine |
//! | a token of a file | an agent, of one node or all |
//! | a token that the API server accepts ([`super::review`]) | an agent's service account |
//!
//! One token of any kind is enough. The file of tokens:
//!
//! ```text
//! # one token a line; after it, the only node whose pods it may ask for
//! 0f3c27a9d15e4b60 node-7
//! 77ab90c41d2e8f35
//! ```
//!
//! Several tokens are valid at once, so that they can be changed one by one. Files may be replaced
//! at any time.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use daemon_kit::bearer::Expected;
use daemon_kit::reload::{Files, Reloaded};
use daemon_kit::secret::{self, SecretError};
use daemon_kit::tls::Server;
use protocol::permit::{PermitRefusal, Unproved};
use protocol::time::{Span, Timestamp};

/// Shortest token, in characters. A shorter one can be guessed.
const MIN_TOKEN: usize = 16;
const MAX_FILE: u64 = 1 << 20;
/// Most tokens of a file. Every request is compared with all of them.
const MAX_TOKENS: usize = 4096;
/// Shortest time between two checks of a file.
const CHECK_GAP: Span = Span::from_secs(1);

/// The pods that a caller may request permits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Scope {
    /// Pods of all nodes.
    AnyNode,
    /// Pods of this node.
    Node(Arc<str>),
}

/// The rule for token reviews.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReviewRule {
    /// The audience that a token must have.
    pub audience: String,
    /// Accepted users, such as `system:serviceaccount:kube-system:autoscaler-agent`.
    pub users: BTreeSet<String>,
    /// How long an accepted token is not reviewed again.
    pub lasts: Span,
}

/// The proofs that callers must give.
#[derive(Default)]
pub struct Callers {
    /// TLS on the permit port, with the authority of client certificates. `None`: plain HTTP.
    pub tls: Option<Server>,
    /// A file of tokens.
    pub tokens: Option<TokenFile>,
    /// The rule for tokens that the API server reviews.
    pub review: Option<ReviewRule>,
    /// The token of the agent in this process.
    pub secret: Option<Expected>,
    /// Without any of these tokens: whether callers need none. Their proof is then a certificate,
    /// or the operator wants no proof.
    pub needs_no_token: bool,
}

/// Why a file of tokens cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CallersError {
    /// The file cannot be read, or other users may read it.
    #[error(transparent)]
    File(#[from] SecretError),
    /// A line is no token.
    #[error("{path}, line {line}: {why}")]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line, from 1. 0: the file as a whole.
        line: usize,
        /// The error, as text.
        why: &'static str,
    },
}

impl Callers {
    /// Every client that reaches the port.
    #[must_use]
    pub fn anyone() -> Self {
        Self {
            needs_no_token: true,
            ..Self::default()
        }
    }

    /// Only the agent with this token.
    #[must_use]
    pub fn only(secret: Expected) -> Self {
        Self {
            secret: Some(secret),
            ..Self::default()
        }
    }
}

/// The tokens of a file. It has no `Debug`, so that no log shows them.
pub struct TokenFile(Mutex<Checked>);

struct Checked {
    at: Timestamp,
    tokens: Arc<Vec<(String, Scope)>>,
    file: Reloaded<TokenPath>,
}

struct TokenPath(PathBuf);

impl Files for TokenPath {
    const WHAT: &'static str = "tokens";
    type Content = Arc<Vec<(String, Scope)>>;
    type Error = CallersError;

    fn paths(&self) -> Vec<&Path> {
        vec![&self.0]
    }

    fn read(&self) -> Result<Self::Content, CallersError> {
        let content = secret::read(&self.0, MAX_FILE)?;
        let text = std::str::from_utf8(&content).map_err(|_| (0, "it is not text"));
        let tokens = text.and_then(parse);
        tokens
            .map(Arc::new)
            .map_err(|(line, why)| CallersError::Line {
                path: self.0.clone(),
                line,
                why,
            })
    }
}

impl TokenFile {
    /// Reads the file.
    ///
    /// # Errors
    /// [`CallersError`] if the file cannot be read, other users may read it, or a line is no token.
    pub fn load(path: &Path) -> Result<Self, CallersError> {
        let mut file = Reloaded::load(TokenPath(path.to_owned()))?;
        let (tokens, _) = file.renew()?;
        let at = Timestamp(0);
        Ok(Self(Mutex::new(Checked { at, tokens, file })))
    }

    /// The pods that a caller with this token may request permits for.
    pub(super) fn scope(&self, now: Timestamp, given: &[u8]) -> Result<Scope, PermitRefusal> {
        // Compares with every token, so that the time does not depend on the tokens.
        let tokens = self.tokens(now);
        let found = tokens.iter().fold(None, |found, (token, scope)| {
            let same = is_same(token.as_bytes(), given);
            found.or(same.then_some(scope))
        });
        found
            .cloned()
            .ok_or(PermitRefusal::Unauthorized(Unproved::BadToken))
    }

    /// The tokens of the current file, or of the last one that could be used.
    fn tokens(&self, now: Timestamp) -> Arc<Vec<(String, Scope)>> {
        let mut checked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if checked.at + CHECK_GAP <= now {
            checked.at = now;
            if let Ok((tokens, _)) = checked.file.renew() {
                checked.tokens = tokens;
            }
        }
        Arc::clone(&checked.tokens)
    }
}

/// The token of an `Authorization` header.
pub(super) fn bearer(header: Option<&[u8]>) -> Result<&[u8], PermitRefusal> {
    header
        .and_then(|header| header.strip_prefix(b"Bearer "))
        .ok_or(PermitRefusal::Unauthorized(Unproved::NoToken))
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
            .map_or(Scope::AnyNode, |node| Scope::Node(node.into()));
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

/// Compares in a time that does not depend on where they differ.
fn is_same(token: &[u8], given: &[u8]) -> bool {
    let differ = token
        .iter()
        .zip(given)
        .fold(0, |differ, (a, b)| differ | (a ^ b));
    token.len() == given.len() && std::hint::black_box(differ) == 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const FIRST: &str = "0123456789abcdef";
    const SECOND: &str = "fedcba9876543210";

    const START: Timestamp = Timestamp(1_000_000);

    /// Replaces a file atomically.
    fn put(path: &Path, text: &str, mode: u32) {
        let next = path.with_extension("next");
        std::fs::write(&next, text).expect("writes");
        std::fs::set_permissions(&next, PermissionsExt::from_mode(mode)).expect("sets");
        std::fs::rename(next, path).expect("renames");
    }

    #[test]
    fn token_grants_the_scope_of_its_line() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let path = dir.path().join("tokens");
        put(
            &path,
            &format!("# ours\n{FIRST}\n\n  {SECOND}  node-7 \n"),
            0o600,
        );
        let file = TokenFile::load(&path).expect("is valid");
        let scope = |header: &str| {
            bearer(Some(header.as_bytes())).and_then(|token| file.scope(START, token))
        };
        assert_eq!(scope(&format!("Bearer {FIRST}")), Ok(Scope::AnyNode));
        let node = Scope::Node("node-7".into());
        assert_eq!(scope(&format!("Bearer {SECOND}")), Ok(node));
        let bad = Err(PermitRefusal::Unauthorized(Unproved::BadToken));
        for wrong in [
            "Bearer ",
            "Bearer 0123456789abcdeg",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdeff",
        ] {
            assert_eq!(scope(wrong), bad, "{wrong:?}");
        }
        let none = Err(PermitRefusal::Unauthorized(Unproved::NoToken));
        for wrong in ["", FIRST, "Basic 0123456789abcdef"] {
            assert_eq!(scope(wrong), none, "{wrong:?}");
        }
        assert!(bearer(None).is_err());
    }

    #[test]
    fn replaced_file_is_used_unless_it_is_invalid() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let path = dir.path().join("tokens");
        put(&path, FIRST, 0o600);
        let file = TokenFile::load(&path).expect("is valid");
        let may = |now, token: &str| file.scope(now, token.as_bytes()).is_ok();
        assert!(may(START, FIRST) && !may(START, SECOND));
        put(&path, SECOND, 0o600);
        assert!(may(START, FIRST), "it was looked at just now");
        let mut now = START + CHECK_GAP;
        assert!(may(now, SECOND) && !may(now, FIRST));
        for (text, mode) in [(FIRST, 0o644), ("short", 0o600)] {
            put(&path, text, mode);
            now = now + CHECK_GAP;
            assert!(may(now, SECOND) && !may(now, FIRST), "{text} {mode:o}");
        }
        std::fs::remove_file(&path).expect("removes");
        now = now + CHECK_GAP;
        assert!(may(now, SECOND));
        put(&path, FIRST, 0o600);
        now = now + CHECK_GAP;
        assert!(may(now, FIRST) && !may(now, SECOND));
    }

    #[test]
    fn invalid_file_is_not_used() {
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
            TokenFile::load(&path),
            Err(CallersError::File(SecretError::Read { .. }))
        ));
        std::fs::write(&path, FIRST).expect("writes");
        let mode = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode));
        for open in [0o644, 0o660, 0o604] {
            mode(open).expect("sets");
            let error = TokenFile::load(&path).err().expect("is open");
            assert!(
                error.to_string().contains(&format!("mode {open:04o}")),
                "{error}"
            );
        }
        mode(0o600).expect("sets");
        assert!(TokenFile::load(&path).is_ok());
    }
}
