//! Files of a container image: a directory, or one tar archive that is read in place.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use protocol::image::Digest;
use sha2::{Digest as _, Sha256};

use super::tar::{Archive, Kind, TarError};

/// Longest accepted document in bytes: index, manifest or configuration.
const MAX_DOCUMENT: u64 = 4 << 20;
/// Most entries of the outer archive. An image needs a few for each layer.
const MAX_ENTRIES: usize = 100_000;
/// Most links from name to name. Old versions of docker linked equal layers.
const MAX_LINKS: u32 = 8;

/// Why an image cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The image's directory, archive or a file in it cannot be read. Holds its path.
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] io::Error),
    /// The file is not a tar archive. Holds its path.
    #[error("{0} is not an archive of an image")]
    Archive(PathBuf, #[source] TarError),
    /// The archive is compressed. Holds its path.
    #[error("{0} is compressed as a whole: unpack it first (gzip -d, zstd -d)")]
    Compressed(PathBuf),
    /// The archive has too many entries. Holds its path.
    #[error("{0} has more than {MAX_ENTRIES} entries: it is not an archive of an image")]
    Many(PathBuf),
    /// The image lacks a file. Holds its name.
    #[error("the image has no {0:?}: it is incomplete")]
    Missing(String),
    /// A document is too long.
    #[error("{name:?} of the image has {bytes} bytes, the limit is {MAX_DOCUMENT}")]
    Long {
        /// Name of the document inside the image.
        name: String,
        /// Length of the document, above the limit of 4 MiB.
        bytes: u64,
    },
    /// The digest of a file differs from its name.
    #[error("{name:?} of the image is damaged: its SHA-256 is {found}")]
    Digest {
        /// Name inside the image, which contains the expected digest.
        name: String,
        /// SHA-256 of the content that was read.
        found: Digest,
    },
    /// A name leads out of the image. Holds the name.
    #[error("{0:?} is not a name inside an image")]
    Name(String),
}

#[derive(Debug)]
pub(super) enum Store {
    /// A directory with one file per entry.
    Directory(PathBuf),
    /// One tar archive.
    Archive {
        path: PathBuf,
        entries: BTreeMap<String, EntryData>,
    },
}

/// Content of an archive's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EntryData {
    /// Offset and length in bytes.
    At(u64, u64),
    /// The content of another entry, by name.
    Same(String),
}

impl Store {
    /// Opens a directory or an archive.
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let read = |error| StoreError::Read(path.to_owned(), error);
        if fs::metadata(path).map_err(read)?.is_dir() {
            return Ok(Self::Directory(path.to_owned()));
        }
        let mut file = File::open(path).map_err(read)?;
        let mut magic = [0; 4];
        let n = file.read(&mut magic).map_err(read)?;
        if magic[..n].starts_with(&[0x1f, 0x8b]) || magic[..n] == [0x28, 0xb5, 0x2f, 0xfd] {
            return Err(StoreError::Compressed(path.to_owned()));
        }
        file.rewind().map_err(read)?;
        let entries = entries(file, path)?;
        Ok(Self::Archive {
            path: path.to_owned(),
            entries,
        })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.reader(name).is_ok()
    }

    /// Opens a file, and returns its length in bytes.
    pub(super) fn reader(&self, name: &str) -> Result<(Box<dyn Read>, u64), StoreError> {
        let is_plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
        if !name.split('/').all(is_plain) {
            return Err(StoreError::Name(name.chars().take(200).collect()));
        }
        match self {
            Self::Directory(dir) => {
                let path = dir.join(name);
                let read = |error: io::Error| match error.kind() {
                    io::ErrorKind::NotFound => StoreError::Missing(name.to_owned()),
                    _ => StoreError::Read(path.clone(), error),
                };
                let file = File::open(&path).map_err(read)?;
                let meta = file.metadata().map_err(read)?;
                if !meta.is_file() {
                    return Err(StoreError::Missing(name.to_owned()));
                }
                Ok((Box::new(file.take(meta.len())), meta.len()))
            }
            Self::Archive { path, entries } => {
                let (at, bytes) = find(entries, name)?;
                let read = |error| StoreError::Read(path.clone(), error);
                let mut file = File::open(path).map_err(read)?;
                file.seek(SeekFrom::Start(at)).map_err(read)?;
                Ok((Box::new(file.take(bytes)), bytes))
            }
        }
    }

    pub(super) fn document(&self, name: &str) -> Result<Vec<u8>, StoreError> {
        let (mut reader, bytes) = self.reader(name)?;
        if bytes > MAX_DOCUMENT {
            let name = name.to_owned();
            return Err(StoreError::Long { name, bytes });
        }
        let mut content = Vec::new();
        reader
            .read_to_end(&mut content)
            .map_err(|error| StoreError::Read(PathBuf::from(name), error))?;
        Ok(content)
    }

    /// Reads the document with this digest.
    pub(super) fn blob(&self, digest: &Digest) -> Result<Vec<u8>, StoreError> {
        let name = blob_name(digest);
        let content = self.document(&name)?;
        let found = crate::digest::of_bytes(&content);
        if found == *digest {
            Ok(content)
        } else {
            Err(StoreError::Digest { name, found })
        }
    }
}

/// Path of a blob in an OCI layout.
pub(super) fn blob_name(digest: &Digest) -> String {
    format!("blobs/sha256/{digest}")
}

fn find(entries: &BTreeMap<String, EntryData>, name: &str) -> Result<(u64, u64), StoreError> {
    let mut at = name;
    for _ in 0..MAX_LINKS {
        match entries.get(at) {
            Some(EntryData::At(offset, bytes)) => return Ok((*offset, *bytes)),
            Some(EntryData::Same(other)) => at = other,
            None => break,
        }
    }
    Err(StoreError::Missing(name.to_owned()))
}

/// Reads the names and places of an archive's entries.
fn entries(file: File, path: &Path) -> Result<BTreeMap<String, EntryData>, StoreError> {
    let bad = |error| StoreError::Archive(path.to_owned(), error);
    let mut archive = Archive::new(BufReader::new(file));
    let mut entries = BTreeMap::new();
    while let Some(header) = archive.entry().map_err(bad)? {
        let name = header.path.trim_start_matches("./").to_owned();
        let place = match header.kind {
            Kind::File => EntryData::At(archive.position(), header.bytes),
            Kind::HardLink => EntryData::Same(header.link),
            Kind::Symlink => EntryData::Same(beside(&name, &header.link)),
            _ => continue,
        };
        entries.insert(name, place);
        if entries.len() > MAX_ENTRIES {
            return Err(StoreError::Many(path.to_owned()));
        }
    }
    Ok(entries)
}

/// Resolves a relative link in the archive, from the directory of `name`.
fn beside(name: &str, link: &str) -> String {
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// A reader that hashes what it reads.
pub(super) struct Hashed<R> {
    inner: R,
    hash: Sha256,
    bytes: u64,
}

impl<R: Read> Hashed<R> {
    pub(super) fn new(inner: R) -> Self {
        Self {
            inner,
            hash: Sha256::new(),
            bytes: 0,
        }
    }

    /// Reads the rest, and returns digest and length of everything.
    pub(super) fn finish(mut self) -> io::Result<(Digest, u64)> {
        io::copy(&mut self, &mut io::sink())?;
        Ok((Digest::from_bytes(self.hash.finalize().into()), self.bytes))
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.hash.update(&buffer[..n]);
        self.bytes += n as u64;
        Ok(n)
    }
}
