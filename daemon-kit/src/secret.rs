//! Reads files with secrets, of bounded length, and only if no other user than their owner and one
//! of this process's groups may read them.
//!
//! A kubelet gives the files of a pod's volumes to the pod's `fsGroup`, with mode 0640 or 0440
//! whatever the volume says, and makes that group one of the process's.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Mode bits for other users than the owner.
const OTHERS: u32 = 0o077;
/// The mode bit among them that is allowed if the group is one of this process's.
const GROUP_READS: u32 = 0o040;

/// Errors of a secret or its companion file.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// Path of the unreadable file.
        path: PathBuf,
        /// Error of opening or reading it.
        #[source]
        source: io::Error,
    },
    /// Other users may read or write the file.
    #[error("{} can be read by others than its owner (mode {mode:04o}): make it 0600 or 0400, or 0640 or 0440 with a group of this process", .path.display())]
    Open {
        /// Path of the file with that mode.
        path: PathBuf,
        /// Mode of the file, permission bits only.
        mode: u32,
    },
    /// The file is longer than its limit.
    #[error("{} has more than {limit} bytes", .path.display())]
    TooLong {
        /// Path of the file that is too long.
        path: PathBuf,
        /// Longest content that the caller accepts, in bytes.
        limit: u64,
    },
}

/// Reads a file of at most `limit` bytes that only its owner may read, or also its group if that is
/// one of this process's. The mode is that of the opened file, so that a rename in between has no
/// effect.
///
/// # Errors
/// [`SecretError`]; the message names the file, the rule and the fix.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, SecretError> {
    let (Access { mode, group }, content) = read_file(path, limit)?;
    if !is_closed(mode, || own_groups().contains(&group)) {
        return Err(SecretError::Open {
            path: path.to_owned(),
            mode,
        });
    }
    Ok(content)
}

/// Whether a mode allows only the owner, or also reading by a group of this process.
fn is_closed(mode: u32, is_our_group: impl FnOnce() -> bool) -> bool {
    match mode & OTHERS {
        0 => true,
        GROUP_READS => is_our_group(),
        _ => false,
    }
}

/// Groups of this process; the effective one if the supplementary ones cannot be read.
fn own_groups() -> Vec<u32> {
    let others = nix::unistd::getgroups().unwrap_or_default();
    let own = std::iter::once(nix::unistd::getegid());
    own.chain(others).map(nix::unistd::Gid::as_raw).collect()
}

/// Reads mode and content of a file of at most `limit` bytes that accompanies a secret, like a
/// certificate its key.
///
/// # Errors
/// [`SecretError::Read`] and [`SecretError::TooLong`].
pub fn read_public(path: &Path, limit: u64) -> Result<(u32, Vec<u8>), SecretError> {
    let (access, content) = read_file(path, limit)?;
    Ok((access.mode, content))
}

/// Expected access by mode and group.
struct Access {
    mode: u32,
    group: u32,
}

fn read_file(path: &Path, limit: u64) -> Result<(Access, Vec<u8>), SecretError> {
    let unreadable = |source| SecretError::Read {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(unreadable)?;
    let found = file.metadata().map_err(unreadable)?;
    let access = Access {
        mode: found.mode() & 0o7777,
        group: found.gid(),
    };
    let mut content = Vec::new();
    let read = file
        .take(limit.saturating_add(1))
        .read_to_end(&mut content)
        .map_err(unreadable)?;
    if read as u64 > limit {
        return Err(SecretError::TooLong {
            path: path.to_owned(),
            limit,
        });
    }
    Ok((access, content))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_private_files_are_read_and_only_within_the_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        assert!(matches!(read(&path, 4), Err(SecretError::Read { .. })));
        fs::write(&path, "four").expect("written");
        for (mode, is_read) in [
            (0o600, true),
            (0o400, true),
            // New files have a group of this process, as those of a pod's volumes have.
            (0o640, true),
            (0o440, true),
            (0o660, false),
            (0o650, false),
            (0o644, false),
            (0o602, false),
            (0o601, false),
        ] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
            match read(&path, 4) {
                Ok(content) => assert!(is_read && content == b"four", "{mode:o}"),
                Err(SecretError::Open { mode: found, .. }) => {
                    assert!(!is_read && found == mode, "{mode:o}");
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert!(read_public(&path, 4).is_ok());
        let long = read(&path, 3).expect_err("too long").to_string();
        assert!(long.ends_with("has more than 3 bytes"), "{long}");
    }

    #[test]
    fn file_readable_by_a_foreign_group_is_refused() {
        for mode in [0o640, 0o440] {
            assert!(is_closed(mode, || true) && !is_closed(mode, || false));
        }
        assert!(is_closed(0o600, || false) && !is_closed(0o660, || true));
        let ours = own_groups();
        assert!(ours.contains(&nix::unistd::getegid().as_raw()));
    }
}
