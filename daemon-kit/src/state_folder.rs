//! A folder of state that outlives its process: who owns it, and which process writes it.
//!
//! [`prepare`] gives a new folder to the user of a daemon. It never takes over a folder that is in
//! use for something else: a mistyped path must not change the owner of `/etc`. As root it needs
//! `CAP_CHOWN` and no other capability.
//!
//! [`lock`] admits one process. The kernel releases the lock at the end of its holder, also in
//! another container.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::fs::{Gid, Mode, OFlags, Stat, Uid};
use tokio::time::Instant;

const MODE: u32 = 0o700;
/// Permission of users other than the owner to write.
const OTHERS_WRITE: u32 = 0o022;
/// What a new file system holds: a folder may be one of its own.
const LOST_AND_FOUND: &str = "lost+found";
/// Time between two attempts to get a lock.
const ATTEMPT_EVERY: Duration = Duration::from_millis(200);

/// Why a folder cannot be used for state.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// There is a link or a file in its place, or its parent is missing.
    #[error("failed to {action} {}", path.display())]
    Io {
        /// Name of the operation.
        action: &'static str,
        /// Path of the folder.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Another user owns it.
    #[error(
        "{} belongs to user {owner}: remove it, or give it to user {wanted} by chown", path.display()
    )]
    Foreign {
        /// Path of the folder.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
        /// The user that it is for.
        wanted: u32,
    },
    /// It holds something and does not belong to the user.
    #[error(
        "{} holds {name:?} and does not belong to user {wanted}: name a folder of its own, or give \
         it to user {wanted} by chown", path.display()
    )]
    InUse {
        /// Path of the folder.
        path: PathBuf,
        /// One of its entries.
        name: String,
        /// The user that it is for.
        wanted: u32,
    },
    /// Users other than its owner may write it.
    #[error("{} may be written by others (mode {mode:04o}): chmod 0700", path.display())]
    Open {
        /// Path of the folder.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// Makes `path` a folder of the user and group `owner` with mode 0700, or checks that it is one.
///
/// # Errors
/// [`PrepareError`]: the folder is as it was, or empty.
pub fn prepare(path: &Path, owner: u32) -> Result<(), PrepareError> {
    let failed = |action| {
        move |source: io::Error| PrepareError::Io {
            action,
            path: path.to_owned(),
            source,
        }
    };
    match DirBuilder::new().mode(MODE).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed("make")(error));
        }
        _ => {}
    }
    // The right to read it is not needed: a folder of the user's is closed to root without
    // capabilities.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from);
    let found = found.map_err(failed("open"))?;
    let stat = rustix::fs::fstat(&found).map_err(io::Error::from);
    let stat = stat.map_err(failed("look at"))?;
    if stat.st_uid == owner {
        return closed_to_others(path, &stat);
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(PrepareError::Foreign {
            path: path.to_owned(),
            owner: stat.st_uid,
            wanted: owner,
        });
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(&found, ".", flags, Mode::empty()).map_err(io::Error::from);
    let folder = folder.map_err(failed("open"))?;
    if let Some(name) = first_entry(&folder).map_err(failed("read"))? {
        return Err(PrepareError::InUse {
            path: path.to_owned(),
            name,
            wanted: owner,
        });
    }
    // The mode first: only the owner may set it. A crash in between leaves an empty folder.
    give(&folder, owner).map_err(failed("change the owner of"))
}

fn closed_to_others(path: &Path, stat: &Stat) -> Result<(), PrepareError> {
    let mode = stat.st_mode & 0o7777;
    if mode & OTHERS_WRITE == 0 {
        return Ok(());
    }
    Err(PrepareError::Open {
        path: path.to_owned(),
        mode,
    })
}

fn first_entry(folder: &OwnedFd) -> io::Result<Option<String>> {
    for entry in rustix::fs::Dir::read_from(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if ![".", "..", LOST_AND_FOUND].contains(&name.as_str()) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn give(folder: &OwnedFd, owner: u32) -> io::Result<()> {
    rustix::fs::fchmod(folder, Mode::from_raw_mode(MODE))?;
    let (user, group) = (Uid::from_raw(owner), Gid::from_raw(owner));
    rustix::fs::fchown(folder, Some(user), Some(group))?;
    rustix::fs::fsync(folder)?;
    Ok(())
}

/// A lock on a folder, held while this value lives.
#[derive(Debug)]
pub struct FolderLock(File);

impl FolderLock {
    /// Releases the lock before the value is dropped.
    pub fn release(&self) {
        let _ = self.0.unlock();
    }
}

/// Why a folder is not locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds the lock.
    #[error("{} is being written by another process", .0.display())]
    Locked(PathBuf),
    /// The folder or its file `lock` cannot be made, or the file system has no locks.
    #[error("failed to lock {}", folder.display())]
    Io {
        /// Path of the folder.
        folder: PathBuf,
        /// Error of the file operation.
        #[source]
        source: io::Error,
    },
}

/// Takes the lock of a folder, which is made if it is missing. Does not wait.
///
/// # Errors
/// [`LockError`].
pub fn lock(folder: &Path) -> Result<FolderLock, LockError> {
    let broken = |source: io::Error| LockError::Io {
        folder: folder.to_owned(),
        source,
    };
    let made = DirBuilder::new().recursive(true).mode(MODE).create(folder);
    made.map_err(broken)?;
    let file = File::create(folder.join("lock")).map_err(broken)?;
    match file.try_lock() {
        Ok(()) => Ok(FolderLock(file)),
        Err(fs::TryLockError::WouldBlock) => Err(LockError::Locked(folder.to_owned())),
        Err(fs::TryLockError::Error(source)) => Err(broken(source)),
    }
}

/// Takes the lock of a folder and waits for its holder up to `patience`.
///
/// # Errors
/// [`LockError`].
pub async fn lock_within(folder: &Path, patience: Duration) -> Result<FolderLock, LockError> {
    let deadline = Instant::now() + patience;
    let mut is_told = false;
    loop {
        match lock(folder) {
            Err(LockError::Locked(_)) if Instant::now() < deadline => {}
            done => return done,
        }
        if !std::mem::replace(&mut is_told, true) {
            let folder = folder.display().to_string();
            tracing::warn!(
                folder,
                ?patience,
                "another process writes the folder; waiting"
            );
        }
        tokio::time::sleep(ATTEMPT_EVERY).await;
    }
}

#[cfg(test)]
mod tests;
