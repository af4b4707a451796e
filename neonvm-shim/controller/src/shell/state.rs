//! State of the running controller for `/debug/state`, readiness and metrics. The drivers publish
//! it, and a reader never waits for a driver.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use daemon_kit::clock::Clock;
use protocol::migration::SECRET_OF_SHAPE;
use protocol::time::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::controllers::{CONTROLLER, CONTROLLER_OF_MIGRATIONS};
use crate::core::failing::{Degraded, FailureLag, Outcome};
use crate::core::vm::Dump;
use crate::core::{Kind, migration};

/// The VMs were listed.
const VMS: u8 = 1;
/// The pods were listed.
const PODS: u8 = 2;
/// The migrations were listed.
const MIGRATIONS: u8 = 4;

/// A view of a running controller; clones share it. Give one to [`crate::run`] and keep another.
#[derive(Debug, Clone)]
pub struct StateHandle {
    clock: Clock,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    synced: AtomicU8,
    registry: Mutex<Registry>,
}

#[derive(Debug, Default)]
struct Registry {
    vms: Pages<Dump, Kind>,
    migrations: Pages<migration::Dump, migration::Kind>,
    unreadable: BTreeMap<String, String>,
    panics: u64,
    /// Number of the newest writer.
    writers: u64,
}

/// Published pages of all drivers of one kind, by the `namespace/name` of the VM.
#[derive(Debug)]
struct Pages<D, K>(BTreeMap<String, Page<D, K>>);

/// Page that one task publishes.
#[derive(Debug)]
struct Page<D, K> {
    /// Number of the task that may write the page.
    writer: u64,
    dump: Option<Arc<D>>,
    lag: FailureLag<K>,
}

/// A task's slot in the registry. The lock of a write also covers the check that the task still
/// owns the page. So a late task can neither restore a removed page nor overwrite that of its
/// successor.
pub(super) struct StateSlot<D, K> {
    state: StateHandle,
    key: String,
    writer: u64,
    pages: fn(&mut Registry) -> &mut Pages<D, K>,
}

/// Slot of a VM's driver.
pub(super) type VmSlot = StateSlot<Dump, Kind>;
/// Slot of a migration driver.
pub(super) type MigrationSlot = StateSlot<migration::Dump, migration::Kind>;

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
    /// Gives the page of `key` to this writer. The old content stays until the first write, because
    /// the VM is the same.
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

impl<D, K: Ord + Copy> StateSlot<D, K> {
    /// Replaces the published dump.
    pub(super) fn publish(&self, dump: D) {
        self.write(|page| page.dump = Some(Arc::new(dump)));
    }

    /// Records the outcome of an action on `object`.
    pub(super) fn record(&self, object: &str, kind: K, outcome: Outcome, now: Timestamp) {
        self.write(|page| page.lag.record(object, kind, outcome, now));
    }

    fn write(&self, change: impl FnOnce(&mut Page<D, K>)) {
        let mut registry = self.state.registry();
        let page = (self.pages)(&mut registry).0.get_mut(&self.key);
        if let Some(page) = page.filter(|page| page.writer == self.writer) {
            change(page);
        }
    }
}

