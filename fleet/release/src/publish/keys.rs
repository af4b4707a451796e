//! Keys of a publisher: Ed25519 in PKCS #8, one file each, readable by their user alone.

use std::fs::{self, DirBuilder};
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::Ed25519KeyPair;
use tempfile::NamedTempFile;
use tough::key_source::{KeySource, LocalKeySource};
use tough::schema::key::Key;
use tough::sign::Sign as _;

use super::error::{PublishError, of_file, refused};

/// Keys of the root, of which two sign it.
pub(super) const ROOTS: [&str; 3] = ["root-1", "root-2", "root-3"];
/// Keys that a new repository needs.
pub(super) const OF_INIT: [&str; 7] = [
    ROOTS[0],
    ROOTS[1],
    ROOTS[2],
    "targets",
    "snapshot",
    "timestamp",
    "releases",
];

/// A folder of keys.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    folder: PathBuf,
}

impl Keys {
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.pk8"))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.path(name).is_file()
    }

    /// Makes a key. An existing one is never replaced.
    pub(super) fn make(&self, name: &str) -> Result<(), PublishError> {
        let path = self.path(name);
        if path.exists() {
            let what = format!("key {}", path.display());
            return Err(refused(
                what,
                "it is there already: choose another folder for keys",
            ));
        }
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
            .map_err(|_| PublishError::Broken("there is no randomness for a key".to_owned()))?;
        let write = || {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o700).create(&self.folder)?;
            let mut file = NamedTempFile::new_in(&self.folder)?;
            file.write_all(key.as_ref())?;
            file.as_file().sync_all()?;
            file.persist_noclobber(&path).map_err(|error| error.error)?;
            fs::File::open(&self.folder)?.sync_all()
        };
        write().map_err(of_file(&path))
    }

    /// The public half of a key.
    pub(super) fn read(&self, name: &str) -> Result<Key, PublishError> {
        let path = self.path(name);
        if !self.has(name) {
            return Err(PublishError::NoKey(format!(
                "key {} is not there: this change is for those who hold it",
                path.display()
            )));
        }
        let bytes = fs::read(&path).map_err(of_file(&path))?;
        let pair = Ed25519KeyPair::from_pkcs8(&bytes).map_err(|error| {
            let text = format!(
                "key {} is no Ed25519 key in PKCS #8: {error}",
                path.display()
            );
            PublishError::NoKey(text)
        })?;
        Ok(pair.tuf_key())
    }

    /// The public half of a key, which is made if it is not there.
    pub(super) fn make_or_read(&self, name: &str) -> Result<Key, PublishError> {
        if !self.has(name) {
            self.make(name)?;
        }
        self.read(name)
    }

    /// Those of these keys that are here, for signing.
    pub(super) fn sources(&self, names: &[&str]) -> Result<Vec<Box<dyn KeySource>>, PublishError> {
        let mut sources: Vec<Box<dyn KeySource>> = Vec::new();
        for name in names.iter().filter(|name| self.has(name)) {
            self.read(name)?;
            let path = self.path(name);
            sources.push(Box::new(LocalKeySource { path }));
        }
        if sources.is_empty() {
            return Err(PublishError::NoKey(format!(
                "{} has no key {}: this change is for those who hold it",
                self.folder.display(),
                names.join(" or ")
            )));
        }
        Ok(sources)
    }
}
