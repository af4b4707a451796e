//! What reads and writes the bytes of a store's file.

use std::fmt::Debug;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use redb::{Builder, Database, DatabaseError};

use super::error::{DbError, io_error};
use super::failure::Failure;
use super::layout::CACHE_BYTES;

/// What reads and writes the bytes of a store's file. A test puts a disk that loses writes here.
pub trait Storage: Debug + Send + Sync {
    /// Opens a file that is there.
    ///
    /// # Errors
    /// See [`DatabaseError`].
    fn open(&self, builder: &Builder, path: &Path) -> Result<Database, DatabaseError>;
}

/// A plain file of the file system.
#[derive(Debug)]
pub struct File;

impl Storage for File {
    fn open(&self, builder: &Builder, path: &Path) -> Result<Database, DatabaseError> {
        builder.open(path)
    }
}

pub(super) fn open(storage: &dyn Storage, path: &Path) -> Result<Database, DbError> {
    let damaged = |why: String| DbError::Damaged {
        path: path.to_owned(),
        why,
    };
    let opened = catch_unwind(AssertUnwindSafe(|| {
        let mut builder = Builder::new();
        builder
            .set_cache_size(CACHE_BYTES)
            .set_check_integrity_on_open(true);
        storage.open(&builder, path)
    }));
    match opened {
        Err(_) => Err(damaged("a page cannot be read".to_owned())),
        Ok(Ok(db)) => Ok(db),
        Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => Err(DbError::InUse {
            path: path.to_owned(),
        }),
        Ok(Err(error)) => match redb::Error::from(error) {
            redb::Error::Corrupted(why) => Err(damaged(why)),
            redb::Error::Io(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
                ) =>
            {
                Err(damaged(error.to_string()))
            }
            error => Err(io_error("open", path, Failure(Box::new(error)))),
        },
    }
}
