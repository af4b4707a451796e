//! A driver's inbox. It holds the newest update of each object and drops older ones, so the number
//! of objects bounds it. A slow driver never delays the watches. A driver needs no older update,
//! because it plans from the newest state only.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use protocol::runner::RunnerState;
use tokio::sync::Notify;

use crate::core::{Event, Moment, migration};

/// The object of an update. A newer update replaces an older one with the same key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum UpdateKey {
    Vm,
    Migration(String),
    Pod(String),
    Runner(String),
}

/// An event that a mailbox can hold.
pub(super) trait MailboxUpdate: Sized {
    /// Key of the object, or `None` for an event that the mailbox ignores.
    fn key(&self) -> Option<UpdateKey>;

    /// Event for a state of the runner of `pod`, or for the error of reading it.
    fn of_runner(pod: String, result: Result<RunnerState, String>) -> Self;
}

impl MailboxUpdate for Event {
    fn key(&self) -> Option<UpdateKey> {
        Some(match self {
            Self::Vm(_) | Self::VmGone { .. } => UpdateKey::Vm,
            Self::Pod(pod) => UpdateKey::Pod(pod.metadata.name.clone()),
            Self::PodUnseen { name, .. } => UpdateKey::Pod(name.clone()),
            // Of one runner at a time.
            Self::Runner { .. } | Self::RunnerSilent { .. } => UpdateKey::Runner(String::new()),
            // The driver takes the results of its own actions directly.
            Self::Done { .. } => return None,
        })
    }

    fn of_runner(pod: String, result: Result<RunnerState, String>) -> Self {
        match result.map(Box::new) {
            Ok(state) => Self::Runner { pod, state },
            Err(error) => Self::RunnerSilent { pod, error },
        }
    }
}

impl MailboxUpdate for migration::Event {
    fn key(&self) -> Option<UpdateKey> {
        Some(match self {
            Self::Vm(_) | Self::VmGone => UpdateKey::Vm,
            Self::Migration(migration) => UpdateKey::Migration(migration.metadata.name.clone()),
            Self::MigrationGone { name, .. } => UpdateKey::Migration(name.clone()),
            Self::Pod(pod) => UpdateKey::Pod(pod.metadata.name.clone()),
            Self::PodUnseen { name, .. } => UpdateKey::Pod(name.clone()),
            Self::Runner { pod, .. } | Self::RunnerSilent { pod, .. } => {
                UpdateKey::Runner(pod.clone())
            }
            Self::Done { .. } => return None,
        })
    }

    fn of_runner(pod: String, result: Result<RunnerState, String>) -> Self {
        match result.map(Box::new) {
            Ok(state) => Self::Runner { pod, state },
            Err(error) => Self::RunnerSilent { pod, error },
        }
    }
}

/// Coalescing mailbox; clones share it. The lock is held for one insertion or one swap, never
/// across an await.
#[derive(Debug)]
pub(super) struct Mailbox<E> {
    shared: Arc<Shared<E>>,
}

#[derive(Debug)]
struct Shared<E> {
    newest: Mutex<BTreeMap<UpdateKey, (Moment, E)>>,
    changed: Notify,
}

impl<E> Clone for Mailbox<E> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<E> Default for Mailbox<E> {
    fn default() -> Self {
        Self {
            shared: Arc::new(Shared {
                newest: Mutex::new(BTreeMap::new()),
                changed: Notify::new(),
            }),
        }
    }
}

impl<E: MailboxUpdate> Mailbox<E> {
    /// Puts an event in, over an older one about the same thing.
    pub(super) fn put(&self, received: Moment, event: E) {
        let Some(key) = event.key() else {
            return;
        };
        let mut newest = self
            .shared
            .newest
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        newest.insert(key, (received, event));
        drop(newest);
        self.shared.changed.notify_one();
    }

    /// Takes everything: the VM first, then migrations, pods, and runners.
    pub(super) fn take(&self) -> Vec<(Moment, E)> {
        let mut newest = self
            .shared
            .newest
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *newest).into_values().collect()
    }

    /// Waits until something was put in since the last wait. For one waiter.
    pub(super) async fn changed(&self) {
        self.shared.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::object::Pod;

    fn unseen(name: &str) -> Event {
        Event::PodUnseen {
            name: name.into(),
            uid: None,
        }
    }

    #[tokio::test]
    async fn newest_update_of_each_object_is_kept() {
        let mailbox = Mailbox::default();
        let at = Moment::default();
        let mut pod = Pod::default();
        pod.metadata.name = "a".into();
        mailbox.put(
            at,
            Event::RunnerSilent {
                pod: "a".into(),
                error: "x".into(),
            },
        );
        mailbox.put(at, Event::Pod(Box::new(pod)));
        mailbox.put(at, unseen("a"));
        mailbox.put(at, unseen("b"));
        mailbox.put(at, Event::VmGone { uid: "u".into() });
        mailbox.changed().await;
        let events: Vec<Event> = mailbox.take().into_iter().map(|(_, event)| event).collect();
        assert_eq!(
            events,
            [
                Event::VmGone { uid: "u".into() },
                unseen("a"),
                unseen("b"),
                Event::RunnerSilent {
                    pod: "a".into(),
                    error: "x".into()
                }
            ]
        );
        assert!(mailbox.take().is_empty());
    }
}
