//! The files the server keeps beside its store: private ones are 0600 and replaced whole.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;

/// Bytes of randomness in the token.
const TOKEN_BYTES: usize = 32;
/// Fewest characters of a token that somebody else has put there: 128 bits in base64.
const TOKEN_CHARS: usize = 22;

/// A file that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{action} {path:?}")]
pub struct FileError {
    /// Action that failed, as `read`.
    pub action: &'static str,
    /// The file or directory that the call was about.
    pub path: PathBuf,
    /// Error of the system call.
    #[source]
    pub source: io::Error,
}

/// Makes a `map_err` function.
pub(crate) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError {
        action,
        path,
        source,
    }
}

/// Makes a directory (and those above) for our eyes only.
///
/// # Errors
/// When it cannot be made.
pub fn make_private_dir(path: &Path) -> Result<(), FileError> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.map_err(failed("create directory", path))
}

/// Writes a 0600 file: a new file beside it, made durable, then put in its place, so that no reader
/// sees half of it.
///
/// # Errors
/// When any step fails; an older file is then untouched.
pub fn write_private(path: &Path, text: &str) -> Result<(), FileError> {
    let written = daemon_kit::durable::replace(path, text.as_bytes());
    written.map_err(failed("write", path))
}

/// Reads a file; `None` if there is none.
///
/// # Errors
/// For any other failure.
pub fn read_if_there(path: &Path) -> Result<Option<String>, FileError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path)(error)),
    }
}

/// The bearer token, made on first use.
///
/// # Errors
/// When the file cannot be read or written, or holds a token that can be guessed.
pub fn token(path: &Path) -> Result<String, FileError> {
    if let Some(text) = read_if_there(path)?
        && !text.trim().is_empty()
    {
        let token = text.trim();
        let chars = token.chars().count();
        if chars < TOKEN_CHARS {
            let why = format!(
                "it has {chars} characters, and at least {TOKEN_CHARS} are needed: remove the file to have a new token \
                 made (clients then need the new kubeconfig)"
            );
            let why = io::Error::new(io::ErrorKind::InvalidData, why);
            return Err(failed("use the token in", path)(why));
        }
        return Ok(token.to_owned());
    }
    let random: [u8; TOKEN_BYTES] = rand::random();
    let token = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(random);
    write_private(path, &format!("{token}\n"))?;
    Ok(token)
}

/// The kubeconfig for `kubectl` and clients: one cluster, one user, one context named `bellows`.
#[must_use]
pub fn kubeconfig(addr: SocketAddr, ca_pem: &str, token: &str) -> String {
    let ca = base64::engine::general_purpose::STANDARD.encode(ca_pem);
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: bellows\n\
         \x20 cluster:\n\
         \x20   server: https://{addr}\n\
         \x20   certificate-authority-data: {ca}\n\
         users:\n\
         - name: bellows\n\
         \x20 user:\n\
         \x20   token: {token}\n\
         contexts:\n\
         - name: bellows\n\
         \x20 context:\n\
         \x20   cluster: bellows\n\
         \x20   user: bellows\n\
         \x20   namespace: default\n\
         current-context: bellows\n"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn private_files_are_private_and_replaced() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("secret");
        write_private(&path, "one").expect("written");
        write_private(&path, "two").expect("written again");
        assert_eq!(fs::read_to_string(&path).expect("read"), "two");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn the_token_is_made_once() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("token");
        let first = token(&path).expect("made");
        assert_eq!(token(&path).expect("read"), first);
        assert!(first.len() >= 43);
    }

    #[test]
    fn token_that_can_be_guessed_is_refused() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("token");
        for short in ["x", "0123456789abcdefghijk"] {
            fs::write(&path, short).expect("written");
            let refused = daemon_kit::chain(&token(&path).expect_err("too short"));
            assert!(refused.contains("at least 22"), "{refused}");
        }
        fs::write(&path, "0123456789abcdefghijkl\n").expect("written");
        assert_eq!(token(&path).expect("long enough").len(), 22);
    }
}
