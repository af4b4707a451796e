//! Synchronises directories of the pod into the guest ([`crate::core::disks::sync`]): at the due
//! times, and when the kernel reports a change.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use daemon_kit::clock::Clock;
use daemon_kit::http_client::HttpError;
use neonvm_files::checksum::checksum;
use neonvm_files::projected::{self, FilesError};
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use transport::sys::{Registered, register};

use super::guest::{self, Daemon};
use super::metrics::Metrics;
use crate::core::disks::sync::{Look, Sync, SyncChange, SyncProblem};

/// Most bytes of a directory: the largest request of the guest's daemon, less the overhead of
/// base64 and names.
const MAX_BYTES: usize = 2 << 20;

/// Keeps the directories at `paths` of the guest equal to those below `mounts` until stopped.
pub async fn keep(
    clock: Clock,
    daemon: Daemon,
    mounts: PathBuf,
    paths: Vec<String>,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let mut notices = Notices::open()
        .inspect_err(|error| warn!(%error, "failed to watch files: changes are seen within 30 s"))
        .ok();
    let mut sync = Sync::new(clock.now(), paths);
    loop {
        if let Some(due) = sync.due(clock.now()) {
            let mut found = Vec::with_capacity(due.len());
            for path in due {
                // Before the look: later changes cause another one.
                if let Some(notices) = &mut notices {
                    notices.watch(&mounts.join(path.trim_start_matches('/')));
                }
                let look = look(&daemon, &mounts, &path).await;
                if let Look::Failed(problem) = &look {
                    metrics.failed(problem);
                }
                found.push((path, look));
            }
            sync.looked(clock.now(), found).into_iter().for_each(log);
            metrics.stale(sync.stale());
        }
        let wake = tokio::time::Instant::from_std(clock.instant_of(sync.deadline()));
        tokio::select! {
            () = stop.cancelled() => return,
            () = changed(notices.as_ref()) => sync.changed(clock.now()),
            () = tokio::time::sleep_until(wake) => {}
        }
    }
}

fn log(change: SyncChange) {
    match change {
        SyncChange::Fresh(path) => info!(path, "files are in the guest"),
        SyncChange::Stale(path, problem) => {
            let reason = serde_json::to_string(&problem).unwrap_or_default();
            warn!(path, reason, "files are out of sync in the guest, retrying");
        }
    }
}

/// Compares a directory with the guest's copy, and pushes it if they differ.
async fn look(daemon: &Daemon, mounts: &Path, path: &str) -> Look {
    let here = mounts.join(path.trim_start_matches('/'));
    let files = match projected::read(&here) {
        Ok(files) => files,
        Err(error) => return Look::Failed(unreadable(&error)),
    };
    let bytes: usize = files.values().map(Vec::len).sum();
    if bytes > MAX_BYTES {
        let text = format!("{bytes} bytes are more than {MAX_BYTES}");
        return Look::Failed(SyncProblem::TooLarge(text));
    }
    match guest::checksum(daemon, path).await {
        Ok(there) if there == checksum(&files) => return Look::Same,
        // The directory is missing in the guest, or differs.
        Ok(_) | Err(HttpError::Status(..)) => {}
        Err(error) => return Look::Failed(SyncProblem::Unreached(daemon_kit::chain(&error))),
    }
    match guest::put_files(daemon, path, &files).await {
        Ok(()) => Look::Pushed,
        Err(error @ HttpError::Status(..)) => Look::Failed(SyncProblem::Refused(error.to_string())),
        Err(error) => Look::Failed(SyncProblem::Unreached(daemon_kit::chain(&error))),
    }
}

fn unreadable(error: &FilesError) -> SyncProblem {
    let text = daemon_kit::chain(error);
    match error {
        FilesError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            SyncProblem::Missing(text)
        }
        _ => SyncProblem::Unreadable(text),
    }
}

/// Waits for a notice; for ever without a source of notices.
pub(super) async fn changed(notices: Option<&Notices>) {
    match notices {
        Some(notices) => notices.next().await,
        None => std::future::pending().await,
    }
}

/// Notices of the kernel about directories whose `..data` was replaced, or files that were written.
pub(super) struct Notices {
    fd: AsyncFd<Registered<OwnedFd>>,
    watched: BTreeMap<PathBuf, i32>,
    warned: BTreeSet<PathBuf>,
}

