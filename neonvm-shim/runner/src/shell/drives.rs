//! Makes the drives of a plan in the runner's directory.
//!
//! Files and swap are written here ([`crate::core::disks`]); `mke2fs` makes empty file systems.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::disk::{self, DiskError};
use crate::config::RunnerConfig;
use crate::core::disks::iso::{IsoError, iso};
use crate::core::disks::{Content, Drive, Plan, Planned, SWAP, private_files, swap_header};
use crate::core::paths::Paths;

/// Paths of `mke2fs` in a machine and in a container.
const MKE2FS: [&str; 2] = ["/usr/sbin/mke2fs", "/sbin/mke2fs"];
/// Layout of qcow2 files: databases read and write in large parts.
const QCOW2: &str = "cluster_size=2M,lazy_refcounts=on";

/// Errors of making a drive.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The token of the guest's monitor cannot be read.
    #[error(
        "cannot read {path}, which the node driver has written: delete the pod, and its VM gets another"
    )]
    MonitorToken {
        /// File of the token in the runner's directory.
        path: PathBuf,
        /// Error of reading that file.
        source: io::Error,
    },
    /// The files of a volume cannot be read.
    #[error(
        "disk {name}: cannot read its files in {path}; is the secret or config map there, with all its keys?"
    )]
    Volume {
        /// Name of the disk in the spec.
        name: String,
        /// Directory of the files below the pod's mounts.
        path: PathBuf,
        /// Error of reading that directory.
        source: io::Error,
    },
    /// The files do not fit the format of the drive.
    #[error("disk {name}: its files cannot be put on a drive")]
    Files {
        /// Name of the disk in the spec.
        name: String,
        /// Rule of the format that the files break.
        source: IsoError,
    },
    /// The drive's file cannot be written, for example on a full disk.
    #[error("disk {name}: cannot write {path}; is there room on the node?")]
    Write {
        /// Name of the disk in the spec.
        name: String,
        /// File that cannot be written.
        path: PathBuf,
        /// Error of writing that file.
        source: io::Error,
    },
    /// A program that makes the disk failed, for example `mke2fs`.
    #[error("disk {name}: a program it is made with failed; is there room on the node?")]
    Tool {
        /// Name of the disk in the spec.
        name: String,
        /// Failure of the program, with its messages.
        source: DiskError,
    },
}

/// Token of the guest's monitor, if the node driver has put one into the runner's directory.
///
/// # Errors
/// The file exists and cannot be read.
pub fn monitor_token(paths: &Paths) -> Result<Option<String>, DriveError> {
    let path = paths.monitor_token();
    match fs::read_to_string(&path) {
        Ok(token) => Ok(Some(token.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(DriveError::MonitorToken { path, source }),
    }
}

/// Makes all drives of a plan; old ones are replaced.
///
/// # Errors
/// [`DriveError`] for the first drive that cannot be made.
pub async fn make_all(
    config: &RunnerConfig,
    paths: &Paths,
    plan: &Plan,
) -> Result<Vec<Drive>, DriveError> {
    for planned in &plan.drives {
        make(config, paths, planned).await?;
    }
    Ok(plan.drives.iter().map(|one| one.drive.clone()).collect())
}

/// Makes one drive of a plan.
///
/// # Errors
/// [`DriveError`].
pub async fn make(
    config: &RunnerConfig,
    paths: &Paths,
    planned: &Planned,
) -> Result<(), DriveError> {
    let path = paths.drive(&planned.drive);
    match &planned.content {
        Content::Files(files) => write_files(planned, &path, files),
        Content::Volume(at) => {
            let files = volume(config, paths, at).map_err(|(path, source)| DriveError::Volume {
                name: planned.name.clone(),
                path,
                source,
            })?;
            write_files(planned, &path, &files)
        }
        Content::Swap(bytes) => {
            let header = swap_header(*bytes, SWAP);
            let raw = Raw::make(planned, &path, *bytes, &header)?;
            raw.convert(config, planned, &path).await
        }
        Content::Empty { bytes, quotas } => {
            let raw = Raw::make(planned, &path, *bytes, &[])?;
            let made = disk::run(mke2fs_program(), &mke2fs(&planned.label, *quotas, &raw.0)).await;
            made.map_err(|source| tool(planned, source))?;
            raw.convert(config, planned, &path).await
        }
        // The disk is on its claim.
        Content::Claimed { .. } => Ok(()),
    }
}

pub(super) fn mke2fs_program() -> &'static Path {
    let found = MKE2FS.iter().map(Path::new).find(|path| path.exists());
    found.unwrap_or(Path::new("mke2fs"))
}

fn tool(planned: &Planned, source: DiskError) -> DriveError {
    DriveError::Tool {
        name: planned.name.clone(),
        source,
    }
}

/// The quota is that of project 0, to which every file belongs by default.
pub(super) fn mke2fs(label: &str, quotas: bool, path: &Path) -> Vec<String> {
    let mut extended = "lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0".to_owned();
    let mut words = ["-q", "-F", "-t", "ext4", "-b", "4096", "-L", label]
        .map(str::to_owned)
        .to_vec();
    if quotas {
        words.extend(["-O", "project,quota"].map(str::to_owned));
        extended.push_str(",quotatype=prjquota");
    }
    words.extend(["-E".to_owned(), extended, path.display().to_string()]);
    words
}

/// Plain files of a volume. Links are followed, directories in it are skipped.
fn volume(
    config: &RunnerConfig,
    paths: &Paths,
    at: &str,
) -> Result<BTreeMap<String, Vec<u8>>, (PathBuf, io::Error)> {
    let dir = mounts(config, paths).join(at.trim_start_matches('/'));
    let read = || -> io::Result<_> {
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                return Err(io::Error::other("a file's name is not text"));
            };
            if fs::metadata(entry.path())?.is_file() {
                files.insert(name, fs::read(entry.path())?);
            }
        }
        Ok(files)
    };
    read().map_err(|error| (dir.clone(), error))
}

