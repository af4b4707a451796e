//! Hashing of files, holes included, and of whole trees.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use nix::unistd::{Whence, lseek64};
use protocol::image::{Digest, FileRecord};
use sha2::{Digest as _, Sha256};

/// Bytes per read. The cost of the system call is small beside the hashing.
const CHUNK: usize = 1 << 20;

/// SHA-256 of a byte string.
#[must_use]
pub fn of_bytes(bytes: &[u8]) -> Digest {
    Digest::from_bytes(Sha256::digest(bytes).into())
}

/// Digests of texts in their order, for example of a builder's sources.
pub(crate) fn of_texts(texts: &[&str]) -> Vec<Digest> {
    let digests = texts.iter().map(|text| of_bytes(text.as_bytes()));
    digests.collect()
}

/// Length and SHA-256 of a file. Holes count as zeros and are not read.
///
/// `on_progress` gets the number of bytes hashed so far.
pub(crate) fn of_file(path: &Path, on_progress: &mut dyn FnMut(u64)) -> io::Result<FileRecord> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut hasher = Sha256::new();
    let mut buffer = vec![0u8; CHUNK];
    let zeros = vec![0u8; CHUNK];
    let mut at = 0u64;
    while at < length {
        let data = next_data(&file, at, length)?;
        while at < data {
            let n = CHUNK.min(usize::try_from(data - at).unwrap_or(CHUNK));
            hasher.update(&zeros[..n]);
            at += n as u64;
        }
        let hole = next_hole(&file, at, length)?;
        file.seek(SeekFrom::Start(at))?;
        while at < hole {
            let n = CHUNK.min(usize::try_from(hole - at).unwrap_or(CHUNK));
            file.read_exact(&mut buffer[..n])?;
            hasher.update(&buffer[..n]);
            at += n as u64;
            on_progress(at);
        }
    }
    Ok(FileRecord {
        bytes: length,
        sha256: Digest::from_bytes(hasher.finalize().into()),
    })
}

fn next_data(file: &File, at: u64, length: u64) -> io::Result<u64> {
    seek_to(file, at, Whence::SeekData, length)
}

fn next_hole(file: &File, at: u64, length: u64) -> io::Result<u64> {
    if at >= length {
        Ok(length)
    } else {
        seek_to(file, at, Whence::SeekHole, length)
    }
}

/// After the last data the kernel returns ENXIO: the rest of the file is a hole.
fn seek_to(file: &File, at: u64, whence: Whence, length: u64) -> io::Result<u64> {
    let at = i64::try_from(at).map_err(io::Error::other)?;
    match lseek64(file, at, whence) {
        Ok(found) => Ok(u64::try_from(found).map_err(io::Error::other)?.min(length)),
        Err(nix::errno::Errno::ENXIO) => Ok(length),
        Err(error) => Err(error.into()),
    }
}

/// SHA-256 of the sorted listing of a tree, and the bytes of its files.
///
/// Each entry is a line with path, type, mode, size, and the SHA-256 of the content or the link's
/// target. Owners and times are left out, because they depend on the user who built the tree.
pub(crate) fn of_tree(root: &Path, on_progress: &mut dyn FnMut(u64)) -> io::Result<(Digest, u64)> {
    let mut hasher = Sha256::new();
    let mut total = 0u64;
    let mut pending = vec![root.to_path_buf()];
    let mut entries = Vec::new();
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(&dir)? {
            let path = entry?.path();
            if path.symlink_metadata()?.is_dir() {
                pending.push(path.clone());
            }
            entries.push(path);
        }
    }
    entries.sort();
    for path in entries {
        let meta = path.symlink_metadata()?;
        let name = path.strip_prefix(root).map_err(io::Error::other)?;
        let mode = meta.permissions().mode() & 0o7777;
        let kind = meta.file_type();
        let tail = if kind.is_symlink() {
            format!("link {}", std::fs::read_link(&path)?.display())
        } else if kind.is_dir() {
            "dir".to_owned()
        } else if kind.is_file() {
            let record = of_file(&path, &mut |_| {})?;
            total += record.bytes;
            on_progress(total);
            format!("file {} {}", record.bytes, record.sha256)
        } else {
            format!("special {} {}", kind.is_char_device(), meta.rdev())
        };
        hasher.update(format!("{}\0{mode:o}\0{tail}\n", name.display()));
    }
    Ok((Digest::from_bytes(hasher.finalize().into()), total))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Requirement: N46
    #[test]
    fn a_hole_hashes_like_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let (sparse, dense) = (dir.path().join("sparse"), dir.path().join("dense"));
        let mut file = File::create(&sparse).unwrap();
        file.seek(SeekFrom::Start(5 << 20)).unwrap();
        file.write_all(b"middle").unwrap();
        file.set_len((9 << 20) + 7).unwrap();
        std::fs::write(&dense, std::fs::read(&sparse).unwrap()).unwrap();
        let record = of_file(&sparse, &mut |_| {}).unwrap();
        assert_eq!(record, of_file(&dense, &mut |_| {}).unwrap());
        assert_eq!(record.sha256, of_bytes(&std::fs::read(&dense).unwrap()));
    }

    /// Requirement: N46
    #[test]
    fn tree_digest_sees_content_mode_and_names_but_no_times() {
        let make = |content: &str, name: &str, mode: u32| {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(name);
            std::fs::create_dir(dir.path().join("sub")).unwrap();
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            of_tree(dir.path(), &mut |_| {}).unwrap().0
        };
        let base = make("x", "a", 0o644);
        assert_eq!(base, make("x", "a", 0o644));
        assert_ne!(base, make("y", "a", 0o644));
        assert_ne!(base, make("x", "b", 0o644));
        assert_ne!(base, make("x", "a", 0o755));
    }
}
