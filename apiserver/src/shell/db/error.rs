//! Why the store cannot be used.

use std::io;
use std::path::{Path, PathBuf};

use super::failure::Failure;
use super::layout::FORMAT_VERSION;
use crate::shell::snapshot_files;

/// Why the store cannot be opened or written.
#[derive(Debug, thiserror::Error)]
pub enum DbError {
    /// Somebody else has it open.
    #[error("the store {path:?} is in use by another process: stop that one first")]
    InUse {
        /// Path of the store's file.
        path: PathBuf,
    },
    /// A page, a table or an object of the file is unreadable.
    #[error(
        "the store {path:?} is damaged ({why}): {}",
        snapshot_files::advice(path)
    )]
    Damaged {
        /// Path of the store's file.
        path: PathBuf,
        /// Damage that was found.
        why: String,
    },
    /// The file's format is older or later than the one that this version reads.
    #[error(
        "the store {path:?} has {}, this version reads format {FORMAT_VERSION}: use the version that wrote it",
        describe_format(*found)
    )]
    Format {
        /// Path of the store's file.
        path: PathBuf,
        /// Format number in the file. `None` if the file carries no format number.
        found: Option<u64>,
    },
    /// The disk has no room.
    #[error("no room to write the store {path:?}: free some space")]
    Full {
        /// Path of the store's file.
        path: PathBuf,
        /// Error of the file system.
        #[source]
        source: io::Error,
    },
    /// Any other failure of the database or the file system.
    #[error("{action} the store {path:?}")]
    Io {
        /// Action that failed, as `open`.
        action: &'static str,
        /// The store's file, or the snapshot that could not be written.
        path: PathBuf,
        /// Error of the database, or of the file system below it.
        #[source]
        source: Box<redb::Error>,
    },
}

impl DbError {
    /// A file of the store's that the system does not let us use.
    pub(crate) fn unusable(action: &'static str, path: &Path, error: io::Error) -> Self {
        io_error(action, path, error.into())
    }
}

fn describe_format(found: Option<u64>) -> String {
    match found {
        Some(number) => format!("format {number}"),
        None => "no format number".to_owned(),
    }
}

pub(super) fn io_error(action: &'static str, path: &Path, error: Failure) -> DbError {
    let path = path.to_owned();
    match *error.0 {
        redb::Error::Io(source)
            if matches!(
                source.kind(),
                io::ErrorKind::StorageFull
                    | io::ErrorKind::QuotaExceeded
                    | io::ErrorKind::FileTooLarge
            ) =>
        {
            DbError::Full { path, source }
        }
        redb::Error::Corrupted(why) => DbError::Damaged { path, why },
        redb::Error::TableDoesNotExist(table) => DbError::Damaged {
            path,
            why: format!("table {table} is missing"),
        },
        source => DbError::Io {
            action,
            path,
            source: Box::new(source),
        },
    }
}
