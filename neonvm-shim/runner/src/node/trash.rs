//! Directories that are moved aside instead of deleted: `STATE/trash/NAME_TIME`, removed a week
//! later.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use daemon_kit::clock::Clock;
use protocol::time::WallTime;
use tracing::{info, warn};

use crate::shell::record::private_dir;

/// How long a directory is kept aside.
const KEPT_DAYS: i64 = 7;
const DAY_US: i64 = 86_400_000_000;
/// How often the trash is cleaned.
const LOOK_EVERY: Duration = Duration::from_secs(3600);

/// The directory of moved directories, below the state directory.
#[must_use]
pub fn trash(state_dir: &Path) -> PathBuf {
    state_dir.join("trash")
}

/// Moves a file or directory of `state_dir` to the trash. Returns its new path, `None` if it does
/// not exist. On return the move survives a crash of the machine.
///
/// # Errors
/// The file system's error. The directory is then in its old place.
pub fn move_aside(state_dir: &Path, path: &Path, now: WallTime) -> io::Result<Option<PathBuf>> {
    let Some(name) = path.file_name().filter(|_| path.symlink_metadata().is_ok()) else {
        return Ok(None);
    };
    let trash = trash(state_dir);
    private_dir(&trash)?;
    let name = name.to_string_lossy();
    // Two directories of one name in the same microsecond must not overwrite each other.
    let free = (0..i64::MAX)
        .map(|later| trash.join(format!("{name}_{}", now.0.saturating_add(later))))
        .find(|to| to.symlink_metadata().is_err());
    let to = free.ok_or(io::ErrorKind::AlreadyExists)?;
    std::fs::rename(path, &to)?;
    daemon_kit::durable::sync_folder_of(&to)?;
    daemon_kit::durable::sync_folder_of(path)?;
    Ok(Some(to))
}

/// Removes directories that were moved more than a week ago. Failed removals are logged.
///
/// # Errors
/// The trash cannot be read.
pub fn clean(state_dir: &Path, now: WallTime) -> io::Result<()> {
    let entries = match std::fs::read_dir(trash(state_dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let Some(moved) = moved_at(&path) else {
            continue;
        };
        if now.0.saturating_sub(moved.0) <= KEPT_DAYS * DAY_US {
            continue;
        }
        let removed = if path.is_dir() {
            std::fs::remove_dir_all(&path)
        } else {
            std::fs::remove_file(&path)
        };
        match removed {
            Ok(()) => info!(path = %path.display(), "directory removed after a week in the trash"),
            Err(error) => {
                warn!(path = %path.display(), %error, "failed to remove a directory from the trash")
            }
        }
    }
    Ok(())
}

/// Cleans periodically, until it is dropped.
pub(super) async fn keep_clean(state_dir: PathBuf, clock: Clock) {
    let mut looks = tokio::time::interval(LOOK_EVERY);
    loop {
        looks.tick().await;
        if let Err(error) = clean(&state_dir, clock.wall()) {
            warn!(%error, "failed to read the trash");
        }
    }
}

/// Time of the move, from the name. Other files have no such name and stay.
fn moved_at(path: &Path) -> Option<WallTime> {
    let (_, time) = path.file_name()?.to_str()?.rsplit_once('_')?;
    time.parse().ok().map(WallTime)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: WallTime = WallTime(1_764_000_000_000_000);

    fn later(us: i64) -> WallTime {
        WallTime(NOW.0 + us)
    }

    #[test]
    fn directory_moved_aside_is_kept_for_a_week() {
        let state = tempfile::tempdir().unwrap();
        let dir = state.path().join("vms/default_pg-x");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("disk.qcow2"), "data").unwrap();
        let to = move_aside(state.path(), &dir, NOW).unwrap().unwrap();
        assert!(!dir.exists());
        assert_eq!(std::fs::read(to.join("disk.qcow2")).unwrap(), b"data");
        clean(state.path(), later(7 * DAY_US)).unwrap();
        assert!(to.exists(), "a week has not passed");
        clean(state.path(), later(7 * DAY_US + 1)).unwrap();
        assert!(!to.exists());
    }

    #[test]
    fn two_directories_of_one_name_are_both_kept() {
        let state = tempfile::tempdir().unwrap();
        let dir = state.path().join("vms/default_pg-x");
        let moved = [1, 2].map(|_| {
            std::fs::create_dir_all(&dir).unwrap();
            move_aside(state.path(), &dir, NOW).unwrap().unwrap()
        });
        assert_ne!(moved[0], moved[1]);
        assert!(moved.iter().all(|path| path.exists()));
    }

    #[test]
    fn missing_file_is_not_moved_and_foreign_file_stays() {
        let state = tempfile::tempdir().unwrap();
        let dir = state.path().join("vms/none");
        assert_eq!(move_aside(state.path(), &dir, NOW).unwrap(), None);
        clean(state.path(), NOW).unwrap();
        private_dir(&trash(state.path())).unwrap();
        let foreign = trash(state.path()).join("notes");
        std::fs::write(&foreign, "").unwrap();
        clean(state.path(), later(100 * DAY_US)).unwrap();
        assert!(foreign.exists());
    }
}
