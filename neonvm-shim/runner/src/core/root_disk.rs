//! A persistent root disk: its owner, its base image, and its use by the next VM.
//!
//! ```text
//! disks/NAMESPACE_VM/          one directory per VM; nothing of it lies elsewhere
//!   disk.json                  [`DiskRecord`]: written before the disk is made, and again once it is finished
//!   root.qcow2                 the disk
//!   root.qcow2.new             an unfinished disk; no guest has run on it
//! ```
//!
//! A disk without a record, and a record without its disk, are refused.

use protocol::time::WallTime;
use serde::{Deserialize, Serialize};

/// The only format of the record that this version reads.
pub const DISK_FORMAT: u32 = 1;
/// File name of the record in the disk's directory.
pub const RECORD_FILE: &str = "disk.json";
/// File name of the disk in its directory.
pub const DISK_FILE: &str = "root.qcow2";

/// Content of `disk.json`: the VM that owns a disk, and the image the disk was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskRecord {
    /// Version of the record's format. Any value but [`DISK_FORMAT`] is refused.
    pub format: u32,
    /// Namespace of the VM that owns the disk.
    pub namespace: String,
    /// Name of the VM that owns the disk.
    pub vm: String,
    /// Uid of the VM that owns the disk.
    pub vm_uid: String,
    /// Name of the disk's base image.
    pub image: String,
    /// Digest of the base image. The guest boots its kernel, and a layered disk holds only the
    /// difference from it.
    pub image_digest: String,
    /// The disk has no base image: it was restored from a backup.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// Size that the guest sees, in bytes.
    pub bytes: u64,
    /// When the disk was made.
    pub created: WallTime,
    /// Whether the disk is finished. No guest runs on an unfinished one.
    pub made: bool,
    /// The VM was deleted and its disk kept on request. A new VM must ask for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub released: bool,
}

/// Content of a VM's disk directory.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    /// The parsed record. `None` without a record.
    pub record: Option<&'a DiskRecord>,
    /// Whether the disk's file exists.
    pub has_disk: bool,
}

/// What a VM does about its disk directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// Make a disk: the VM has none.
    Create,
    /// Use the disk: the VM owns it.
    Own,
    /// Take the disk of an earlier VM, on request.
    TakeOver,
    /// Move the disk of an earlier VM aside and make a new one.
    Replace,
}

/// Errors that keep a VM from its disk. The directory is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimProblem {
    /// The record has a format that this version does not read.
    #[error(
        "{RECORD_FILE} has format {0}, and this version reads format {DISK_FORMAT}: use the version that wrote it"
    )]
    Format(u32),
    /// The disk has no record, so its owner is unknown.
    #[error(
        "there is a {DISK_FILE} without {RECORD_FILE}, which says whose it is: restore {RECORD_FILE}, or move {DISK_FILE} elsewhere"
    )]
    NoRecord,
    /// The record describes a disk that is missing.
    #[error(
        "{DISK_FILE} is missing: {RECORD_FILE} says that the VM had a disk; restore it, or delete the VM and create it anew with an empty one"
    )]
    Missing,
    /// The disk was kept for a VM that asks for it, and this VM does not.
    #[error(
        "an earlier VM of this name was deleted and its disk kept: create the VM with --use-disk to go on with it, or move the directory elsewhere to begin with a fresh one"
    )]
    Kept,
    /// The VM asks for the disk of an earlier VM, and there is none.
    #[error(
        "the VM asks for the disk of an earlier VM of its name, and there is none: create it without --use-disk"
    )]
    NothingToUse,
}

/// Decides what a VM does about its disk directory. `use_disk` is the VM's annotation about an
/// earlier VM's disk: `"true"`, or the uid of that VM.
///
/// # Errors
/// [`ClaimProblem`].
pub fn claim(
    found: Found<'_>,
    vm_uid: &str,
    use_disk: Option<&str>,
) -> Result<Claim, ClaimProblem> {
    let Some(record) = found.record else {
        return match (found.has_disk, use_disk) {
            (true, _) => Err(ClaimProblem::NoRecord),
            (false, Some(_)) => Err(ClaimProblem::NothingToUse),
            (false, None) => Ok(Claim::Create),
        };
    };
    if record.format != DISK_FORMAT {
        return Err(ClaimProblem::Format(record.format));
    }
    let whole = || {
        if record.made && !found.has_disk {
            Err(ClaimProblem::Missing)
        } else {
            Ok(())
        }
    };
    if record.vm_uid == vm_uid && !record.released {
        return whole().map(|()| Claim::Own);
    }
    if use_disk.is_some_and(|uid| uid == "true" || uid == record.vm_uid) {
        return whole().map(|()| Claim::TakeOver);
    }
    if record.released {
        return Err(ClaimProblem::Kept);
    }
    Ok(Claim::Replace)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Record of a finished disk of VM `default/pg` with this uid.
    pub(in crate::core) fn record(vm_uid: &str) -> DiskRecord {
        DiskRecord {
            format: DISK_FORMAT,
            namespace: "default".into(),
            vm: "pg".into(),
            vm_uid: vm_uid.into(),
            image: "bellows/postgres:15".into(),
            image_digest: "ab".repeat(32),
            whole: false,
            bytes: 1 << 30,
            created: WallTime(1),
            made: true,
            released: false,
        }
    }

    fn claimed(
        record: Option<&DiskRecord>,
        has_disk: bool,
        use_disk: Option<&str>,
    ) -> Result<Claim, ClaimProblem> {
        claim(Found { record, has_disk }, "new", use_disk)
    }

    #[test]
    fn disk_is_created_once_and_then_owned() {
        assert_eq!(claimed(None, false, None), Ok(Claim::Create));
        assert_eq!(claimed(Some(&record("new")), true, None), Ok(Claim::Own));
        let begun = DiskRecord {
            made: false,
            ..record("new")
        };
        assert_eq!(claimed(Some(&begun), false, None), Ok(Claim::Own));
    }

    #[test]
    fn missing_disk_or_record_is_refused() {
        assert_eq!(
            claimed(Some(&record("new")), false, None),
            Err(ClaimProblem::Missing)
        );
        assert_eq!(claimed(None, true, None), Err(ClaimProblem::NoRecord));
        let later = DiskRecord {
            format: 2,
            ..record("new")
        };
        assert_eq!(
            claimed(Some(&later), true, None),
            Err(ClaimProblem::Format(2))
        );
    }

    #[test]
    fn disk_of_an_earlier_vm_is_used_only_on_request() {
        let other = record("old");
        assert_eq!(claimed(Some(&other), true, None), Ok(Claim::Replace));
        for asked in ["true", "old"] {
            assert_eq!(
                claimed(Some(&other), true, Some(asked)),
                Ok(Claim::TakeOver)
            );
        }
        assert_eq!(
            claimed(Some(&other), true, Some("another")),
            Ok(Claim::Replace)
        );
        assert_eq!(
            claimed(Some(&other), false, Some("true")),
            Err(ClaimProblem::Missing)
        );
        assert_eq!(
            claimed(None, false, Some("true")),
            Err(ClaimProblem::NothingToUse)
        );
    }

    #[test]
    fn kept_disk_is_neither_used_nor_moved_without_request() {
        let kept = DiskRecord {
            released: true,
            ..record("old")
        };
        assert_eq!(claimed(Some(&kept), true, None), Err(ClaimProblem::Kept));
        assert_eq!(
            claimed(Some(&kept), true, Some("true")),
            Ok(Claim::TakeOver)
        );
    }
}
