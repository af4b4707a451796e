//! The way into a worker: holds the newest of each thing and nothing older, so it is bounded by
//! what exists, a slow worker never holds up the watches, and what is missed in between does not
//! matter.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use protocol::runner::RunnerState;
use tokio::sync::Notify;

use crate::core::{Event, Moment, migration};

/// One thing that can be told about, the newest wins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Vm,
    Migration(String),
    Pod(String),
    Runner(String),
}

/// What can be told of something.
pub(super) trait News: Sized {
    /// What it is about; `None` is for nobody.
    fn subject(&self) -> Option<Subject>;

    /// What the runner of a pod said, or why it did not answer.
    fn of_runner(pod: String, said: Result<RunnerState, String>) -> Self;
}

impl News for Event {
    fn subject(&self) -> Option<Subject> {
        Some(match self {
            Self::Vm(_) | Self::VmGone { .. } => Subject::Vm,
            Self::Pod(pod) => Subject::Pod(pod.metadata.name.clone()),
            Self::PodUnseen { name, .. } => Subject::Pod(name.clone()),
            // Of one runner at a time.
            Self::Runner { .. } | Self::RunnerSilent { .. } => Subject::Runner(String::new()),
            // The worker hears of its own actions directly.
            Self::Done { .. } => return None,
        })
    }

    fn of_runner(pod: String, said: Result<RunnerState, String>) -> Self {
        match said.map(Box::new) {
            Ok(state) => Self::Runner { pod, state },
            Err(error) => Self::RunnerSilent { pod, error },
        }
    }
}

impl News for migration::Event {
    fn subject(&self) -> Option<Subject> {
        Some(match self {
            Self::Vm(_) | Self::VmGone => Subject::Vm,
            Self::Migration(migration) => Subject::Migration(migration.metadata.name.clone()),
            Self::MigrationGone { name, .. } => Subject::Migration(name.clone()),
            Self::Pod(pod) => Subject::Pod(pod.metadata.name.clone()),
            Self::PodUnseen { name, .. } => Subject::Pod(name.clone()),
            Self::Runner { pod, .. } | Self::RunnerSilent { pod, .. } => {
                Subject::Runner(pod.clone())
            }
            Self::Done { .. } => return None,
        })
    }

    fn of_runner(pod: String, said: Result<RunnerState, String>) -> Self {
        match said.map(Box::new) {
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
    newest: Mutex<BTreeMap<Subject, (Moment, E)>>,
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

impl<E: News> Mailbox<E> {
    /// Puts an event in, over an older one about the same thing.
    pub(super) fn put(&self, received: Moment, event: E) {
        let Some(subject) = event.subject() else {
            return;
        };
        let mut newest = self
            .shared
            .newest
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        newest.insert(subject, (received, event));
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
    async fn the_newest_of_each_thing_is_kept() {
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
