//! What can be asked about the controller while it runs. Each answer is read from what the workers
//! published; none waits for a worker.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use daemon_kit::clock::Clock;
use protocol::migration::SECRET_OF_SHAPE;
use protocol::time::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::{CONTROLLER, CONTROLLER_OF_MOVES};
use crate::core::failing::{Degraded, FailureLag, Outcome};
use crate::core::vm::Dump;
use crate::core::{Kind, migration};

/// The VMs were listed.
const VMS: u8 = 1;
/// The pods were listed.
const PODS: u8 = 2;
/// The migrations were listed.
const MOVES: u8 = 4;

/// A view of a running controller; clones share it. Give one to [`crate::run`] and keep another.
#[derive(Debug, Clone)]
pub struct StateHandle {
    clock: Clock,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    synced: AtomicU8,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    vms: Pages<Dump, Kind>,
    moves: Pages<migration::Dump, migration::Kind>,
    unreadable: BTreeMap<String, String>,
    panics: u64,
    /// The last number given to one who writes.
    writers: u64,
}

/// What the tasks of one sort have published, by the `namespace/name` of their VMs.
#[derive(Debug)]
struct Pages<D, K>(BTreeMap<String, Page<D, K>>);

/// What one task publishes.
#[derive(Debug)]
struct Page<D, K> {
    /// Whose it is.
    writer: u64,
    dump: Option<Arc<D>>,
    lag: FailureLag<K>,
}

/// A task's place in the book. Whether a page is still its own is decided under the lock under
/// which it is written, so nothing comes back that was forgotten, however late its task is, and
/// nothing of the one who has the place next is lost.
pub(super) struct Place<D, K> {
    state: StateHandle,
    key: String,
    writer: u64,
    pages: fn(&mut Book) -> &mut Pages<D, K>,
}

/// That of a VM's worker.
pub(super) type VmPlace = Place<Dump, Kind>;
/// That of a mover.
pub(super) type MovePlace = Place<migration::Dump, migration::Kind>;

/// The degraded objects of one controller, as docs/compatibility/neonvm.md §2.12 counts them.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) controller: &'static str,
    pub(super) failing: Degraded,
    pub(super) conflicting: Degraded,
}

impl<D, K> Default for Pages<D, K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<D, K: Ord + Copy> Pages<D, K> {
    /// The page of `key` is this writer's from now on. What is there stays until it writes: its VM
    /// is the same.
    fn give(&mut self, key: &str, writer: u64) {
        let new = || Page {
            writer,
            dump: None,
            lag: FailureLag::default(),
        };
        let page = self.0.entry(key.to_owned()).or_insert_with(new);
        page.writer = writer;
    }

    fn standing(&self, controller: &'static str, now: Timestamp) -> Standing {
        let mut all = Standing {
            controller,
            failing: Degraded::default(),
            conflicting: Degraded::default(),
        };
        for page in self.0.values() {
            all.failing.append(page.lag.failing(now));
            all.conflicting.append(page.lag.conflicting(now));
        }
        all
    }

    fn dumps(&self) -> BTreeMap<String, Arc<D>> {
        let dumps = self.0.iter();
        let dumps = dumps.filter_map(|(key, page)| Some((key.clone(), page.dump.clone()?)));
        dumps.collect()
    }
}

impl<D, K: Ord + Copy> Place<D, K> {
    /// Shows this, in place of what was shown before.
    pub(super) fn publish(&self, dump: D) {
        self.write(|page| page.dump = Some(Arc::new(dump)));
    }

    /// Notes how an attempt ended that was about `object`.
    pub(super) fn note(&self, object: &str, kind: K, outcome: Outcome, now: Timestamp) {
        self.write(|page| page.lag.note(object, kind, outcome, now));
    }

    fn write(&self, change: impl FnOnce(&mut Page<D, K>)) {
        let mut book = self.state.book();
        let page = (self.pages)(&mut book).0.get_mut(&self.key);
        if let Some(page) = page.filter(|page| page.writer == self.writer) {
            change(page);
        }
    }
}