impl Notices {
    fn open() -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self {
            fd: register(fd, Interest::READABLE)?,
            watched: BTreeMap::new(),
            warned: BTreeSet::new(),
        })
    }

    pub(super) fn of_files<'a>(files: impl Iterator<Item = &'a Path>) -> io::Result<Self> {
        let notices = Self::open()?;
        for file in files {
            inotify::add_watch(notices.fd.get_ref().get(), file, WatchFlags::MODIFY)?;
        }
        Ok(notices)
    }

    /// Watches a directory. One that is watched already, or replaced, is no error.
    fn watch(&mut self, dir: &Path) {
        let what = WatchFlags::MOVED_TO | WatchFlags::CREATE | WatchFlags::ONLYDIR;
        match inotify::add_watch(self.fd.get_ref().get(), dir, what) {
            Ok(id) => drop(self.watched.insert(dir.to_owned(), id)),
            // The next look tries again.
            Err(rustix::io::Errno::NOENT) => {}
            Err(error) if self.warned.insert(dir.to_owned()) => {
                warn!(dir = %dir.display(), %error, "failed to watch a directory: changes are seen within 30 s");
            }
            Err(_) => {}
        }
    }

    /// Waits for a change, and takes all pending notices.
    async fn next(&self) {
        loop {
            let Ok(mut ready) = self.fd.readable().await else {
                return std::future::pending().await;
            };
            let taken = ready.try_io(|fd| {
                let mut room = [0_u8; 4096];
                rustix::io::read(fd.get_ref().get(), &mut room).map_err(io::Error::from)
            });
            match taken {
                Ok(Ok(_)) => return,
                Ok(Err(error)) => {
                    warn!(%error, "failed to read file notices");
                    return std::future::pending().await;
                }
                Err(_would_block) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::time::WallTime;

    fn unreachable_daemon() -> Daemon {
        Daemon {
            address: std::net::SocketAddrV4::new([127, 0, 0, 1].into(), 1),
            key: None,
        }
    }

    #[tokio::test]
    async fn replaced_directory_is_noticed() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("secret");
        let write = |text: &str, at| {
            let files = BTreeMap::from([("key".to_owned(), text.as_bytes().to_vec())]);
            projected::write(&dir, &files, WallTime(at)).unwrap();
        };
        let mut notices = Notices::open().unwrap();
        // The directory does not exist: no notice, and no end.
        notices.watch(&dir);
        write("old", 1);
        notices.watch(&dir);
        write("new", 2);
        let noticed = tokio::time::timeout(std::time::Duration::from_secs(30), notices.next());
        noticed.await.expect("the rename is noticed");
    }

    #[tokio::test]
    async fn directories_out_of_sync_are_counted_by_reason() {
        let temp = tempfile::tempdir().unwrap();
        let unreachable_daemon = unreachable_daemon();
        let (metrics, registry) = Metrics::new(false);
        let page = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text
        };
        for reason in SyncProblem::KINDS {
            let zero = format!("runner_vm_file_sync_failures_total{{reason=\"{reason}\"}} 0\n");
            assert!(page().contains(&zero), "{}", page());
        }
        let stop = CancellationToken::new();
        let (mounts, paths) = (temp.path().to_owned(), vec!["/var/sync".to_owned()]);
        let kept = keep(
            Clock::new(),
            unreachable_daemon,
            mounts,
            paths,
            metrics,
            stop.clone(),
        );
        let kept = tokio::spawn(kept);
        let counts = async |reason: &str| {
            let none = format!("{{reason=\"{reason}\"}} 0\n");
            let counted = async {
                while page().contains(&none) {
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
            };
            let patience = std::time::Duration::from_secs(60);
            let counted = tokio::time::timeout(patience, counted).await;
            counted.unwrap_or_else(|_| panic!("no {reason}: {}", page()));
        };
        counts("missing").await;
        let files = BTreeMap::from([("key".to_owned(), b"word".to_vec())]);
        projected::write(&temp.path().join("var/sync"), &files, WallTime(1)).unwrap();
        counts("unreached").await;
        let stale = "runner_vm_file_sync_stale_directories 1\n";
        assert!(page().contains(stale), "{}", page());
        stop.cancel();
        kept.await.unwrap();
    }

    #[tokio::test]
    async fn local_problem_is_reported_with_its_reason() {
        let temp = tempfile::tempdir().unwrap();
        let unreachable_daemon = unreachable_daemon();
        let missing = look(&unreachable_daemon, temp.path(), "/var/sync").await;
        assert!(
            matches!(missing, Look::Failed(SyncProblem::Missing(_))),
            "{missing:?}"
        );
        let files = BTreeMap::from([("large".to_owned(), vec![0; MAX_BYTES + 1])]);
        projected::write(&temp.path().join("var/sync"), &files, WallTime(1)).unwrap();
        let large = look(&unreachable_daemon, temp.path(), "/var/sync").await;
        assert!(
            matches!(large, Look::Failed(SyncProblem::TooLarge(_))),
            "{large:?}"
        );
        projected::write(&temp.path().join("var/sync"), &BTreeMap::new(), WallTime(2)).unwrap();
        let unreached = look(&unreachable_daemon, temp.path(), "/var/sync").await;
        assert!(
            matches!(unreached, Look::Failed(SyncProblem::Unreached(_))),
            "{unreached:?}"
        );
    }
}
