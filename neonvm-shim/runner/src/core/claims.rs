//! Disks on PersistentVolumeClaims: their files, the VM that may use them, and how QEMU opens them.
//!
//! ```text
//! /vm/claims/root/          a claim, mounted by the kubelet; each has a directory of its own
//!   disk.json               [`super::root_disk::DiskRecord`]
//!   root.raw                the disk
//!   root.raw.new            an unfinished disk; no guest has run on it
//!   root.lock               locked by the runner whose QEMU has the disk
//! /vm/claims/disk-NAME/     the same with disk-NAME.json, disk-NAME.raw, disk-NAME.lock
//! ```
//!
//! Other pods of the namespace may mount the claim and write anything there. So a disk is raw and
//! complete: a header could name a file of this container. The runner opens it without following
//! links and gives QEMU the open file.

use std::path::{Path, PathBuf};

use protocol::annotations::ANNOTATION_USE_DISK;
use protocol::claims::ROOT_DRIVE;

use super::disks::{Drive, DriveKind};
use super::root_disk::{Claim, ClaimProblem, DISK_FORMAT, Found, RECORD_FILE, claim};
use crate::config::{Claims, RunnerConfig};

/// First descriptor of the disks in QEMU, in the order of [`drives_on_claims`]. Shells use
/// descriptors from 10 on for themselves.
pub const FIRST_FILE: i32 = 40;
/// Unit of a disk's size in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// Paths of a disk on a claim and of the files beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// Path of the disk, in raw format.
    pub disk: PathBuf,
    /// Path of the disk's [`super::root_disk::DiskRecord`].
    pub record: PathBuf,
    /// Path of the file that the disk's runner locks.
    pub lock: PathBuf,
}

impl Files {
    /// Paths of a drive, by its QEMU id.
    #[must_use]
    pub fn of(claims: &Claims, drive: &str) -> Self {
        let dir = claims.dir.join(drive);
        let record = if drive == ROOT_DRIVE {
            RECORD_FILE.to_owned()
        } else {
            format!("{drive}.json")
        };
        Self {
            disk: dir.join(format!("{drive}.raw")),
            record: dir.join(record),
            lock: dir.join(format!("{drive}.lock")),
        }
    }
}

/// Ids of the drives on claims, in the order of their descriptors in QEMU.
#[must_use]
pub fn drives_on_claims<'a>(config: &RunnerConfig, drives: &'a [Drive]) -> Vec<&'a str> {
    let root = config.root_is_claimed().then_some(ROOT_DRIVE);
    let others = drives.iter().filter(|one| one.kind == DriveKind::Claimed);
    root.into_iter()
        .chain(others.map(|one| one.id.as_str()))
        .collect()
}

/// Errors that keep a VM from a disk on its claim. The disk is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The record has a format that this version does not read.
    #[error(
        "{record} has format {format}, and this version reads format {DISK_FORMAT}: \
         use a runner of the version that wrote it"
    )]
    Format {
        /// File name of the record, without its directory.
        record: String,
        /// Format that the record has.
        format: u32,
    },
    /// The disk has no record, so its owner is unknown.
    #[error(
        "there is {disk} without {record}, which says whose it is: \
         restore the record, or move the disk elsewhere"
    )]
    NoRecord {
        /// File name of the disk, without its directory.
        disk: String,
        /// File name that the record should have, without its directory.
        record: String,
    },
    /// The record describes a disk that is missing.
    #[error(
        "{disk} is missing, though {record} says that the VM has a disk: \
         restore it, or give the VM another claim to begin with an empty one"
    )]
    Missing {
        /// File name that the disk should have, without its directory.
        disk: String,
        /// File name of the record, without its directory.
        record: String,
    },
    /// The disk belongs to another VM.
    #[error(
        "the claim holds the disk of VM {owner} (uid {uid}): give this VM a claim of its own, or, to go \
         on with that disk, create it with the annotation {ANNOTATION_USE_DISK}: \"{uid}\""
    )]
    OtherVm {
        /// Namespace and name of the VM that owns the disk.
        owner: String,
        /// Uid of the owner from the record. Empty if there is no record.
        uid: String,
    },
    /// The VM asks for the disk of an earlier VM, and the claim holds none.
    #[error(
        "the VM has the annotation {ANNOTATION_USE_DISK}, and its claim holds no disk: \
         create it without, or with the claim that holds one"
    )]
    NothingToUse,
}

