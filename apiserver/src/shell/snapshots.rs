//! Copies of the store that the server makes by itself, in `snapshots/` beside it.
//!
//! A name tells everything that the rules below need: `api_IDENTITY_TIME_REVISION.redb`. No file is
//! opened to decide what is due and what may go.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::db::{Db, DbError, Frozen, Position};
use super::engine::Engine;
use super::files;
use super::snapshot_files::name;
pub use super::snapshot_files::{Snapshot, dir_of, list};
use crate::core::store::Store;
use crate::core::time::WallTime;
use crate::error::StartError;
use crate::kinds;

/// Shortest time between two snapshots.
const EVERY: Duration = Duration::from_secs(600);
/// How often the server asks whether a snapshot is due.
pub const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Newest snapshots of a store that are kept.
const KEPT: usize = 12;
/// Days of which the newest snapshot is kept. Snapshots of other stores are kept that long too.
const KEPT_DAYS: i64 = 7;
const DAY_US: i64 = 86_400_000_000;

/// Copies a store that nobody has open to `file`, which must not exist. Returns what it holds.
///
/// # Errors
/// See [`DbError`].
pub fn copy(store: &Path, file: &Path) -> Result<Position, DbError> {
    let db = Db::open(store)?;
    db.frozen()?.copy_to(file)?;
    db.position()
}

/// Reads every object of a store that nobody has open. Returns what it holds.
///
/// # Errors
/// When any of it cannot be read.
pub fn check(store: &Path) -> Result<Position, StartError> {
    let db = Db::open(store)?;
    let position = db.position()?;
    let mut objects = Store::new(kinds::builtin()?, position.revision);
    db.load(&mut objects)?;
    Ok(position)
}

/// Takes a snapshot if one is due, and removes those that are surplus. The path of the new one.
///
/// # Errors
/// [`DbError`] when it cannot be written. Those that were there before are then kept.
pub async fn take_if_due(store: &Path, engine: &Engine) -> Result<Option<PathBuf>, DbError> {
    let now = super::now();
    let (all, store) = (list(store), store.to_owned());
    let Some((position, frozen)) = engine.freeze().await.transpose()? else {
        return Ok(None);
    };
    if !is_due(&all, position, now) {
        return Ok(None);
    }
    let taken = tokio::task::spawn_blocking(move || take(&store, &frozen, position, now)).await;
    // A panic was logged where it happened; the next look tries again.
    taken.unwrap_or(Ok(None))
}

fn take(
    store: &Path,
    frozen: &Frozen,
    position: Position,
    now: WallTime,
) -> Result<Option<PathBuf>, DbError> {
    let dir = dir_of(store);
    files::make_private_dir(&dir).map_err(|error| DbError::unusable("copy", &dir, error.source))?;
    let path = dir.join(name(position, now));
    let draft = path.with_extension("new");
    let unusable = |error| DbError::unusable("copy", &path, error);
    match std::fs::remove_file(&draft) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(unusable(error)),
        _ => {}
    }
    frozen.copy_to(&draft)?;
    std::fs::rename(&draft, &path).map_err(unusable)?;
    daemon_kit::durable::sync_folder_of(&path).map_err(unusable)?;
    for surplus in surplus(&list(store), position.id, now) {
        if let Err(error) = std::fs::remove_file(&surplus) {
            tracing::warn!(path = %surplus.display(), %error, "old snapshot of the store not removed");
        }
    }
    Ok(Some(path))
}

/// Whether the store has changed since its newest snapshot, and that is old enough.
fn is_due(all: &[Snapshot], position: Position, now: WallTime) -> bool {
    let of_store = all.iter().filter(|one| one.position.id == position.id);
    of_store.max_by_key(|one| one.taken.0).is_none_or(|newest| {
        let age = now.0.saturating_sub(newest.taken.0);
        // A snapshot of the future is one of a clock that was set back: it says nothing.
        let is_old = age < 0 || u128::from(age.unsigned_abs()) >= EVERY.as_micros();
        is_old && newest.position.revision != position.revision
    })
}

