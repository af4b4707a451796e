//! The store on disk: one redb file with all objects as JSON text.
//!
//! A file has an identity, a random number made with it, and a position, the last revision given
//! out. Both together say whether an object that is absent was deleted or was never known here: see
//! [`Db::fork_if_older`].
//!
//! A file that was there and cannot be read is an error that names it, never an empty store: a new
//! file is made under another name and moved into place only once it is whole, so an empty or short
//! file is always damage.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{
    Builder, Database, ReadableDatabase as _, ReadableTable as _, ReadableTableMetadata as _,
};

use crate::core::object::Object;
use crate::core::store::Store;
use crate::core::view::{CRD_KIND, Change, ObjectKey};

mod error;
mod failure;
mod frozen;
mod layout;
mod position;
mod storage;

use error::io_error;
use failure::Failure;
use layout::{CACHE_BYTES, COUNT, FORMAT, FORMAT_VERSION, ID, META, OBJECTS, REVISION};

pub use error::DbError;
pub use frozen::Frozen;
pub use position::Position;
pub use storage::{File, Storage};

/// Open database file of a store.
#[derive(Debug)]
pub struct Db {
    path: PathBuf,
    storage: Arc<dyn Storage>,
    /// `None` after a failed write: the file is then opened again before the next one.
    open: Option<Database>,
}

impl Db {
    /// Opens the file, or makes it if there is none.
    ///
    /// # Errors
    /// See [`DbError`].
    pub fn open(path: &Path) -> Result<Self, DbError> {
        Self::open_on(path, Arc::new(File))
    }

    /// Like [`Db::open`], with another reader and writer of the file's bytes.
    ///
    /// # Errors
    /// See [`DbError`].
    pub fn open_on(path: &Path, storage: Arc<dyn Storage>) -> Result<Self, DbError> {
        if !path
            .try_exists()
            .map_err(|error| io_error("look for", path, error.into()))?
        {
            create(path)?;
        }
        let db = Self {
            path: path.to_owned(),
            open: Some(storage::open(&*storage, path)?),
            storage,
        };
        if db.guarded(|db| meta(db, ID))?.is_none() {
            db.guarded(|db| set_id(db, rand::random()))?;
        }
        Ok(db)
    }

    /// A new store that never reaches a disk.
    ///
    /// # Errors
    /// See [`DbError`].
    #[cfg(feature = "testing")]
    pub fn in_memory() -> Result<Self, DbError> {
        let path = PathBuf::from("(memory)");
        let make = || -> Result<Database, Failure> {
            let backend = redb::backends::InMemoryBackend::new();
            let mut builder = Builder::new();
            let db = builder
                .set_cache_size(CACHE_BYTES)
                .create_with_backend(backend)?;
            lay_out(&db)?;
            Ok(db)
        };
        let db = make().map_err(|error| io_error("create", &path, error))?;
        Ok(Self {
            path,
            storage: Arc::new(File),
            open: Some(db),
        })
    }

    /// Identity of the store and the last revision given out.
    ///
    /// # Errors
    /// See [`DbError`].
    pub fn position(&self) -> Result<Position, DbError> {
        self.guarded(|db| {
            Ok(Position {
                id: meta(db, ID)?.unwrap_or(0),
                revision: meta(db, REVISION)?.unwrap_or(0),
            })
        })
    }

    /// Gives the store a new identity if somebody has seen a later position of it: it is an older
    /// copy then, and from here on its revisions mean other changes. `true` if it did. Must precede
    /// the first commit.
    ///
    /// # Errors
    /// See [`DbError`].
    pub fn fork_if_older(&self, seen: &[Position]) -> Result<bool, DbError> {
        let own = self.position()?;
        let is_older = seen
            .iter()
            .any(|seen| seen.id == own.id && seen.revision > own.revision);
        if is_older {
            self.guarded(|db| set_id(db, rand::random()))?;
        }
        Ok(is_older)
    }

    /// A view of what is committed now. It does not hold up later commits.
    ///
    /// # Errors
    /// See [`DbError`].
    pub fn frozen(&self) -> Result<Frozen, DbError> {
        self.guarded(|db| Ok(Frozen(db.begin_read()?)))
    }

    /// Reads all objects into `store`, definitions of kinds first.
    ///
    /// # Errors
    /// [`DbError::Damaged`] when any object is unreadable or the count is wrong.
    pub fn load(&self, store: &mut Store) -> Result<(), DbError> {
        let damaged = |why: String| DbError::Damaged {
            path: self.path.clone(),
            why,
        };
        let (rows, count, format) = self.guarded(|db| {
            let transaction = db.begin_read()?;
            let meta = transaction.open_table(META)?;
            let number = |key: &str| -> Result<Option<u64>, Failure> {
                Ok(meta.get(key)?.map(|value| value.value()))
            };
            let mut rows = Vec::new();
            for row in transaction.open_table(OBJECTS)?.iter()? {
                let (key, value) = row?;
                rows.push((key.value().to_owned(), value.value().to_owned()));
            }
            Ok((rows, number(COUNT)?.unwrap_or(u64::MAX), number(FORMAT)?))
        })?;
        if format != Some(FORMAT_VERSION) {
            return Err(DbError::Format {
                path: self.path.clone(),
                found: format,
            });
        }
        if count != rows.len() as u64 {
            return Err(damaged(format!(
                "{} objects instead of {count}",
                rows.len()
            )));
        }
        let mut objects = Vec::with_capacity(rows.len());
        for (key, text) in rows {
            let (kind, place) =
                parse_key(&key).ok_or_else(|| damaged(format!("strange key {key:?}")))?;
            let object =
                Object::from_stored(&text).map_err(|why| damaged(format!("{key:?}: {why}")))?;
            objects.push((kind, place, object));
        }
        objects.sort_by_key(|(kind, ..)| kind != CRD_KIND);
        for (kind, place, object) in objects {
            store.load(&kind, place, object);
        }
        Ok(())
    }

