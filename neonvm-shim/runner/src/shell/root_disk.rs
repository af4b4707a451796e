//! Opens a persistent root disk ([`crate::core::root_disk`]): makes it once, and checks it before
//! each start of its guest.
//!
//! The disk is not trusted: a guest that broke out of QEMU may have written another disk's path
//! into its header.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use daemon_kit::durable::sync_folder_of;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::Deserialize;
use tracing::info;

use super::disk::{self, DiskError};
use super::record::{RecordError, read_json, write_json_durably};
use crate::config::RunnerConfig;
use crate::core::root_disk::{DiskRecord, RECORD_FILE};

/// Exit status of `qemu-img check` for leaked clusters, which waste space but lose no data.
const CHECK_LEAKS: i32 = 3;

/// Errors of a persistent root disk. The disk is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum RootDiskError {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(
        "{0} has no {RECORD_FILE}, which says whose disk it is and what it lies over: restore it"
    )]
    NoRecord(PathBuf),
    /// The disk's file is missing.
    #[error(
        "{0} is missing, though {RECORD_FILE} beside it says that the VM has a disk: restore it, or delete the VM"
    )]
    Missing(PathBuf),
    /// The base image of the disk is not the VM's image.
    #[error(
        "{path} has the base image {found:?} instead of {wanted:?}: put back the VM's own disk"
    )]
    OtherImage {
        path: PathBuf,
        /// Path in the disk's header.
        found: String,
        /// Path of the VM's image.
        wanted: PathBuf,
    },
    /// Another QEMU has the disk open.
    #[error("{0} is in use by another QEMU: the VM starts once that has ended")]
    InUse(PathBuf),
    #[error("{path} is damaged: {report}; nothing was changed, restore it from a backup")]
    Damaged { path: PathBuf, report: String },
    /// The disk cannot be made or grown.
    #[error("cannot make or grow {path}; is there room on its file system?")]
    Make { path: PathBuf, source: DiskError },
    /// A program could not be executed.
    #[error(transparent)]
    Tool(DiskError),
    /// A file operation on the disk failed.
    #[error("cannot put {0} in place")]
    Place(PathBuf, #[source] io::Error),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Info {
    virtual_size: u64,
    format: String,
    #[serde(default)]
    backing_filename: Option<String>,
    #[serde(default)]
    format_specific: serde_json::Value,
}

/// Makes the disk if the VM has none, else checks it, and grows it to the size of the spec.
///
/// # Errors
/// [`RootDiskError`].
pub(crate) async fn open(config: &RunnerConfig, path: &Path) -> Result<(), RootDiskError> {
    let record_path = path.with_file_name(RECORD_FILE);
    let record: Option<DiskRecord> = read_json(&record_path)?;
    let mut record = record.ok_or_else(|| RootDiskError::NoRecord(path.to_owned()))?;
    let exists = path.exists();
    let wanted = disk::overlay_bytes(config);
    match (record.made, exists) {
        (true, false) => return Err(RootDiskError::Missing(path.to_owned())),
        (false, false) => make(config, path, wanted).await?,
        // An unfinished record means that a runner died before it updated it; no guest has run on
        // the disk.
        (_, true) => {}
    }
    let bytes = check(config, path, record.whole).await?;
    if bytes < wanted {
        grow(config, path, wanted).await?;
        info!(disk = %path.display(), from = bytes, to = wanted, "root disk grown");
    }
    let bytes = bytes.max(wanted);
    if !record.made || record.bytes != bytes {
        record.made = true;
        record.bytes = bytes;
        write_json_durably(&record_path, &record)?;
    }
    Ok(())
}

/// Makes the disk under a draft name and renames it: a file with the final name is complete.
async fn make(config: &RunnerConfig, path: &Path, bytes: u64) -> Result<(), RootDiskError> {
    let draft = path.with_extension("qcow2.new");
    let place = |error| RootDiskError::Place(path.to_owned(), error);
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(place(error)),
        _ => {}
    }
    let made = disk::make_overlay_of(config, &draft, bytes).await;
    if let Err(source) = made {
        // A draft must not keep a full disk full.
        let _ = fs::remove_file(&draft);
        return Err(RootDiskError::Make {
            path: path.to_owned(),
            source,
        });
    }
    let settle = || -> io::Result<()> {
        File::open(&draft)?.sync_all()?;
        renameat_with(CWD, &draft, CWD, path, RenameFlags::NOREPLACE)?;
        sync_folder_of(path)
    };
    settle().map_err(place)
}

/// Checks header and tables. Returns the size that the guest sees.
async fn check(config: &RunnerConfig, path: &Path, whole: bool) -> Result<u64, RootDiskError> {
    let shown = path.display().to_string();
    let info = img(config, &["info", "--output=json", &shown], path).await?;
    let damaged = |report: String| RootDiskError::Damaged {
        path: path.to_owned(),
        report,
    };
    if !info.success {
        return Err(damaged(info.text));
    }
    let info: Info =
        serde_json::from_str(&info.text).map_err(|error| damaged(error.to_string()))?;
    let wanted = match whole {
        true => Path::new(""),
        false => config.image.root_disk.as_path(),
    };
    let backing = info.backing_filename.unwrap_or_default();
    let elsewhere = &info.format_specific["data"]["data-file"];
    if info.format != "qcow2" || Path::new(&backing) != wanted || elsewhere.is_string() {
        return Err(RootDiskError::OtherImage {
            path: path.to_owned(),
            found: elsewhere.as_str().map_or(backing, str::to_owned),
            wanted: wanted.to_owned(),
        });
    }
    let checked = img(config, &["check", "-q", "-f", "qcow2", &shown], path).await?;
    match checked.code {
        Some(0 | CHECK_LEAKS) => Ok(info.virtual_size),
        _ => Err(damaged(checked.text)),
    }
}

async fn grow(config: &RunnerConfig, path: &Path, bytes: u64) -> Result<(), RootDiskError> {
    let (shown, bytes) = (path.display().to_string(), bytes.to_string());
    let words = ["resize", "-q", "-f", "qcow2", &shown, &bytes];
    let grown = img(config, &words, path).await?;
    if grown.success {
        return Ok(());
    }
    Err(RootDiskError::Make {
        path: path.to_owned(),
        source: DiskError::Refused("qemu-img".into(), grown.text),
    })
}

/// Result of a run of `qemu-img`.
struct Ran {
    success: bool,
    code: Option<i32>,
    /// Standard output of a success, else the messages.
    text: String,
}

async fn img(config: &RunnerConfig, words: &[&str], path: &Path) -> Result<Ran, RootDiskError> {
    let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    let output = disk::output(&config.programs.qemu_img, &words)
        .await
        .map_err(RootDiskError::Tool)?;
    let messages = disk::messages(&output);
    let success = output.status.success();
    if !success && messages.contains("Failed to get") && messages.contains("lock") {
        return Err(RootDiskError::InUse(path.to_owned()));
    }
    Ok(Ran {
        success,
        code: output.status.code(),
        text: if success {
            String::from_utf8_lossy(&output.stdout).into_owned()
        } else {
            messages
        },
    })
}

#[cfg(test)]
mod tests;
