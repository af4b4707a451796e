//! State of the running components. Status, readiness and dumps are read from here.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};

use super::status::{PartPhase, PartStatus};

/// Whether a component is ready. An error says what it waits for.
pub(crate) type ReadyFn = Box<dyn Fn() -> Result<(), String> + Send + Sync>;
/// Returns the state of a component for a dump.
pub(crate) type DumpFn = Box<dyn Fn() -> Value + Send + Sync>;

/// The components in the order of their registration. Clones share the list.
#[derive(Clone, Default)]
pub(crate) struct PartRegistry(Arc<Mutex<Vec<Entry>>>);

struct Entry {
    name: &'static str,
    address: Option<String>,
    ready: ReadyFn,
    dump: Option<DumpFn>,
    ended: Option<String>,
}

impl PartRegistry {
    /// Adds a component.
    pub(crate) fn register(
        &self,
        name: &'static str,
        address: Option<String>,
        ready: ReadyFn,
        dump: Option<DumpFn>,
    ) {
        self.locked().push(Entry {
            name,
            address,
            ready,
            dump,
            ended: None,
        });
    }

    /// Records that a component has ended, and how.
    pub(crate) fn set_ended(&self, name: &str, how: &str) {
        for entry in self.locked().iter_mut().filter(|entry| entry.name == name) {
            entry.ended = Some(how.to_owned());
        }
    }

    pub(crate) fn statuses(&self) -> Vec<PartStatus> {
        self.locked().iter().map(Entry::status).collect()
    }

    /// Whether a component is ready.
    pub(crate) fn is_ready(&self, name: &str) -> bool {
        self.statuses()
            .iter()
            .any(|part| part.name == name && part.phase == PartPhase::Ready)
    }

    /// The dumps of all components that have one, by name.
    pub(crate) fn dump(&self) -> Value {
        let entries = self.locked();
        let dumps = entries.iter().filter_map(|entry| {
            entry
                .dump
                .as_ref()
                .map(|dump| (entry.name.to_owned(), dump()))
        });
        Value::Object(dumps.collect::<Map<String, Value>>())
    }

    /// The dump of one component. `null` if it has none.
    pub(crate) fn dump_of(&self, name: &str) -> Value {
        let entries = self.locked();
        let entry = entries.iter().find(|entry| entry.name == name);
        entry
            .and_then(|entry| entry.dump.as_ref())
            .map_or(Value::Null, |dump| dump())
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn status(&self) -> PartStatus {
        let (phase, note) = match (&self.ended, (self.ready)()) {
            (Some(how), _) => (PartPhase::Ended, how.clone()),
            (None, Ok(())) => (PartPhase::Ready, String::new()),
            (None, Err(why)) => (PartPhase::Starting, why),
        };
        PartStatus {
            name: self.name.to_owned(),
            phase,
            address: self.address.clone(),
            note,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Requirement: N01
    #[test]
    fn every_part_reports_ready_on_its_own() {
        let parts = PartRegistry::default();
        let ready = Arc::new(AtomicBool::new(false));
        let shown = Arc::clone(&ready);
        let ask = move || {
            if shown.load(Ordering::Relaxed) {
                Ok(())
            } else {
                Err("lists".into())
            }
        };
        parts.register(
            "scheduler",
            Some("127.7.0.2:10299".into()),
            Box::new(ask),
            None,
        );
        parts.register(
            "agent",
            None,
            Box::new(|| Ok(())),
            Some(Box::new(|| Value::from(1))),
        );
        assert!(!parts.is_ready("scheduler") && parts.is_ready("agent"));
        assert_eq!(parts.statuses()[0].note, "lists");
        ready.store(true, Ordering::Relaxed);
        assert!(parts.is_ready("scheduler"));
        parts.set_ended("agent", "it panicked");
        assert_eq!(parts.statuses()[1].phase, PartPhase::Ended);
        assert_eq!(parts.dump(), serde_json::json!({"agent": 1}));
        assert_eq!(parts.dump_of("agent"), 1);
        assert_eq!(parts.dump_of("scheduler"), Value::Null);
    }
}
