//! A root disk that stays: whose it is, what it lies over, and what to do when a VM asks for it.
//!
//! ```text
//! disks/NAMESPACE_VM/          one directory per VM; nothing of it lies elsewhere
//!   disk.json                  [`DiskRecord`]: written before the disk is made, and again once it is finished
//!   root.qcow2                 the disk
//!   root.qcow2.new             a disk in the making; no guest has run on it
//! ```
//!
//! Absence never means permission: a disk without a record, and a record without its disk, are
//! refused.

use protocol::time::WallTime;
use serde::{Deserialize, Serialize};

/// Version of the record's format.
pub const DISK_FORMAT: u32 = 1;
/// Name of the record in the disk's directory.
pub const RECORD_FILE: &str = "disk.json";
/// Name of the disk in its directory.
pub const DISK_FILE: &str = "root.qcow2";

/// Content of `disk.json`: the VM that owns a disk, and the image the disk was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskRecord {
    /// Version of the record's format. A record with another version than [`DISK_FORMAT`] is
    /// refused.
    pub format: u32,
    /// Namespace of the VM.
    pub namespace: String,
    /// Name of the VM.
    pub vm: String,
    /// Uid of the VM that owns the disk.
    pub vm_uid: String,
    /// Name of the image that the disk was made over.
    pub image: String,
    /// Digest of that image. The guest boots its kernel, and a disk that is not whole holds only
    /// what differs from it.
    pub image_digest: String,
    /// The disk lies over nothing: it was restored from a backup.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// Size that the guest sees, in bytes.
    pub bytes: u64,
    /// When the disk was made.
    pub created: WallTime,
    /// Whether the disk is finished. No guest ran on it before.
    pub made: bool,
    /// The VM was deleted and its disk kept on request; the next owner must ask for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub released: bool,
}

/// What lies in a VM's disk directory.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    /// The record, if there is one.
    pub record: Option<&'a DiskRecord>,
    /// Whether the disk itself is there.
    pub has_disk: bool,
}

/// How a VM comes to its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The VM has none so far: a new one is made.
    Create,
    /// The disk is the VM's own.
    Own,
    /// The disk is an earlier VM's, and this VM asks for it.
    TakeOver,
    /// The disk is an earlier VM's: it is moved aside and a new one is made.
    Replace,
}

/// Why a VM cannot have its disk. Nothing was changed then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimProblem {
    /// A format of a later version.
    #[error(
        "{RECORD_FILE} has format {0}, and this version reads format {DISK_FORMAT}: use the version that wrote it"
    )]
    Format(u32),
    /// A disk that no record describes.
    #[error(
        "there is a {DISK_FILE} without {RECORD_FILE}, which says whose it is: restore {RECORD_FILE}, or move {DISK_FILE} elsewhere"
    )]
    NoRecord,
    /// A record of a disk that is not there.
    #[error(
        "{DISK_FILE} is missing: {RECORD_FILE} says that the VM had a disk; restore it, or delete the VM and create it anew with an empty one"
    )]
    Missing,
    /// A disk that was kept for a VM that asks for it.
    #[error(
        "an earlier VM of this name was deleted and its disk kept: create the VM with --use-disk to go on with it, or move the directory elsewhere to begin with a fresh one"
    )]
    Kept,
    /// The VM asks for an earlier VM's disk, and there is none.
    #[error(
        "the VM asks for the disk of an earlier VM of its name, and there is none: create it without --use-disk"
    )]
    NothingToUse,
}

/// Decides what a VM does about its disk directory. `use_disk` is what the VM says of an earlier
/// VM's disk: `"true"`, or the uid of that VM.
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

    /// The record of a disk that is made, of VM `default/pg` with this uid.
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
    fn disk_is_created_once_and_then_the_vms_own() {
        assert_eq!(claimed(None, false, None), Ok(Claim::Create));
        assert_eq!(claimed(Some(&record("new")), true, None), Ok(Claim::Own));
        let begun = DiskRecord {
            made: false,
            ..record("new")
        };
        assert_eq!(claimed(Some(&begun), false, None), Ok(Claim::Own));
    }

    #[test]
    fn missing_disk_or_record_is_refused_and_never_made_fresh() {
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
