//! What can be asked about the controller while it runs. Each answer is read from what the workers published; none waits
//! for a worker.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::time::{Span, Timestamp};
use serde_json::{Value, json};
use telemetry::clock::Clock;

use super::CONTROLLER;
use crate::core::failing::{Degraded, FailureLag, Outcome};
use crate::core::migration;
use crate::core::vm::Dump;

/// An object counts as failing after this long with failures only.
const FAILURE_PENDING: Span = Span::from_secs(60);
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

#[derive(Debug)]
struct Book {
    vms: BTreeMap<String, Arc<Dump>>,
    moves: BTreeMap<String, Arc<migration::Dump>>,
    unreadable: BTreeMap<String, String>,
    lag: FailureLag,
    panics: u64,
}

impl StateHandle {
    /// A view of nothing yet.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        let book = Book {
            vms: BTreeMap::new(),
            moves: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            lag: FailureLag::new(FAILURE_PENDING),
            panics: 0,
        };
        Self {
            clock,
            shared: Arc::new(Shared {
                synced: AtomicU8::new(0),
                book: Mutex::new(book),
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
        book.vms.contains_key(key) || book.unreadable.contains_key(key)
    }

    /// `[{"controllerName","failing","conflicting", "vms", "migrations", "unreadable", "workerPanics"}]`: the shape of spec/neonvm.md
    /// §2.12, and every VM as its core sees it.
    #[must_use]
    pub fn dump(&self) -> Value {
        let now = self.clock.now();
        let (vms, moves, unreadable, panics, lists) = {
            let book = self.book();
            let lists = (book.lag.failing(now), book.lag.conflicting(now));
            (
                book.vms.clone(),
                book.moves.clone(),
                book.unreadable.clone(),
                book.panics,
                lists,
            )
        };
        let all = |degraded: Degraded| [degraded.active, degraded.idle].concat();
        let vms: BTreeMap<String, Value> = vms
            .into_iter()
            .map(|(key, dump)| (key, serde_json::to_value(&*dump).unwrap_or(Value::Null)))
            .collect();
        let moves: BTreeMap<String, Value> = moves
            .into_iter()
            .map(|(key, dump)| (key, serde_json::to_value(&*dump).unwrap_or(Value::Null)))
            .collect();
        json!([{
            "controllerName": CONTROLLER,
            "failing": all(lists.0),
            "conflicting": all(lists.1),
            "vms": vms,
            "migrations": moves,
            "unreadable": unreadable,
            "workerPanics": panics,
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

    pub(super) fn publish(&self, key: &str, dump: Dump) {
        self.book().vms.insert(key.to_owned(), Arc::new(dump));
    }

    pub(super) fn publish_moves(&self, key: &str, dump: migration::Dump) {
        self.book().moves.insert(key.to_owned(), Arc::new(dump));
    }

    pub(super) fn forget_moves(&self, key: &str) {
        let mut book = self.book();
        book.moves.remove(key);
        book.lag.forget(&format!("{key} (migrations)"));
    }

    pub(super) fn forget(&self, key: &str) {
        let mut book = self.book();
        book.vms.remove(key);
        book.unreadable.remove(key);
        book.lag.forget(key);
    }

    pub(super) fn unreadable(&self, key: &str, why: Option<String>) {
        let mut book = self.book();
        match why {
            Some(why) => book.unreadable.insert(key.to_owned(), why),
            None => book.unreadable.remove(key),
        };
    }

    pub(super) fn ended(&self, key: &str, outcome: Outcome, now: Timestamp) {
        self.book().lag.note(key, outcome, now);
    }

    pub(super) fn panicked(&self) {
        let mut book = self.book();
        book.panics = book.panics.saturating_add(1);
    }

    pub(super) fn degraded(&self) -> (Degraded, Degraded) {
        let now = self.clock.now();
        let book = self.book();
        (book.lag.failing(now), book.lag.conflicting(now))
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.shared
            .book
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
