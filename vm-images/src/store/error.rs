//! Why the cache of images cannot be used.

use std::io;
use std::path::{Path, PathBuf};

/// Why the cache cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An operation on a file of the cache failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Verb of the failed operation, for example `create`, worded to follow `cannot`.
        action: &'static str,
        /// File or directory that the operation was on.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A name of an image is invalid. Holds the name.
    #[error("{0:?} is no image name: lower-case words joined by '/', with an optional ':tag'")]
    Name(String),
    /// A reference does not hold a digest.
    #[error("{} does not hold a digest: delete it and build the image again", path.display())]
    Reference {
        /// Path of the file that should hold a digest.
        path: PathBuf,
    },
    /// The content of an artefact differs from its digest.
    #[error("{} is damaged ({problem}): delete this directory and build the image again", dir.display())]
    Damaged {
        /// Directory of the artefact, below `blobs`.
        dir: PathBuf,
        /// The difference that was found.
        problem: String,
    },
}

pub(super) trait StoreIo<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, StoreError>;
}

impl<T> StoreIo<T> for io::Result<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::Io {
            action,
            path: path.to_owned(),
            source,
        })
    }
}
