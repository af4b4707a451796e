//! The snapshot files beside a store, by their names, and the advice that rests on them.
//!
//! A name has everything that the rules of `snapshots` need: `api_IDENTITY_TIME_REVISION.redb`.

use std::path::{Path, PathBuf};

use super::db::Position;
use crate::core::time::WallTime;

/// A snapshot file of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Path of the snapshot's file.
    pub path: PathBuf,
    /// When it was taken, to the second.
    pub taken: WallTime,
    /// Identity and newest revision of the snapshot.
    pub position: Position,
}

/// Where the snapshots of the store `store` are.
#[must_use]
pub fn dir_of(store: &Path) -> PathBuf {
    store.with_file_name("snapshots")
}

/// The snapshots beside `store`, oldest first.
#[must_use]
pub fn list(store: &Path) -> Vec<Snapshot> {
    let entries = std::fs::read_dir(dir_of(store));
    let paths = entries.into_iter().flatten().flatten();
    let mut all: Vec<Snapshot> = paths.filter_map(|entry| parse(entry.path())).collect();
    all.sort_by_key(|snapshot| (snapshot.taken.0, snapshot.position.revision));
    all
}

/// What to do about a damaged store. Nothing here loses a disk.
pub(super) fn advice(store: &Path) -> String {
    let dir = store.parent().unwrap_or(Path::new("."));
    let dir = dir.display();
    match list(store).last() {
        Some(newest) => format!(
            "put the snapshot of {} back: bellows restore --store {} --state-dir {dir}. \
             Running guests are kept, and so are their disks",
            newest.taken,
            newest.path.display()
        ),
        None => format!(
            "there is no snapshot. Put a copy of yours back: bellows restore --store FILE --state-dir {dir}; or rename the \
             file, start bellows up, and get the objects of the guests that run back: bellows adopt --state-dir {dir}. \
             Running guests are kept, and so are their disks"
        ),
    }
}

pub(super) fn name(position: Position, now: WallTime) -> String {
    // A colon in a name is a host's end for scp.
    let time = now.to_string().replace(':', ".");
    format!("api_{:016x}_{time}_{}.redb", position.id, position.revision)
}

pub(super) fn parse(path: PathBuf) -> Option<Snapshot> {
    let name = path.file_name()?.to_str()?.strip_suffix(".redb")?;
    let mut parts = name.split('_');
    let is_ours = parts.next()? == "api";
    let id = u64::from_str_radix(parts.next()?, 16).ok()?;
    let taken = WallTime::parse(&parts.next()?.replace('.', ":")).ok()?;
    let revision = parts.next()?.parse().ok()?;
    (is_ours && parts.next().is_none()).then_some(Snapshot {
        path,
        taken,
        position: Position { id, revision },
    })
}