/// The snapshots that may go: of store `id` all but the newest [`KEPT`] and the newest of each of
/// the last [`KEPT_DAYS`] days; of other stores those older than that.
fn surplus(all: &[Snapshot], id: u64, now: WallTime) -> Vec<PathBuf> {
    let is_old = |one: &Snapshot| now.0.saturating_sub(one.taken.0) > KEPT_DAYS * DAY_US;
    let (own, others): (Vec<_>, Vec<_>) = all.iter().partition(|one| one.position.id == id);
    let mut gone: Vec<PathBuf> = others
        .into_iter()
        .filter(|one| is_old(one))
        .map(|one| one.path.clone())
        .collect();
    let mut days = std::collections::BTreeSet::new();
    for (age, one) in own.into_iter().rev().enumerate() {
        let is_newest_of_day = days.insert(one.taken.0.div_euclid(DAY_US));
        let is_kept = age < KEPT || (is_newest_of_day && !is_old(one));
        if !is_kept {
            gone.push(one.path.clone());
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::snapshot_files::{advice, parse};

    const NOW: WallTime = WallTime(1_764_000_000_000_000);

    fn snapshot(id: u64, age_us: i64, revision: u64) -> Snapshot {
        let position = Position { id, revision };
        let path = PathBuf::from("/s").join(name(position, WallTime(NOW.0 - age_us)));
        parse(path).expect("our own name")
    }

    #[test]
    fn name_of_a_snapshot_reads_back() {
        let one = snapshot(7, 0, 42);
        assert_eq!((one.position.id, one.position.revision), (7, 42));
        assert_eq!(one.taken, NOW);
        assert_eq!(parse("/s/api.redb".into()), None);
        assert_eq!(parse("/s/api_7_x_1.redb".into()), None);
    }

    #[test]
    fn snapshot_is_due_after_a_change_and_ten_minutes() {
        let position = |revision| Position { id: 1, revision };
        let minute = 60_000_000;
        assert!(is_due(&[], position(1), NOW));
        let old = [snapshot(1, 11 * minute, 5)];
        assert!(is_due(&old, position(6), NOW));
        assert!(!is_due(&old, position(5), NOW), "nothing has changed");
        let fresh = [snapshot(1, 9 * minute, 5)];
        assert!(!is_due(&fresh, position(6), NOW));
        let of_another_store = [snapshot(2, minute, 5)];
        assert!(is_due(&of_another_store, position(6), NOW));
        let of_a_clock_ahead = [snapshot(1, -60 * minute, 5)];
        assert!(is_due(&of_a_clock_ahead, position(6), NOW));
    }

    #[test]
    fn newest_snapshots_and_one_of_each_day_are_kept() {
        let ten_minutes = 600_000_000;
        let mut all: Vec<Snapshot> = (0..2000_i64)
            .map(|n| snapshot(1, n * ten_minutes, 3000 - n.unsigned_abs()))
            .collect();
        all.push(snapshot(2, DAY_US, 1));
        all.push(snapshot(2, 8 * DAY_US, 1));
        all.sort_by_key(|one| one.taken.0);
        let gone = surplus(&all, 1, NOW);
        let kept: Vec<&Snapshot> = all.iter().filter(|one| !gone.contains(&one.path)).collect();
        let (own, others): (Vec<&Snapshot>, Vec<&Snapshot>) =
            kept.into_iter().partition(|one| one.position.id == 1);
        assert!((18..=20).contains(&own.len()), "{}", own.len());
        assert!(own.iter().any(|one| one.taken == NOW));
        assert_eq!(others.len(), 1, "that of another store is kept for a week");
    }

    #[test]
    fn copy_has_the_identity_and_position_of_its_store() {
        let dir = tempfile::tempdir().expect("a directory");
        let (store, file) = (dir.path().join("api.redb"), dir.path().join("copy"));
        let position = Db::open(&store).and_then(|db| db.position()).expect("made");
        assert_eq!(copy(&store, &file).expect("copied"), position);
        assert_eq!(check(&file).expect("whole"), position);
        assert!(copy(&store, &file).is_err(), "no file is replaced");
        assert_eq!(check(&file).expect("what was there stays"), position);
    }

    #[test]
    fn store_that_is_older_than_what_was_seen_of_it_gets_a_new_identity() {
        let dir = tempfile::tempdir().expect("a directory");
        let db = Db::open(&dir.path().join("api.redb")).expect("made");
        let own = db.position().expect("read");
        let seen = |id, revision| [Position { id, revision }];
        for harmless in [seen(own.id, own.revision), seen(own.id ^ 1, 99)] {
            assert!(!db.fork_if_older(&harmless).expect("compared"));
        }
        assert_eq!(db.position().expect("read"), own);
        assert!(
            db.fork_if_older(&seen(own.id, own.revision + 1))
                .expect("compared")
        );
        let forked = db.position().expect("read");
        assert_ne!(forked.id, own.id);
        assert_eq!(forked.revision, own.revision);
        drop(db);
        let again = Db::open(&dir.path().join("api.redb")).and_then(|db| db.position());
        assert_eq!(again.expect("read"), forked, "it survives a restart");
    }

    #[test]
    fn advice_names_the_newest_snapshot_and_no_way_to_lose_a_disk() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("api.redb");
        let without = advice(&store);
        assert!(without.contains("bellows adopt") && without.contains("guests are kept"));
        std::fs::create_dir(dir_of(&store)).expect("made");
        for (age, revision) in [(3 * DAY_US, 1), (DAY_US, 2)] {
            let one = snapshot(1, age, revision);
            let path = dir_of(&store).join(one.path.file_name().expect("a name"));
            std::fs::write(path, "").expect("written");
        }
        let with = advice(&store);
        assert!(with.contains("_2.redb"), "{with}");
        assert!(with.contains("bellows restore --store "), "{with}");
    }
}
