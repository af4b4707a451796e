//! One builder at a time, and a clean place to work in.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::time::Instant;

use super::Store;
use super::error::{StoreError, StoreIo};
use crate::progress::{Reporter, Step, TICK};

/// The cache's lock; released when dropped, and by the kernel when the process dies.
#[derive(Debug)]
pub(crate) struct Guard {
    _file: File,
}

impl Store {
    /// Takes the cache's lock, reporting while another build holds it, and clears what a killed
    /// build left.
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

    /// A fresh directory to work in; gone with the value.
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
    // `lock` blocks without an end of its own; the reports go on beside it.
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
