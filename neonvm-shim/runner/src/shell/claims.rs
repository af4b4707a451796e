//! Opens the disks of a VM on claims ([`crate::core::claims`]): makes each once, checks it before
//! each start of its guest, and keeps it locked while the runner lives.
//!
//! Nothing on a claim is trusted: another pod may have put a link, a device or anything else in the
//! place of a file.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use daemon_kit::durable::sync_folder_of;
use nix::fcntl::{Flock, FlockArg};
use protocol::claims::ROOT_DRIVE;
use protocol::time::WallTime;
use rustix::fs::OFlags;
use tracing::info;

use super::disk::{self, DiskError};
use super::drives;
use super::record::{RecordError, write_json_durably};
use crate::config::{Claims, RunnerConfig};
use crate::core::claims::{Files, Refusal, decide, whole_blocks};
use crate::core::disks::{Content, Plan};
use crate::core::root_disk::{Claim, DISK_FORMAT, DiskRecord, Found};

/// How long a runner waits for another one's lock on a disk: the VM's last pod may still be ending.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two attempts to lock.
const LOCK_AGAIN: Duration = Duration::from_millis(200);
/// Longest time for writing a whole image to a claim.
const MAKE_LIMIT: Duration = Duration::from_secs(3600);
const MAX_RECORD_BYTES: u64 = 64 << 10;
/// Mode of the files that the runner makes on a claim.
const MODE: u32 = 0o600;
/// Path of a program's standard input.
const STANDARD_INPUT: &str = "/proc/self/fd/0";

/// Errors of a disk on a claim. An existing disk is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The record is missing or belongs to another VM.
    #[error("{dir}: {refusal}")]
    Refused {
        /// Directory of the claim in the runner's container.
        dir: PathBuf,
        refusal: Refusal,
    },
    /// The path is not a regular file.
    #[error(
        "{0} is {1}, and a runner opens nothing but a file that has one name: another pod that mounts the \
         claim has put it there; put back the file, or give the VM another claim"
    )]
    NoFile(PathBuf, &'static str),
    /// Another runner has locked the disk.
    #[error(
        "{0} is in use by another runner: the VM starts once that has ended; a claim serves one VM at a time"
    )]
    InUse(PathBuf),
    /// The file is smaller than its record says.
    #[error(
        "{path} is damaged: it has {found} bytes, and its record says {bytes}; nothing was changed, \
         restore it from a backup"
    )]
    Short {
        path: PathBuf,
        found: u64,
        /// Size of the disk by its record, in bytes.
        bytes: u64,
    },
    /// The disk cannot be made.
    #[error("cannot make {path}; is there room on the claim?")]
    Make { path: PathBuf, source: DiskError },
    /// The record is not valid JSON.
    #[error("{0} is malformed: restore it")]
    Malformed(PathBuf, #[source] serde_json::Error),
    /// The record cannot be written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A file operation on the claim failed.
    #[error("cannot use {0}")]
    Place(PathBuf, #[source] io::Error),
}

/// Open disks of a VM on claims.
#[derive(Debug, Default)]
pub(super) struct OpenDisks {
    /// Files in the order of [`crate::core::claims::drives_on_claims`].
    pub(super) files: Vec<OwnedFd>,
    /// Locks that keep other runners from the disks.
    pub(super) locks: Vec<Flock<File>>,
}

/// Opens all disks and makes those that the VM does not have.
///
/// # Errors
/// [`ClaimError`] for the first one that cannot be used.
pub(super) async fn open(
    config: &RunnerConfig,
    plan: &Plan,
    now: WallTime,
) -> Result<OpenDisks, ClaimError> {
    let mut open = OpenDisks::default();
    let Some(claims) = &config.claims else {
        return Ok(open);
    };
    let root = config.root_is_claimed().then_some(Wanted {
        drive: ROOT_DRIVE,
        bytes: whole_blocks(disk::overlay_bytes(config)),
        label: None,
    });
    let others = plan
        .drives
        .iter()
        .filter_map(|planned| match planned.content {
            Content::Claimed { bytes } => Some(Wanted {
                drive: &planned.drive.id,
                bytes: whole_blocks(bytes),
                label: Some(&planned.label),
            }),
            _ => None,
        });
    for wanted in root.into_iter().chain(others) {
        let files = Files::of(claims, wanted.drive);
        // Another VM's disk is refused at once, without a wait for its lock.
        wanted.decide(claims, &files)?;
        open.locks.push(lock(&files.lock, LOCK_PATIENCE).await?);
        let file = wanted.open(config, claims, &files, now).await?;
        open.files.push(file.into());
    }
    Ok(open)
}

/// A disk in the VM's spec.
#[derive(Debug, Clone, Copy)]
struct Wanted<'a> {
    /// QEMU id of its drive.
    drive: &'a str,
    bytes: u64,
    /// Label of an empty file system. `None` makes the disk from the image.
    label: Option<&'a str>,
}

