//! Files that hold secrets: read whole or not at all, and only while nobody may but their owner and
//! those who share a group with us.
//!
//! A kubelet gives the files of a pod's volumes to the pod's `fsGroup`, by 0640 or 0440 whatever
//! mode was asked for, and makes that group one of the process's.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Bits of a file's mode that let others than its owner at it.
const OTHERS: u32 = 0o077;
/// The one among them that its group may have, if it is one of ours: that lets it read.
const GROUP_READS: u32 = 0o040;

/// Why a file's content is not used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Others than its owner, and those of a group of ours, may read it, or others than its owner
    /// may write it.
    #[error("{} can be read by others than its owner (mode {mode:04o}): make it 0600 or 0400, or 0640 or 0440 with a group of this process", .path.display())]
    Open {
        /// Its path.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It has more than can belong in it.
    #[error("{} has more than {limit} bytes", .path.display())]
    TooLong {
        /// Its path.
        path: PathBuf,
        /// The most there may be, bytes.
        limit: u64,
    },
}

/// The content of a file of at most `limit` bytes that only its owner may read, or its group too
/// where that is one of this process's. It is the mode of the file that is read, not of one that
/// has its name by then.
///
/// # Errors
/// [`SecretError`]; the message names the file, the rule and what to do.
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

/// Whether a file of this mode is its owner's alone, or read by a group besides that is one of
/// ours.
fn is_closed(mode: u32, is_our_group: impl FnOnce() -> bool) -> bool {
    match mode & OTHERS {
        0 => true,
        GROUP_READS => is_our_group(),
        _ => false,
    }
}

/// The groups of this process; where the supplementary ones are not told, the effective one.
fn own_groups() -> Vec<u32> {
    let others = nix::unistd::getgroups().unwrap_or_default();
    let own = std::iter::once(nix::unistd::getegid());
    own.chain(others).map(nix::unistd::Gid::as_raw).collect()
}

/// Mode and content of a file of at most `limit` bytes that goes with a secret, like a certificate
/// with its key.
///
/// # Errors
/// [`SecretError::Read`] and [`SecretError::TooLong`].
pub fn read_public(path: &Path, limit: u64) -> Result<(u32, Vec<u8>), SecretError> {
    let (access, content) = read_file(path, limit)?;
    Ok((access.mode, content))
}

/// Who may do what with a file.
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
    fn only_what_its_owner_or_a_group_of_ours_may_read_is_read_and_only_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        assert!(matches!(read(&path, 4), Err(SecretError::Read { .. })));
        fs::write(&path, "four").expect("written");
        for (mode, is_read) in [
            (0o600, true),
            (0o400, true),
            // New files have our own group, as those of a pod's volumes have.
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
    fn what_a_group_may_read_that_is_none_of_ours_is_open() {
        for mode in [0o640, 0o440] {
            assert!(is_closed(mode, || true) && !is_closed(mode, || false));
        }
        assert!(is_closed(0o600, || false) && !is_closed(0o660, || true));
        let ours = own_groups();
        assert!(ours.contains(&nix::unistd::getegid().as_raw()));
    }
}
