//! Keeps log files that QEMU appends to within a bound.
//!
//! QEMU opens the files for appending and never closes them, so that they outlive the runner. A
//! file that grew too long is copied to `NAME.1` and truncated in place. Bytes written between copy
//! and truncation are lost: a line or two per 4 MiB.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::core::paths::Paths;

/// Longest log of the guest's console or programs in bytes. With the copy a log takes at most twice
/// this.
pub const GUEST_LOG_BYTES: u64 = 4 << 20;
/// Longest log of QEMU's own messages in bytes.
pub const QEMU_LOG_BYTES: u64 = 1 << 20;

/// A log file with a bound, which may be read while it grows.
#[derive(Debug)]
pub struct KeptLog {
    path: PathBuf,
    bound: u64,
    reader: Mutex<Reader>,
}

/// Read position of a log.
#[derive(Debug, Default)]
struct Reader {
    at: u64,
    /// Bytes that were truncated before they were read.
    lost: u64,
}

/// Result of one read of a log.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    /// Bytes in the buffer; 0 at the present end.
    pub bytes: usize,
    /// Bytes before them that were truncated unread.
    pub lost: u64,
}

/// All logs of a runner's directory, those of the guest first.
#[must_use]
pub fn logs(paths: &Paths) -> Vec<Arc<KeptLog>> {
    let logs = [
        (paths.console_log(), GUEST_LOG_BYTES),
        (paths.guest_log(), GUEST_LOG_BYTES),
        (paths.qemu_log(), QEMU_LOG_BYTES),
        (paths.passt_log(), QEMU_LOG_BYTES),
        (paths.runner_log(), QEMU_LOG_BYTES),
    ];
    let kept = logs.map(|(path, bound)| Arc::new(KeptLog::new(path, bound)));
    kept.into()
}

impl KeptLog {
    /// The log at `path`, read from its beginning. `bound` is its longest length in bytes.
    #[must_use]
    pub fn new(path: PathBuf, bound: u64) -> Self {
        Self {
            path,
            bound,
            reader: Mutex::default(),
        }
    }

    /// Path of the log, without the copy's suffix.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn reader(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the read position to the present end.
    pub fn skip(&self) {
        let length = fs::metadata(&self.path).map_or(0, |file| file.len());
        self.reader().at = length;
    }

    /// Reads the next bytes into `buffer`. A missing file is empty.
    ///
    /// # Errors
    /// The file system's error.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Piece> {
        // The lock keeps the file from being truncated meanwhile.
        let mut reader = self.reader();
        let bytes = match fs::File::open(&self.path) {
            Ok(file) => file.read_at(buffer, reader.at)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        reader.at += bytes as u64;
        Ok(Piece {
            bytes,
            lost: std::mem::take(&mut reader.lost),
        })
    }

    /// Copies and truncates the file if it is longer than its bound.
    ///
    /// # Errors
    /// The file system's error. The file is then unchanged.
    pub fn rotate(&self) -> io::Result<()> {
        let mut reader = self.reader();
        let cut = rotate(&self.path, self.bound)?;
        if cut > 0 {
            reader.lost += cut.saturating_sub(reader.at);
            reader.at = 0;
        }
        Ok(())
    }
}

/// Path of the copy of a log's older part.
#[must_use]
pub fn older(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    PathBuf::from(name)
}

/// Rotates a file if it is longer than `bound`. Returns its length before, or 0.
fn rotate(path: &Path, bound: u64) -> io::Result<u64> {
    let length = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    if length <= bound {
        return Ok(0);
    }
    let mut from = fs::File::open(path)?;
    // Only the newest part of a file that grew while no runner was there.
    io::Seek::seek(&mut from, io::SeekFrom::Start(length.saturating_sub(bound)))?;
    // Bounded, however fast the file grows meanwhile.
    let mut from = io::Read::take(from, bound.saturating_mul(2));
    let mut options = OpenOptions::new();
    let mut to = options
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(older(path))?;
    io::copy(&mut from, &mut to)?;
    let file = OpenOptions::new().write(true).open(path)?;
    let length = file.metadata()?.len();
    file.set_len(0)?;
    Ok(length)
}

/// Creates a log file with mode 0600 before QEMU opens it.
///
/// # Errors
/// The file system's error.
pub fn prepare(path: &Path) -> io::Result<()> {
    super::process::append_file(path)?.set_permissions(fs::Permissions::from_mode(0o600))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn read(log: &KeptLog) -> (String, u64) {
        let mut buffer = [0; 64];
        let piece = log.read(&mut buffer).unwrap();
        let text = String::from_utf8(buffer[..piece.bytes].to_vec());
        (text.unwrap(), piece.lost)
    }

    #[test]
    fn appender_goes_on_after_a_rotation_within_twice_the_bound() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("console.log");
        assert_eq!(rotate(&path, 10).unwrap(), 0, "no file is no failure");
        prepare(&path).unwrap();
        let mut appender = OpenOptions::new().append(true).open(&path).unwrap();
        appender.write_all(b"0123456789").unwrap();
        assert_eq!(rotate(&path, 10).unwrap(), 0);
        appender.write_all(b"abcdef").unwrap();
        assert_eq!(rotate(&path, 10).unwrap(), 16);
        appender.write_all(b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_to_string(older(&path)).unwrap(), "6789abcdef");
    }

    #[test]
    fn reader_goes_on_after_a_rotation_and_learns_the_loss() {
        let temp = tempfile::tempdir().unwrap();
        let log = KeptLog::new(temp.path().join("guest.log"), 10);
        assert_eq!(read(&log), (String::new(), 0), "no file is no failure");
        let mut appender = super::super::process::append_file(log.path()).unwrap();
        appender.write_all(b"old").unwrap();
        log.skip();
        appender.write_all(b"12345678").unwrap();
        assert_eq!(read(&log), ("12345678".to_owned(), 0));
        log.rotate().unwrap();
        appender.write_all(b"abc").unwrap();
        assert_eq!(read(&log), ("abc".to_owned(), 0), "all before was read");
        appender.write_all(b"0123456789").unwrap();
        log.rotate().unwrap();
        appender.write_all(b"new").unwrap();
        assert_eq!(read(&log), ("new".to_owned(), 10));
        assert_eq!(read(&log), (String::new(), 0));
    }
}