/// Decides whether the VM makes its disk, owns it, or takes over that of an earlier VM. Of a VM
/// that asks for an earlier disk only the root disk must exist; its other disks may be new.
///
/// # Errors
/// [`Refusal`].
pub fn decide(claims: &Claims, drive: &str, found: Found<'_>) -> Result<Claim, Refusal> {
    let files = Files::of(claims, drive);
    let is_empty = found.record.is_none() && !found.has_disk;
    let asks = claims
        .use_disk
        .as_deref()
        .filter(|_| drive == ROOT_DRIVE || !is_empty);
    let (disk, record) = (name_of(&files.disk), name_of(&files.record));
    let other = || Refusal::OtherVm {
        owner: found
            .record
            .map_or_else(String::new, |it| format!("{}/{}", it.namespace, it.vm)),
        uid: found
            .record
            .map_or_else(String::new, |it| it.vm_uid.clone()),
    };
    match claim(found, &claims.vm_uid, asks) {
        Ok(Claim::Replace) | Err(ClaimProblem::Kept) => Err(other()),
        Ok(claim) => Ok(claim),
        Err(ClaimProblem::Format(format)) => Err(Refusal::Format { record, format }),
        Err(ClaimProblem::NoRecord) => Err(Refusal::NoRecord { disk, record }),
        Err(ClaimProblem::Missing) => Err(Refusal::Missing { disk, record }),
        Err(ClaimProblem::NothingToUse) => Err(Refusal::NothingToUse),
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Rounds a size in bytes up to a multiple of [`BLOCK_BYTES`].
#[must_use]
pub fn whole_blocks(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::root_disk::{self, DiskRecord};

    fn claims(use_disk: Option<&str>) -> Claims {
        Claims {
            dir: "/vm/claims".into(),
            vm_uid: "new".into(),
            use_disk: use_disk.map(str::to_owned),
        }
    }

    fn record(vm_uid: &str) -> DiskRecord {
        DiskRecord {
            image: String::new(),
            image_digest: String::new(),
            whole: true,
            ..root_disk::tests::record(vm_uid)
        }
    }

    fn decided(
        drive: &str,
        record: Option<&DiskRecord>,
        has_disk: bool,
        use_disk: Option<&str>,
    ) -> Result<Claim, Refusal> {
        decide(&claims(use_disk), drive, Found { record, has_disk })
    }

    #[test]
    fn each_disk_has_files_of_its_own() {
        let root = Files::of(&claims(None), ROOT_DRIVE);
        assert_eq!(root.record, Path::new("/vm/claims/root/disk.json"));
        assert_eq!(root.disk, Path::new("/vm/claims/root/root.raw"));
        let data = Files::of(&claims(None), "disk-data");
        assert_eq!(
            data.record,
            Path::new("/vm/claims/disk-data/disk-data.json")
        );
        assert_eq!(data.disk, Path::new("/vm/claims/disk-data/disk-data.raw"));
        assert_eq!(data.lock, Path::new("/vm/claims/disk-data/disk-data.lock"));
    }

    #[test]
    fn disk_of_another_vm_is_refused_unless_the_vm_asks_for_it() {
        let old = record("old");
        let refused = decided(ROOT_DRIVE, Some(&old), true, None).unwrap_err();
        let message = refused.to_string();
        assert!(
            message.contains("disk of VM default/pg (uid old)"),
            "{message}"
        );
        assert!(
            message.contains("bellows.dev/use-disk: \"old\""),
            "{message}"
        );
        for asked in ["old", "true"] {
            let decided = decided(ROOT_DRIVE, Some(&old), true, Some(asked));
            assert_eq!(decided, Ok(Claim::TakeOver));
        }
        let other = decided(ROOT_DRIVE, Some(&old), true, Some("another"));
        assert!(matches!(other, Err(Refusal::OtherVm { .. })), "{other:?}");
    }

    #[test]
    fn missing_disk_or_record_is_never_made_again() {
        let own = record("new");
        let missing = decided("disk-data", Some(&own), false, None).unwrap_err();
        let message = missing.to_string();
        assert!(message.starts_with("disk-data.raw is missing"), "{message}");
        let bare = decided(ROOT_DRIVE, None, true, None)
            .unwrap_err()
            .to_string();
        assert!(bare.contains("root.raw without disk.json"), "{bare}");
    }

    #[test]
    fn vm_with_an_earlier_root_disk_may_have_new_disks() {
        let root = decided(ROOT_DRIVE, None, false, Some("true"));
        assert_eq!(root, Err(Refusal::NothingToUse));
        let data = decided("disk-data", None, false, Some("true"));
        assert_eq!(data, Ok(Claim::Create));
    }
}
