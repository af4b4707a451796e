//! Owners of a tree: user IDs of the image, or the IDs that its programs have on this machine.
//!
//! No program of the image runs while owners change, so paths are stable. Links are never followed.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown};
use std::path::Path;

use rustix::io::Errno;

use crate::error::{BuildError, IoContext};

/// First ID on the machine of the users of images. The IDs of VMs end below it (`docs/walls.md`),
/// and so do those of `/etc/subuid` and systemd.
pub(super) const FIRST_ID: u32 = 0x7100_0000;
/// User IDs that an image may use.
pub(super) const IDS: u32 = 0x0100_0000;
/// Extended attribute with a file's capabilities.
const CAPABILITY: &str = "security.capability";
/// Length of the attribute and its version, with and without the ID of a namespace's root
/// (linux/capability.h).
const PLAIN_BYTES: usize = 20;
const ROOTED_BYTES: usize = 24;
const PLAIN: u8 = 2;
const ROOTED: u8 = 3;

/// Changes the owners from the image's IDs to the machine's.
pub(super) fn move_in(root: &Path) -> Result<(), BuildError> {
    change(root, &|id| (id < IDS).then(|| FIRST_ID + id), &rooted)
}

/// Changes the owners from the machine's IDs to the image's.
pub(super) fn move_out(root: &Path) -> Result<(), BuildError> {
    let back = |id: u32| id.checked_sub(FIRST_ID).filter(|id| *id < IDS);
    change(root, &back, &plain)
}

/// The error for an owner that has no number on this machine.
pub(super) fn too_large(id: u32, path: &Path) -> BuildError {
    BuildError::Format {
        path: path.to_owned(),
        expected: "file of an image whose programs can be run",
        problem: format!("it has the user or group {id}, the largest is {}", IDS - 1),
    }
}

fn change(
    root: &Path,
    number: &dyn Fn(u32) -> Option<u32>,
    capabilities: &dyn Fn(&[u8]) -> Vec<u8>,
) -> Result<(), BuildError> {
    let mut linked = HashSet::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let meta = path.symlink_metadata().at("read", &path)?;
        if meta.is_dir() {
            for entry in fs::read_dir(&path).at("list", &path)? {
                pending.push(entry.at("list", &path)?.path());
            }
        } else if meta.nlink() > 1 && !linked.insert(meta.ino()) {
            continue;
        }
        let changed = |id| number(id).ok_or_else(|| too_large(id, &path));
        let (uid, gid) = (changed(meta.uid())?, changed(meta.gid())?);
        let held = if meta.is_file() { held(&path)? } else { None };
        lchown(&path, Some(uid), Some(gid)).at("change the owner of", &path)?;
        // The kernel clears set-user-ID bits and capabilities when the owner changes.
        if meta.is_file() && meta.mode() & 0o6000 != 0 {
            let mode = fs::Permissions::from_mode(meta.mode() & 0o7777);
            fs::set_permissions(&path, mode).at("change the mode of", &path)?;
        }
        if let Some(held) = held {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::lsetxattr(&path, CAPABILITY, &capabilities(&held), flags)
                .map_err(std::io::Error::from)
                .at("change the capabilities of", &path)?;
        }
    }
    Ok(())
}

/// Capabilities of a file.
fn held(path: &Path) -> Result<Option<Vec<u8>>, BuildError> {
    let mut bytes = [0u8; ROOTED_BYTES];
    match rustix::fs::lgetxattr(path, CAPABILITY, &mut bytes) {
        Ok(length) => Ok(bytes.get(..length).map(<[u8]>::to_vec)),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(error) => Err(std::io::Error::from(error)).at("read the capabilities of", path),
    }
}

/// Converts capabilities to the namespace of the image's root.
fn rooted(held: &[u8]) -> Vec<u8> {
    let mut bytes = held.to_vec();
    if let (PLAIN_BYTES, Some(version)) = (held.len(), bytes.get_mut(3)) {
        *version = ROOTED;
        bytes.extend(FIRST_ID.to_le_bytes());
    }
    bytes
}

/// Converts capabilities back to a form without namespace.
fn plain(held: &[u8]) -> Vec<u8> {
    let mut bytes = held.to_vec();
    if let (ROOTED_BYTES, Some(version)) = (held.len(), bytes.get_mut(3)) {
        *version = PLAIN;
        bytes.truncate(PLAIN_BYTES);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_of_a_file_come_back_as_they_were() {
        let plain_ones = [&[1, 0, 0, PLAIN][..], &[7; 16]].concat();
        let inside = rooted(&plain_ones);
        assert_eq!((inside.len(), inside[3]), (ROOTED_BYTES, ROOTED));
        assert_eq!(plain(&inside), plain_ones);
    }

    #[test]
    fn owner_without_a_number_on_this_machine_is_refused_with_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = change(dir.path(), &|_| None, &plain).unwrap_err();
        assert!(
            error.to_string().contains("the largest is 16777215"),
            "{error}"
        );
    }
}
