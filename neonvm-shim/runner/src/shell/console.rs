//! Keeps log files that QEMU appends to within a bound.
//!
//! QEMU opens them for appending and never closes them, so that they survive us; a file that grew too long is copied to
//! `NAME.1` and cut to nothing in place. What is written between copy and cut is lost: a line or two per 4 MiB.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Longest console log; with the copy there are at most two of this.
pub const CONSOLE_LOG_BYTES: u64 = 4 << 20;
/// Longest log of QEMU's own messages.
pub const QEMU_LOG_BYTES: u64 = 1 << 20;

/// Where the older part goes.
#[must_use]
pub fn older(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    PathBuf::from(name)
}

/// Rotates a file if it is longer than `bound`; returns whether it was.
///
/// # Errors
/// As the file system says; the file is then still whole.
pub fn rotate(path: &Path, bound: u64) -> io::Result<bool> {
    let length = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if length <= bound {
        return Ok(false);
    }
    let mut from = fs::File::open(path)?;
    // Only the newest part of a file that grew while nobody watched.
    io::Seek::seek(&mut from, io::SeekFrom::Start(length.saturating_sub(bound)))?;
    let mut options = OpenOptions::new();
    let mut to = options
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(older(path))?;
    io::copy(&mut from, &mut to)?;
    OpenOptions::new().write(true).open(path)?.set_len(0)?;
    Ok(true)
}

/// Makes a log file private before QEMU opens it.
///
/// # Errors
/// As the file system says.
pub fn prepare(path: &Path) -> io::Result<()> {
    super::process::append_file(path)?.set_permissions(fs::Permissions::from_mode(0o600))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn an_appender_goes_on_after_the_cut_and_two_parts_are_the_bound() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("console.log");
        assert!(!rotate(&path, 10).unwrap(), "no file is no failure");
        prepare(&path).unwrap();
        let mut appender = OpenOptions::new().append(true).open(&path).unwrap();
        appender.write_all(b"0123456789").unwrap();
        assert!(!rotate(&path, 10).unwrap());
        appender.write_all(b"abcdef").unwrap();
        assert!(rotate(&path, 10).unwrap());
        appender.write_all(b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_to_string(older(&path)).unwrap(), "6789abcdef");
    }
}
