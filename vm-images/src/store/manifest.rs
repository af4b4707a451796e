//! Manifests of artefacts: as text, read back with their digest, and held against the files.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use protocol::image::{Digest, FileRecord};

use super::error::{StoreError, StoreIo};
use crate::digest;

/// Longest accepted manifest in bytes. A guest's has about 60 KiB.
const MANIFEST_BYTES: u64 = 4 << 20;

pub(super) fn to_json(value: &impl serde::Serialize) -> Vec<u8> {
    let mut json = serde_json::to_vec_pretty(value).expect("manifests have string keys only");
    json.push(b'\n');
    json
}

/// Reads a manifest and checks its digest, which is the name of its directory.
pub(super) fn read_manifest(
    dir: &Path,
    file: &str,
    digest: &Digest,
) -> Result<Vec<u8>, StoreError> {
    let damaged = |problem: &str| StoreError::Damaged {
        dir: dir.to_owned(),
        problem: format!("{file} {problem}"),
    };
    let path = dir.join(file);
    let length = match fs::metadata(&path) {
        Ok(meta) => meta.len(),
        Err(e) if e.kind() == ErrorKind::NotFound => return Err(damaged("is missing")),
        Err(e) => return Err(e).at("read", &path),
    };
    if length > MANIFEST_BYTES {
        return Err(damaged("is too long"));
    }
    let bytes = fs::read(&path).at("read", &path)?;
    if digest::of_bytes(&bytes) == *digest {
        Ok(bytes)
    } else {
        Err(damaged("has changed"))
    }
}

pub(super) fn check_lengths<'a>(
    dir: &Path,
    files: impl Iterator<Item = (&'a String, &'a FileRecord)>,
) -> Result<(), StoreError> {
    for (name, record) in files {
        let path = dir.join(name);
        let found = fs::metadata(&path).map(|meta| meta.len()).ok();
        if found != Some(record.bytes) {
            let problem = match found {
                Some(bytes) => format!("{name} has {bytes} bytes instead of {}", record.bytes),
                None => format!("{name} is missing"),
            };
            return Err(StoreError::Damaged {
                dir: dir.to_owned(),
                problem,
            });
        }
    }
    Ok(())
}