impl StateHandle {
    /// Creates an empty state.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            shared: Arc::new(Shared {
                synced: AtomicU8::new(0),
                registry: Mutex::default(),
            }),
        }
    }

    /// Whether VMs, pods and migrations have been listed once.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.shared.synced.load(Ordering::Acquire) == VMS | PODS | MIGRATIONS
    }

    /// Whether the VM `namespace/name` has a driver or is unreadable.
    pub(super) fn knows(&self, key: &str) -> bool {
        let registry = self.registry();
        registry.vms.0.contains_key(key) || registry.unreadable.contains_key(key)
    }

    /// One entry per controller: `[{"controllerName","failing","conflicting", "vms", "unreadable",
    /// "workerPanics"}, {"controllerName","failing","conflicting", "migrations"}]`: the shape of
    /// docs/compatibility/neonvm.md §2.12, and every VM and its migrations as their cores see them.
    #[must_use]
    pub fn dump(&self) -> Value {
        let [of_vms, of_migrations] = self.degraded(self.clock.now());
        let (vms, migrations, unreadable, panics) = {
            let registry = self.registry();
            let unreadable = registry.unreadable.clone();
            (
                registry.vms.dumps(),
                registry.migrations.dumps(),
                unreadable,
                registry.panics,
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
            "controllerName": of_migrations.controller,
            "failing": all(of_migrations.failing),
            "conflicting": all(of_migrations.conflicting),
            "migrations": shown(migrations),
        }])
    }

    pub(super) fn listed_vms(&self) {
        self.shared.synced.fetch_or(VMS, Ordering::AcqRel);
    }

    pub(super) fn listed_pods(&self) {
        self.shared.synced.fetch_or(PODS, Ordering::AcqRel);
    }

    pub(super) fn listed_migrations(&self) {
        self.shared.synced.fetch_or(MIGRATIONS, Ordering::AcqRel);
    }

    /// Slot of a new driver. The driver that had the slot before can write no more.
    pub(super) fn vm_slot(&self, key: &str) -> VmSlot {
        self.give(key, |registry| &mut registry.vms)
    }

    /// Slot of a new migration driver. The driver that had the slot before can write no more.
    pub(super) fn migration_slot(&self, key: &str) -> MigrationSlot {
        self.give(key, |registry| &mut registry.migrations)
    }

    fn give<D, K: Ord + Copy>(
        &self,
        key: &str,
        pages: fn(&mut Registry) -> &mut Pages<D, K>,
    ) -> StateSlot<D, K> {
        let mut registry = self.registry();
        registry.writers = registry.writers.saturating_add(1);
        let writer = registry.writers;
        pages(&mut registry).give(key, writer);
        StateSlot {
            state: self.clone(),
            key: key.to_owned(),
            writer,
            pages,
        }
    }

    /// Removes the migration driver of the VM `key`.
    pub(super) fn forget_migrations(&self, key: &str) {
        self.registry().migrations.0.remove(key);
    }

    /// Removes a deleted migration of the VM `key`.
    pub(super) fn forget_migration(&self, key: &str, migration: &str) {
        if let Some(page) = self.registry().migrations.0.get_mut(key) {
            page.lag.forget(migration);
        }
    }

    /// Removes a deleted VM.
    pub(super) fn forget(&self, key: &str) {
        let mut registry = self.registry();
        registry.vms.0.remove(key);
        registry.unreadable.remove(key);
    }

    pub(super) fn unreadable(&self, key: &str, why: Option<String>) {
        let mut registry = self.registry();
        match why {
            Some(why) => registry.unreadable.insert(key.to_owned(), why),
            None => registry.unreadable.remove(key),
        };
    }

    pub(super) fn panicked(&self) {
        let mut registry = self.registry();
        registry.panics = registry.panics.saturating_add(1);
    }

    /// Degraded objects by controller: VMs first, then migrations.
    pub(super) fn degraded(&self, now: Timestamp) -> [Standing; 2] {
        let registry = self.registry();
        [
            registry.vms.standing(CONTROLLER, now),
            registry.migrations.standing(CONTROLLER_OF_MIGRATIONS, now),
        ]
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.shared
            .registry
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

/// Removes the key of the guest's daemon from a runner's state. Only the other runner of a
/// migration needs that key.
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
    fn key_of_moving_guest_is_not_dumped() {
        let runner = json!({"outgoing": {"shape": {"guestd_key": "a5a5", "mac": "52:54"}}});
        let dumps = BTreeMap::from([("vm".to_owned(), Arc::new(json!({"runners": [runner]})))]);
        let shown = serde_json::to_string(&shown(dumps)).expect("JSON");
        assert!(shown.contains("52:54"), "{shown}");
        assert!(!shown.contains("a5a5"), "{shown}");
    }
}
