//! The readiness and the state dump of a running scheduler.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::Notify;

use crate::core::event::StateDump;

/// The readiness and the state dump of a running scheduler, for people. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct StateHandle {
    published: Arc<Mutex<Published>>,
    dump_read: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Published {
    dump: Arc<Value>,
    /// Whether the dump was read since its last update.
    was_read: bool,
    started: bool,
    /// Why this replica does not lead.
    standby: Option<&'static str>,
    /// The kinds that are not listed.
    waiting_for: Vec<&'static str>,
}

impl StateHandle {
    /// The last state dump, `null` before the first. It does not wait for the core. The dump of a
    /// large state may be old, and the next read returns a newer one.
    #[must_use]
    pub fn dump(&self) -> Value {
        let mut published = self.lock();
        published.was_read = true;
        let dump = Arc::clone(&published.dump);
        drop(published);
        self.dump_read.notify_one();
        (*dump).clone()
    }

    /// Whether the dump was read since its last update.
    pub(super) fn is_wanted(&self) -> bool {
        self.lock().was_read
    }

    /// Waits for a read of the dump.
    pub(super) async fn was_read(&self) {
        self.dump_read.notified().await;
    }

    /// Succeeds if this replica leads and has all lists.
    ///
    /// # Errors
    /// Why it is not ready, as text for `/readyz`.
    pub fn ready(&self) -> Result<(), String> {
        let published = self.lock();
        match (
            published.started,
            published.standby,
            published.waiting_for.is_empty(),
        ) {
            (false, ..) => Err("not started".into()),
            (true, Some(why), _) => Err(why.into()),
            (true, None, true) => Ok(()),
            (true, None, false) => Err(format!(
                "not listed yet: {}",
                published.waiting_for.join(", ")
            )),
        }
    }

    pub(super) fn set_readiness(
        &self,
        standby: Option<&'static str>,
        waiting_for: Vec<&'static str>,
    ) {
        let mut published = self.lock();
        published.started = true;
        published.standby = standby;
        published.waiting_for = waiting_for;
    }

    pub(super) fn publish(&self, dump: &StateDump) {
        let dump = serde_json::to_value(dump).unwrap_or_else(|error| error.to_string().into());
        let mut published = self.lock();
        published.dump = Arc::new(dump);
        published.was_read = false;
    }

    fn lock(&self) -> MutexGuard<'_, Published> {
        // The lock is never held across a partial update, so a panic elsewhere is harmless.
        self.published
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