    /// Opens the file again if a failed write has closed it.
    ///
    /// # Errors
    /// See [`DbError`].
    pub fn reopen(&mut self) -> Result<(), DbError> {
        if self.open.is_none() {
            self.open = Some(storage::open(&*self.storage, &self.path)?);
        }
        Ok(())
    }

    /// Makes changes durable: when this returns `Ok`, they survive a crash of the machine.
    ///
    /// # Errors
    /// [`DbError::Full`] or [`DbError::Io`]; nothing of `changes` is then kept.
    pub fn commit(&mut self, changes: &[Change]) -> Result<(), DbError> {
        self.reopen()?;
        let written = self.guarded(|db| write(db, changes));
        if written.is_err() {
            // After a failed write redb refuses everything until it has read the file anew.
            self.open = None;
        }
        written
    }

    /// Runs `action`; a panic inside redb over a damaged page is an error too.
    fn guarded<T>(
        &self,
        action: impl FnOnce(&Database) -> Result<T, Failure>,
    ) -> Result<T, DbError> {
        let Some(db) = &self.open else {
            let why = "it is closed".to_owned();
            return Err(DbError::Damaged {
                path: self.path.clone(),
                why,
            });
        };
        match catch_unwind(AssertUnwindSafe(|| action(db))) {
            Ok(result) => result.map_err(|error| io_error("access", &self.path, error)),
            Err(_) => Err(DbError::Damaged {
                path: self.path.clone(),
                why: "a page cannot be read".to_owned(),
            }),
        }
    }
}

fn meta(db: &Database, key: &str) -> Result<Option<u64>, Failure> {
    let transaction = db.begin_read()?;
    let meta = transaction.open_table(META)?;
    Ok(meta.get(key)?.map(|value| value.value()))
}

fn set_id(db: &Database, id: u64) -> Result<(), Failure> {
    let transaction = db.begin_write()?;
    transaction.open_table(META)?.insert(ID, id)?;
    transaction.commit()?;
    Ok(())
}

fn write(db: &Database, changes: &[Change]) -> Result<(), Failure> {
    let transaction = db.begin_write()?;
    {
        let mut objects = transaction.open_table(OBJECTS)?;
        let mut meta = transaction.open_table(META)?;
        for change in changes {
            let key = format_key(&change.kind, &change.place);
            if change.removed {
                objects.remove(key.as_str())?;
            } else {
                objects.insert(key.as_str(), &*change.after.json)?;
            }
        }
        if let Some(last) = changes.last() {
            meta.insert(REVISION, last.after.revision)?;
        }
        meta.insert(COUNT, objects.len()?)?;
    }
    transaction.commit()?;
    Ok(())
}

/// Makes a whole, empty store beside `path` and moves it into place.
fn create(path: &Path) -> Result<(), DbError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    match std::fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(io_error("create", path, error.into()));
        }
        _ => {}
    }
    let make = || -> Result<(), Failure> {
        let db = Builder::new().set_cache_size(CACHE_BYTES).create(&beside)?;
        lay_out(&db)?;
        db.close()?;
        Ok(())
    };
    make().map_err(|error| io_error("create", path, error))?;
    let place = || -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o600))?;
        std::fs::rename(&beside, path)?;
        daemon_kit::durable::sync_folder_of(path)
    };
    place().map_err(|error| io_error("create", path, error.into()))
}

/// Makes the tables of an empty store.
fn lay_out(db: &Database) -> Result<(), Failure> {
    let transaction = db.begin_write()?;
    transaction.open_table(OBJECTS)?;
    {
        let mut meta = transaction.open_table(META)?;
        meta.insert(FORMAT, FORMAT_VERSION)?;
        meta.insert(COUNT, 0)?;
        meta.insert(REVISION, 0)?;
        meta.insert(ID, rand::random::<u64>())?;
    }
    transaction.commit()?;
    Ok(())
}

fn format_key(kind: &str, place: &ObjectKey) -> String {
    format!("{kind}\0{}\0{}", place.0, place.1)
}

fn parse_key(key: &str) -> Option<(String, ObjectKey)> {
    let mut parts = key.split('\0');
    let parsed = (
        parts.next()?.to_owned(),
        (parts.next()?.to_owned(), parts.next()?.to_owned()),
    );
    parts.next().is_none().then_some(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load_error_with_format(format: Option<u64>) -> String {
        let dir = tempfile::tempdir().expect("a directory");
        let db = Db::open(&dir.path().join("api.redb")).expect("a new store");
        db.guarded(|db| {
            let transaction = db.begin_write()?;
            {
                let mut meta = transaction.open_table(META)?;
                match format {
                    Some(number) => meta.insert(FORMAT, number)?,
                    None => meta.remove(FORMAT)?,
                };
            }
            transaction.commit()?;
            Ok(())
        })
        .expect("written");
        let error = db.load(&mut Store::default()).expect_err("another format");
        error.to_string()
    }

    #[test]
    fn another_format_is_named_beside_the_one_that_is_read() {
        for number in [0, 2] {
            let text = load_error_with_format(Some(number));
            let expected = format!("has format {number}, this version reads format 1");
            assert!(text.contains(&expected), "{text}");
        }
    }

    #[test]
    fn missing_format_number_is_named() {
        let text = load_error_with_format(None);
        assert!(text.contains("has no format number"), "{text}");
    }
}
