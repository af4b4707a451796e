//! A repository without signatures: a folder of the user who reads it.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use reqwest::Url;
use sha2::{Digest as _, Sha256};

use crate::anchor::hex;
use crate::error::ReadError;
use crate::fetch::Fetcher;
use crate::layout::TARGETS;

/// Bits of a mode that let others write.
const OTHERS_WRITE: u32 = 0o022;

/// A folder that only its user changes.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    path: PathBuf,
    fetcher: Fetcher,
}

impl Folder {
    /// Checks that only this user, or root, can change the folder.
    pub(crate) fn open(fetcher: Fetcher, url: &Url) -> Result<Self, ReadError> {
        let path = url.to_file_path().map_err(|()| {
            ReadError::Refused(format!(
                "{url} must be a file: URL: trust Local has no signatures"
            ))
        })?;
        for one in [path.clone(), path.join(TARGETS), path.join("v1")] {
            check(&one)?;
        }
        Ok(Self { path, fetcher })
    }

    /// Reads a target by its name. Its file carries the hash of its content.
    pub(crate) async fn target(&self, name: &str, most: u64) -> Result<Option<Bytes>, ReadError> {
        let folder = self.path.join(TARGETS);
        let Some((sha256, file)) = find(&folder, name)? else {
            return Ok(None);
        };
        let content = self.file(&format!("{TARGETS}/{file}"), most).await?;
        if content
            .as_ref()
            .is_some_and(|it| hex(&Sha256::digest(it)) != sha256)
        {
            let path = folder.join(file);
            let text = format!("{} does not have the hash of its name", path.display());
            return Err(ReadError::Unverified(text));
        }
        Ok(content)
    }

    /// Reads a file of the folder.
    pub(crate) async fn file(&self, path: &str, most: u64) -> Result<Option<Bytes>, ReadError> {
        let path = self.path.join(path);
        let url = Url::from_file_path(&path)
            .map_err(|()| ReadError::Invalid(format!("{} is no absolute path", path.display())))?;
        let within = self.fetcher.limits.within;
        match self.fetcher.read(&url, most, within).await {
            Ok(content) => Ok(Some(content)),
            Err(crate::fetch::FetchError::NotFound(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Names of all targets.
    pub(crate) fn names(&self) -> Result<Vec<String>, ReadError> {
        let all = list(&self.path.join(TARGETS))?;
        let names = all.iter().filter_map(|file| file.split_once('.'));
        Ok(names.map(|(_, name)| name.to_owned()).collect())
    }
}

fn check(path: &Path) -> Result<(), ReadError> {
    let metadata = std::fs::metadata(path).map_err(|error| unavailable(path, &error))?;
    let of_process = std::fs::metadata("/proc/self").map_err(|error| unavailable(path, &error))?;
    let is_own = metadata.uid() == of_process.uid() || metadata.uid() == 0;
    if is_own && metadata.mode() & OTHERS_WRITE == 0 {
        return Ok(());
    }
    Err(ReadError::Refused(format!(
        "{} must be of this user and writable by it alone: trust Local has no signatures. Mend it: \
         chmod go-w, or choose trust Tuf",
        path.display()
    )))
}

fn unavailable(path: &Path, error: &std::io::Error) -> ReadError {
    ReadError::Unavailable(format!("failed to read {}: {error}", path.display()))
}

fn list(folder: &Path) -> Result<Vec<String>, ReadError> {
    let entries = std::fs::read_dir(folder).map_err(|error| unavailable(folder, &error))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.collect())
}

/// The one file of a target: its hash and its name.
fn find(folder: &Path, name: &str) -> Result<Option<(String, String)>, ReadError> {
    let all = list(folder)?;
    let mut found = all.iter().filter_map(|file| {
        let (sha256, rest) = file.split_once('.')?;
        (sha256.len() == 64 && rest == name).then(|| (sha256.to_owned(), file.clone()))
    });
    let first = found.next();
    if found.next().is_some() {
        let text = format!("{} has two files of {name}", folder.display());
        return Err(ReadError::Invalid(text));
    }
    Ok(first)
}
