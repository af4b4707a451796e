//! The lock on the cache, and temporary directories for builds.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::time::Instant;

use super::cache::Store;
use super::error::{StoreError, StoreIo};
use crate::progress::{Reporter, Step, TICK};

/// The lock on the cache. Dropping the value or the end of the process releases it.
#[derive(Debug)]
pub(crate) struct Guard {
    _file: File,
}

impl Store {
    /// Takes the lock, and reports while another build holds it. Removes what a killed build left.
    pub(crate) fn lock(&self, reporter: &mut Reporter<'_>) -> Result<Guard, StoreError> {
        let path = self.root.join("lock");
        let file = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .at("open", &path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => wait_for_lock(&file, &path, reporter)?,
            Err(TryLockError::Error(source)) => return Err(source).at("lock", &path),
        }
        let tmp = self.root.join("tmp");
        for entry in fs::read_dir(&tmp).at("list", &tmp)? {
            let left = entry.at("list", &tmp)?.path();
            let is_dir = left.symlink_metadata().is_ok_and(|m| m.is_dir());
            if is_dir {
                fs::remove_dir_all(&left)
            } else {
                fs::remove_file(&left)
            }
            .at("remove", &left)?;
        }
        Ok(Guard { _file: file })
    }

    /// Creates a temporary directory. Dropping the value removes it.
    pub(crate) fn work_dir(&self, _guard: &Guard) -> Result<tempfile::TempDir, StoreError> {
        let tmp = self.root.join("tmp");
        tempfile::Builder::new()
            .prefix("build-")
            .tempdir_in(&tmp)
            .at("create a directory in", &tmp)
    }
}

fn wait_for_lock(file: &File, path: &Path, reporter: &mut Reporter<'_>) -> Result<(), StoreError> {
    reporter.begin(Step::Lock, "");
    let waiter = file.try_clone().at("lock", path)?;
    let (sender, done) = mpsc::sync_channel(1);
    // `lock` blocks without a timeout. Reports continue meanwhile.
    std::thread::spawn(move || sender.send(waiter.lock()));
    let begun = Instant::now();
    loop {
        match done.recv_timeout(TICK) {
            Ok(result) => {
                tracing::info!(
                    waited_ms = begun.elapsed().as_millis(),
                    "another image build ended"
                );
                return result.at("lock", path);
            }
            Err(mpsc::RecvTimeoutError::Timeout) => reporter.tick(),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("the waiting thread ended")).at("lock", path);
            }
        }
    }
}
