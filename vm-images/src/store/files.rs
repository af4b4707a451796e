//! Files of the cache: references, and everything below a directory.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use protocol::image::Digest;

use super::error::{StoreError, StoreIo};

/// The digest in the first line of a reference. `None` if there is no such file.
pub(super) fn read_digest(path: &Path) -> Result<Option<Digest>, StoreError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(e) if e.kind() == ErrorKind::IsADirectory => return Ok(None),
        Err(e) => return Err(e).at("read", path),
    };
    let first = text.lines().next().unwrap_or_default();
    let damaged = |_| StoreError::Reference {
        path: path.to_owned(),
    };
    Digest::parse(first.trim()).map(Some).map_err(damaged)
}

/// Every file below a directory, sorted.
pub(super) fn files_below(root: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut files = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).at("list", &dir)? {
            let path = entry.at("list", &dir)?.path();
            if path.is_dir() {
                &mut pending
            } else {
                &mut files
            }
            .push(path);
        }
    }
    files.sort();
    Ok(files)
}
