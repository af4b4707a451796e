//! Files that hold secrets: read whole or not at all, and only while nobody but their owner may.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Bits of a file's mode that let others than its owner at it.
const OTHERS: u32 = 0o077;

/// Why a file's content is not used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Others than its owner may read or write it.
    #[error("{} can be read by others than its owner (mode {mode:04o}): make it 0600 or 0400", .path.display())]
    Open {
        /// Its path.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It has more than can belong in it.
    #[error("{} has more than {limit} bytes", .path.display())]
    TooLong {
        /// Its path.
        path: PathBuf,
        /// The most there may be, bytes.
        limit: u64,
    },
}

/// The content of a file of at most `limit` bytes that only its owner may read. It is the mode of the file that is read, not
/// of one that has its name by then.
///
/// # Errors
/// [`SecretError`]; the message names the file, the rule and what to do.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, SecretError> {
    let (mode, content) = read_public(path, limit)?;
    if mode & OTHERS != 0 {
        return Err(SecretError::Open {
            path: path.to_owned(),
            mode,
        });
    }
    Ok(content)
}

/// Mode and content of a file of at most `limit` bytes that goes with a secret, like a certificate with its key.
///
/// # Errors
/// [`SecretError::Read`] and [`SecretError::TooLong`].
pub fn read_public(path: &Path, limit: u64) -> Result<(u32, Vec<u8>), SecretError> {
    let unreadable = |source| SecretError::Read {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.mode() & 0o7777;
    let mut content = Vec::new();
    let read = file
        .take(limit.saturating_add(1))
        .read_to_end(&mut content)
        .map_err(unreadable)?;
    if read as u64 > limit {
        return Err(SecretError::TooLong {
            path: path.to_owned(),
            limit,
        });
    }
    Ok((mode, content))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_what_its_owner_alone_may_read_is_read_and_only_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        assert!(matches!(read(&path, 4), Err(SecretError::Read { .. })));
        fs::write(&path, "four").expect("written");
        for (mode, is_read) in [
            (0o600, true),
            (0o400, true),
            (0o640, false),
            (0o602, false),
            (0o601, false),
        ] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
            match read(&path, 4) {
                Ok(content) => assert!(is_read && content == b"four", "{mode:o}"),
                Err(SecretError::Open { mode: found, .. }) => {
                    assert!(!is_read && found == mode, "{mode:o}");
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert!(read_public(&path, 4).is_ok());
        let long = read(&path, 3).expect_err("too long").to_string();
        assert!(long.ends_with("has more than 3 bytes"), "{long}");
    }
}