impl Wanted<'_> {
    /// Decides by the record, and opens the disk.
    async fn open(
        self,
        config: &RunnerConfig,
        claims: &Claims,
        files: &Files,
        now: WallTime,
    ) -> Result<File, ClaimError> {
        let (decided, left) = self.decide(claims, files)?;
        let own = |record: DiskRecord| DiskRecord {
            namespace: config.namespace.clone(),
            vm: config.vm.clone(),
            vm_uid: claims.vm_uid.clone(),
            ..record
        };
        let before = left.clone();
        let mut record = own(left.unwrap_or_else(|| self.new_record(config, now)));
        if before.as_ref() != Some(&record) {
            write_json_durably(&files.record, &record)?;
        }
        if decided == Claim::TakeOver {
            info!(disk = %files.disk.display(), "disk of an earlier VM taken over");
        }
        if !record.made && !is_there(&files.disk) {
            self.make(config, &files.disk).await?;
        }
        let file = open_file(&files.disk)?;
        let bytes = self.grow(&file, &record, &files.disk)?;
        if !record.made || record.bytes != bytes {
            record.made = true;
            record.bytes = bytes;
            write_json_durably(&files.record, &record)?;
        }
        Ok(file)
    }

    /// The VM's right to the disk, and the disk's record.
    fn decide(
        self,
        claims: &Claims,
        files: &Files,
    ) -> Result<(Claim, Option<DiskRecord>), ClaimError> {
        let left = read_record(&files.record)?;
        let found = Found {
            record: left.as_ref(),
            has_disk: is_there(&files.disk),
        };
        let decided = decide(claims, self.drive, found).map_err(|refusal| ClaimError::Refused {
            dir: claims.dir.join(self.drive),
            refusal,
        })?;
        Ok((decided, left))
    }

    fn new_record(self, config: &RunnerConfig, now: WallTime) -> DiskRecord {
        let is_root = self.label.is_none();
        let image = is_root.then_some(&config.spec.guest.root_disk.image);
        DiskRecord {
            format: DISK_FORMAT,
            namespace: String::new(),
            vm: String::new(),
            vm_uid: String::new(),
            image: image.cloned().unwrap_or_default(),
            // The disk holds all of the image, which is not read again.
            image_digest: String::new(),
            whole: true,
            bytes: self.bytes,
            created: now,
            made: false,
            released: false,
        }
    }

    /// Makes the disk under a draft name and renames it: a file with the final name is complete.
    async fn make(self, config: &RunnerConfig, path: &Path) -> Result<(), ClaimError> {
        let draft = path.with_extension("raw.new");
        let place = |error| ClaimError::Place(path.to_owned(), error);
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(place(error)),
            _ => {}
        }
        let mut new = File::options();
        new.read(true).write(true).create_new(true).mode(MODE);
        let file = new.open(&draft).map_err(place)?;
        if let Err(source) = self.fill(config, &file).await {
            // A draft must not keep a full claim full.
            let _ = fs::remove_file(&draft);
            let path = path.to_owned();
            return Err(ClaimError::Make { path, source });
        }
        let settled = tokio::task::spawn_blocking(move || file.sync_all()).await;
        settled.map_err(io::Error::other).flatten().map_err(place)?;
        // The name was free at the decision, and the runner holds the disk's lock.
        fs::rename(&draft, path).map_err(place)?;
        sync_folder_of(path).map_err(place)?;
        info!(disk = %path.display(), bytes = self.bytes, "disk made");
        Ok(())
    }

    /// The programs write to the open file as their standard input, whatever the path refers to by
    /// then.
    async fn fill(self, config: &RunnerConfig, file: &File) -> Result<(), DiskError> {
        file.set_len(self.bytes).map_err(DiskError::Write)?;
        let input = file.try_clone().map_err(DiskError::Write)?;
        let Some(label) = self.label else {
            let image = &config.image;
            let mut words = ["convert", "-q", "-n", "--target-is-zero", "-O", "raw", "-f"]
                .map(str::to_owned)
                .to_vec();
            words.push(image.root_disk_format.clone());
            words.push(image.root_disk.display().to_string());
            words.push(STANDARD_INPUT.to_owned());
            return disk::run_on(&config.programs.qemu_img, &words, input, MAKE_LIMIT).await;
        };
        let words = drives::mke2fs(label, false, Path::new(STANDARD_INPUT));
        disk::run_on(drives::mke2fs_program(), &words, input, MAKE_LIMIT).await
    }

    /// Grows the file to its wanted size, refuses a truncated one, and returns its size.
    fn grow(self, file: &File, record: &DiskRecord, path: &Path) -> Result<u64, ClaimError> {
        let place = |error| ClaimError::Place(path.to_owned(), error);
        let found = file.metadata().map_err(place)?.len();
        if record.made && found < record.bytes {
            return Err(ClaimError::Short {
                path: path.to_owned(),
                found,
                bytes: record.bytes,
            });
        }
        if found < self.bytes {
            file.set_len(self.bytes)
                .and_then(|()| file.sync_all())
                .map_err(place)?;
            info!(disk = %path.display(), from = found, to = self.bytes, "disk grown");
        }
        Ok(found.max(self.bytes))
    }
}

