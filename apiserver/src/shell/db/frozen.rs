//! Copies of a store that is in use.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use redb::backends::FileBackend;
use redb::{Builder, ReadableTable as _};

use super::error::{DbError, io_error};
use super::failure::Failure;
use super::layout::{CACHE_BYTES, META, OBJECTS};

/// The store as it was at one moment.
#[expect(missing_debug_implementations, reason = "redb's transaction has none")]
pub struct Frozen(pub(super) redb::ReadTransaction);

impl Frozen {
    /// Writes a store with the same content, identity and position to `path`, which must not exist.
    /// When it returns the file survives a crash of the machine.
    ///
    /// # Errors
    /// See [`DbError`]; half a file is then removed.
    pub fn copy_to(&self, path: &Path) -> Result<(), DbError> {
        // Made first: redb would make it readable for everybody.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| DbError::unusable("copy", path, error))?;
        let copied = match catch_unwind(AssertUnwindSafe(|| self.fill(file))) {
            Ok(copied) => copied.map_err(|error| io_error("copy", path, error)),
            Err(_) => Err(DbError::Damaged {
                path: path.to_owned(),
                why: "a page of the original cannot be read".to_owned(),
            }),
        };
        let copied = copied.and_then(|()| {
            daemon_kit::durable::sync_folder_of(path)
                .map_err(|error| DbError::unusable("copy", path, error))
        });
        if copied.is_err() {
            let _ = std::fs::remove_file(path);
        }
        copied
    }

    fn fill(&self, file: File) -> Result<(), Failure> {
        let db = Builder::new()
            .set_cache_size(CACHE_BYTES)
            .create_with_backend(FileBackend::new(file)?)?;
        let transaction = db.begin_write()?;
        {
            let mut objects = transaction.open_table(OBJECTS)?;
            for row in self.0.open_table(OBJECTS)?.iter()? {
                let (key, value) = row?;
                objects.insert(key.value(), value.value())?;
            }
            let mut meta = transaction.open_table(META)?;
            for row in self.0.open_table(META)?.iter()? {
                let (key, value) = row?;
                meta.insert(key.value(), value.value())?;
            }
        }
        transaction.commit()?;
        db.close()?;
        Ok(())
    }
}
