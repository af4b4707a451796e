//! Failures of a publisher, and files that are replaced as a whole.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::NamedTempFile;

/// Why a repository was not changed.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// A rule forbids the change.
    #[error("{what}: {rule}")]
    Refused {
        /// Release, channel, key or file that is refused.
        what: String,
        /// The rule, and what to do instead.
        rule: String,
    },
    /// The folder of the keys lacks one.
    #[error("{0}")]
    NoKey(String),
    /// The repository or a program cannot be read or written.
    #[error("{what}: {error}")]
    Io {
        /// Path of the file.
        what: String,
        /// Failure of the file system.
        error: io::Error,
    },
    /// The metadata in the folder does not hold.
    #[error("{0}")]
    Broken(String),
}

pub(super) fn refused(what: impl Into<String>, rule: impl Into<String>) -> PublishError {
    PublishError::Refused {
        what: what.into(),
        rule: rule.into(),
    }
}

pub(super) fn of_file(path: &Path) -> impl FnOnce(io::Error) -> PublishError {
    let what = path.display().to_string();
    move |error| PublishError::Io { what, error }
}

/// Replaces a file that servers hand out.
pub(super) fn put(path: &Path, content: &[u8]) -> Result<(), PublishError> {
    let folder = path.parent().unwrap_or(path);
    let write = || {
        fs::create_dir_all(folder)?;
        let mut file = NamedTempFile::new_in(folder)?;
        file.write_all(content)?;
        let mode = fs::Permissions::from_mode(0o644);
        file.as_file().set_permissions(mode)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        fs::File::open(folder)?.sync_all()
    };
    write().map_err(of_file(path))
}
