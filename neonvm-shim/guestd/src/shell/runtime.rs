//! Reads from the VM's runtime drive which callers and directories are allowed.
//!
//! | file | content |
//! |---|---|
//! | `guestd.key` | the key that the runner shows with each request, readable by root alone |
//! | `pushed.txt` | the directories that the runner writes, one on a line |
//!
//! A drive without a key was made by an older runner. Its callers are checked by address only.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use hyper::header::{AUTHORIZATION, HeaderMap};
use sha2::{Digest as _, Sha256};

const KEY: &str = "guestd.key";
const PUSHED: &str = "pushed.txt";

/// The runtime drive at its mount point.
#[derive(Debug)]
pub struct Runtime {
    dir: PathBuf,
    /// Digest of the key. It is kept after the first read, so that unmounting the drive opens
    /// nothing.
    key: OnceLock<[u8; 32]>,
}

impl Runtime {
    /// The drive that is mounted at `dir`. It is read at the first request.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            key: OnceLock::new(),
        }
    }

    /// Whether callers must show a key.
    ///
    /// # Errors
    /// The drive has a key that is empty or cannot be read.
    pub fn has_key(&self) -> io::Result<bool> {
        self.digest().map(|digest| digest.is_some())
    }

    /// Whether a request with these headers has the runner's key. A drive with an unreadable key
    /// admits no request.
    #[must_use]
    pub fn admits(&self, headers: &HeaderMap) -> bool {
        let shown = headers
            .get(AUTHORIZATION)
            .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        match self.digest() {
            Ok(None) => true,
            // Comparing digests takes a time that reveals nothing about the key.
            Ok(Some(key)) => shown.is_some_and(|shown| *key == digest(shown)),
            Err(_) => false,
        }
    }

    /// Whether the runner may read and write `dir`, an absolute path of the guest.
    #[must_use]
    pub fn is_pushed(&self, dir: &str) -> bool {
        if self.digest().is_ok_and(|key| key.is_none()) {
            return true;
        }
        let asked = Path::new("/").join(dir.trim_start_matches('/'));
        let pushed = fs::read_to_string(self.dir.join(PUSHED)).unwrap_or_default();
        pushed.lines().any(|line| Path::new(line) == asked)
    }

    fn digest(&self) -> io::Result<Option<&[u8; 32]>> {
        if let Some(key) = self.key.get() {
            return Ok(Some(key));
        }
        let text = match fs::read_to_string(self.dir.join(KEY)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match text.trim() {
            "" => Err(io::ErrorKind::InvalidData.into()),
            key => Ok(Some(self.key.get_or_init(|| digest(key.as_bytes())))),
        }
    }
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, text.parse().expect("a header"));
        headers
    }

    #[test]
    fn key_of_the_drive_is_required_once_it_was_seen() {
        let drive = tempfile::tempdir().expect("a directory");
        let runtime = Runtime::new(drive.path().to_owned());
        assert!(!runtime.has_key().expect("readable"));
        assert!(runtime.admits(&HeaderMap::new()), "an older runner");

        fs::write(drive.path().join(KEY), "right\n").expect("written");
        assert!(runtime.has_key().expect("readable"));
        assert!(runtime.admits(&shown("Bearer right")));
        for wrong in ["Bearer wrong", "Bearer ", "right", "Basic right"] {
            assert!(!runtime.admits(&shown(wrong)), "{wrong}");
        }
        assert!(!runtime.admits(&HeaderMap::new()));

        fs::remove_file(drive.path().join(KEY)).expect("removed");
        assert!(!runtime.admits(&HeaderMap::new()), "the key is remembered");
    }

    #[test]
    fn drive_with_an_unreadable_key_admits_no_request() {
        let drive = tempfile::tempdir().expect("a directory");
        let runtime = Runtime::new(drive.path().to_owned());
        fs::write(drive.path().join(KEY), "\n").expect("written");
        assert!(runtime.has_key().is_err());
        assert!(!runtime.admits(&shown("Bearer ")));
        assert!(!runtime.is_pushed("etc"));
    }

    #[test]
    fn only_directories_named_by_the_drive_are_written() {
        let drive = tempfile::tempdir().expect("a directory");
        let runtime = Runtime::new(drive.path().to_owned());
        assert!(runtime.is_pushed("etc"), "an older runner names none");
        fs::write(drive.path().join(KEY), "right\n").expect("written");
        assert!(!runtime.is_pushed("mnt/ssh"), "no directory is named");
        fs::write(drive.path().join(PUSHED), "/mnt/ssh\n/var/sync\n").expect("written");
        for dir in ["mnt/ssh", "/mnt/ssh", "var//sync/"] {
            assert!(runtime.is_pushed(dir), "{dir}");
        }
        for dir in ["", "etc", "mnt", "mnt/ssh/x", "var/sync/../../etc"] {
            assert!(!runtime.is_pushed(dir), "{dir}");
        }
    }
}
