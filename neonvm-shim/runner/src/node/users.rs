//! User ids of VMs, shared by the workers and written at every change; and whether a range of ids
//! is free.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Mutex;

use crate::core::users::{UserRange, Users};
use crate::shell::record::{RecordError, read_json, write_json};

#[derive(Debug, Clone)]
pub(super) struct UserAllocator {
    book: Arc<Mutex<Users>>,
    path: PathBuf,
}

impl UserAllocator {
    /// Opens `users.json`. One of another range is replaced: each VM gets a user of the new range
    /// at its next start.
    pub(super) fn open(path: PathBuf, range: UserRange) -> Result<Self, RecordError> {
        let book = read_json::<Users>(&path)?
            .filter(|book| book.range == range)
            .unwrap_or_else(|| Users::new(range));
        write_json(&path, &book)?;
        Ok(Self {
            book: Arc::new(Mutex::new(book)),
            path,
        })
    }

    /// User of a VM's pod; `None` when all are allocated.
    pub(super) async fn acquire(
        &self,
        vm: &str,
        pod: &str,
        outside: bool,
    ) -> Result<Option<u32>, RecordError> {
        let mut book = self.book.lock().await;
        let user = book.acquire(vm, pod, outside);
        write_json(&self.path, &*book)?;
        Ok(user)
    }

    pub(super) async fn release(&self, pod: &str) -> Result<(), RecordError> {
        let mut book = self.book.lock().await;
        book.release(pod);
        write_json(&self.path, &*book)
    }
}

/// File of a state directory that names its range.
pub(super) fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("users.json")
}