/// Directory of the pod's volumes.
#[must_use]
pub fn mounts(config: &RunnerConfig, paths: &Paths) -> PathBuf {
    config.mounts.clone().unwrap_or_else(|| paths.mounts())
}

fn write_files(
    planned: &Planned,
    path: &Path,
    files: &BTreeMap<String, Vec<u8>>,
) -> Result<(), DriveError> {
    // A user's volume may contain a file of the same name.
    let private = private_files(&planned.label);
    let image = iso(&planned.label, files, private).map_err(|source| DriveError::Files {
        name: planned.name.clone(),
        source,
    })?;
    let write = || new_file(path)?.write_all_at(&image, 0);
    write().map_err(|source| DriveError::Write {
        name: planned.name.clone(),
        path: path.to_owned(),
        source,
    })
}

/// A file with mode 0600, as some hold secrets.
fn new_file(path: &Path) -> io::Result<File> {
    let _ = fs::remove_file(path);
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600).open(path)
}

/// SHA-256 of a drive's file.
///
/// # Errors
/// The file cannot be read.
pub fn sha256(path: &Path) -> io::Result<String> {
    let hash = Sha256::digest(fs::read(path)?);
    Ok(hash.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A drive before it has its format; removed on drop.
struct Raw(PathBuf);

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Raw {
    fn make(planned: &Planned, path: &Path, bytes: u64, begin: &[u8]) -> Result<Self, DriveError> {
        let raw = Self(path.with_extension("raw"));
        let write = || -> io::Result<()> {
            let file = new_file(&raw.0)?;
            file.set_len(bytes)?;
            file.write_all_at(begin, 0)
        };
        match write() {
            Ok(()) => Ok(raw),
            Err(source) => Err(DriveError::Write {
                name: planned.name.clone(),
                path: raw.0.clone(),
                source,
            }),
        }
    }

    async fn convert(
        self,
        config: &RunnerConfig,
        planned: &Planned,
        path: &Path,
    ) -> Result<(), DriveError> {
        let place = |path: &Path| path.display().to_string();
        let mut words = ["convert", "-q", "-f", "raw", "-O", "qcow2", "-o", QCOW2]
            .map(str::to_owned)
            .to_vec();
        words.extend([place(&self.0), place(path)]);
        let converted = disk::run(&config.programs.qemu_img, &words).await;
        converted.map_err(|source| tool(planned, source))
    }
}

#[cfg(test)]
mod tests;