impl StateHandle {
    /// A view of nothing yet.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            shared: Arc::new(Shared {
                synced: AtomicU8::new(0),
                book: Mutex::default(),
            }),
        }
    }

    /// Whether VMs, pods and migrations have been listed once.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.shared.synced.load(Ordering::Acquire) == VMS | PODS | MOVES
    }

    /// Whether a VM of this `namespace/name` is being worked for.
    pub(super) fn knows(&self, key: &str) -> bool {
        let book = self.book();
        book.vms.0.contains_key(key) || book.unreadable.contains_key(key)
    }

    /// One entry per controller: `[{"controllerName","failing","conflicting", "vms", "unreadable",
    /// "workerPanics"}, {"controllerName","failing","conflicting", "migrations"}]`: the shape of
    /// docs/compatibility/neonvm.md §2.12, and every VM and its migrations as their cores see them.
    #[must_use]
    pub fn dump(&self) -> Value {
        let [of_vms, of_moves] = self.degraded(self.clock.now());
        let (vms, moves, unreadable, panics) = {
            let book = self.book();
            let unreadable = book.unreadable.clone();
            (
                book.vms.dumps(),
                book.moves.dumps(),
                unreadable,
                book.panics,
            )
        };
        let all = |degraded: Degraded| [degraded.active, degraded.idle].concat();
        json!([{
            "controllerName": of_vms.controller,
            "failing": all(of_vms.failing),
            "conflicting": all(of_vms.conflicting),
            "vms": shown(vms),
            "unreadable": unreadable,
            "workerPanics": panics,
        }, {
            "controllerName": of_moves.controller,
            "failing": all(of_moves.failing),
            "conflicting": all(of_moves.conflicting),
            "migrations": shown(moves),
        }])
    }

    pub(super) fn listed_vms(&self) {
        self.shared.synced.fetch_or(VMS, Ordering::AcqRel);
    }

    pub(super) fn listed_pods(&self) {
        self.shared.synced.fetch_or(PODS, Ordering::AcqRel);
    }

    pub(super) fn listed_moves(&self) {
        self.shared.synced.fetch_or(MOVES, Ordering::AcqRel);
    }

    /// The place of a worker that is to begin. Whoever had it writes no more.
    pub(super) fn place(&self, key: &str) -> VmPlace {
        self.give(key, |book| &mut book.vms)
    }

    /// The same for a mover.
    pub(super) fn place_of_moves(&self, key: &str) -> MovePlace {
        self.give(key, |book| &mut book.moves)
    }

    fn give<D, K: Ord + Copy>(
        &self,
        key: &str,
        pages: fn(&mut Book) -> &mut Pages<D, K>,
    ) -> Place<D, K> {
        let mut book = self.book();
        book.writers = book.writers.saturating_add(1);
        let writer = book.writers;
        pages(&mut book).give(key, writer);
        Place {
            state: self.clone(),
            key: key.to_owned(),
            writer,
            pages,
        }
    }

    /// A VM has no migrations any more.
    pub(super) fn forget_moves(&self, key: &str) {
        self.book().moves.0.remove(key);
    }

    /// A migration of the VM `key` is gone.
    pub(super) fn forget_move(&self, key: &str, migration: &str) {
        if let Some(page) = self.book().moves.0.get_mut(key) {
            page.lag.forget(migration);
        }
    }

    /// A VM is gone.
    pub(super) fn forget(&self, key: &str) {
        let mut book = self.book();
        book.vms.0.remove(key);
        book.unreadable.remove(key);
    }

    pub(super) fn unreadable(&self, key: &str, why: Option<String>) {
        let mut book = self.book();
        match why {
            Some(why) => book.unreadable.insert(key.to_owned(), why),
            None => book.unreadable.remove(key),
        };
    }

    pub(super) fn panicked(&self) {
        let mut book = self.book();
        book.panics = book.panics.saturating_add(1);
    }

    /// What fails, by controller: that of the VMs, that of the migrations.
    pub(super) fn degraded(&self, now: Timestamp) -> [Standing; 2] {
        let book = self.book();
        [
            book.vms.standing(CONTROLLER, now),
            book.moves.standing(CONTROLLER_OF_MOVES, now),
        ]
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.shared
            .book
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn shown<D: Serialize>(dumps: BTreeMap<String, Arc<D>>) -> BTreeMap<String, Value> {
    let dumps = dumps.into_iter();
    dumps
        .map(|(key, dump)| {
            let mut dump = serde_json::to_value(&*dump).unwrap_or(Value::Null);
            hide_secrets(&mut dump);
            (key, dump)
        })
        .collect()
}

/// A runner whose guest is about to move says the key of the guest's daemon, for the other runner
/// alone.
fn hide_secrets(shown: &mut Value) {
    match shown {
        Value::Object(members) => {
            members.remove(SECRET_OF_SHAPE);
            members.values_mut().for_each(hide_secrets);
        }
        Value::Array(values) => values.iter_mut().for_each(hide_secrets),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_a_guest_that_moves_is_not_shown() {
        let runner = json!({"outgoing": {"shape": {"guestd_key": "a5a5", "mac": "52:54"}}});
        let dumps = BTreeMap::from([("vm".to_owned(), Arc::new(json!({"runners": [runner]})))]);
        let shown = serde_json::to_string(&shown(dumps)).expect("JSON");
        assert!(shown.contains("52:54"), "{shown}");
        assert!(!shown.contains("a5a5"), "{shown}");
    }
}