/// Whether the name exists, also as a dangling link.
fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Opens a regular file for reading and writing. The type is checked before the open, as opening a
/// pipe or a device has effects.
fn open_file(path: &Path) -> Result<File, ClaimError> {
    let place = |error: io::Error| ClaimError::Place(path.to_owned(), error);
    let look = OFlags::PATH | OFlags::NOFOLLOW;
    let mut options = File::options();
    options.read(true).custom_flags(look.bits().cast_signed());
    let there = options.open(path).map_err(place)?;
    let meta = there.metadata().map_err(place)?;
    let refused = |what| ClaimError::NoFile(path.to_owned(), what);
    if meta.file_type().is_symlink() {
        return Err(refused("a link"));
    }
    if !meta.is_file() {
        return Err(refused("no regular file"));
    }
    if meta.nlink() != 1 {
        return Err(refused("a file with another name beside this one"));
    }
    let same = format!("/proc/self/fd/{}", there.as_raw_fd());
    File::options()
        .read(true)
        .write(true)
        .open(same)
        .map_err(place)
}

fn read_record(path: &Path) -> Result<Option<DiskRecord>, ClaimError> {
    if !is_there(path) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    let read = open_file(path)?
        .take(MAX_RECORD_BYTES)
        .read_to_end(&mut bytes);
    read.map_err(|error| ClaimError::Place(path.to_owned(), error))?;
    let record = serde_json::from_slice(&bytes);
    record
        .map(Some)
        .map_err(|error| ClaimError::Malformed(path.to_owned(), error))
}

async fn lock(path: &Path, patience: Duration) -> Result<Flock<File>, ClaimError> {
    let place = |error| ClaimError::Place(path.to_owned(), error);
    let mut new = File::options();
    new.write(true).create_new(true).mode(MODE);
    let mut file = match new.open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open_file(path)?,
        made => made.map_err(place)?,
    };
    let began = tokio::time::Instant::now();
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((file, nix::errno::Errno::EWOULDBLOCK)) => file,
            Err((_, error)) => return Err(place(error.into())),
        };
        if began.elapsed() >= patience {
            return Err(ClaimError::InUse(path.to_owned()));
        }
        tokio::time::sleep(LOCK_AGAIN).await;
    }
}

#[cfg(test)]
mod tests;
