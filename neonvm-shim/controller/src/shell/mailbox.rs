//! The way into a VM's worker: holds the newest of each thing and nothing older, so it is bounded by what exists, a slow
//! worker never holds up the watches, and what is missed in between does not matter.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::core::{Event, Moment};

/// One thing that can be told about, the newest wins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Vm,
    Pod(String),
    Runner,
}

/// Coalescing mailbox; clones share it. The lock is held for one insertion or one swap, never across an await.
#[derive(Debug, Clone, Default)]
pub(super) struct Mailbox {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    newest: Mutex<BTreeMap<Subject, (Moment, Event)>>,
    changed: Notify,
}

impl Mailbox {
    /// Puts an event in, over an older one about the same thing.
    pub(super) fn put(&self, received: Moment, event: Event) {
        let subject = match &event {
            Event::Vm(_) | Event::VmGone { .. } => Subject::Vm,
            Event::Pod(pod) => Subject::Pod(pod.metadata.name.clone()),
            Event::PodGone { name, .. } => Subject::Pod(name.clone()),
            Event::Runner { .. } | Event::RunnerSilent { .. } => Subject::Runner,
            // The worker hears of its own actions directly.
            Event::Done { .. } => return,
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

    /// Takes everything: the VM first, then pods, then the runner.
    pub(super) fn take(&self) -> Vec<(Moment, Event)> {
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

    fn gone(name: &str) -> Event {
        Event::PodGone {
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
        mailbox.put(at, gone("a"));
        mailbox.put(at, gone("b"));
        mailbox.put(at, Event::VmGone { uid: "u".into() });
        mailbox.changed().await;
        let events: Vec<Event> = mailbox.take().into_iter().map(|(_, event)| event).collect();
        assert_eq!(
            events,
            [
                Event::VmGone { uid: "u".into() },
                gone("a"),
                gone("b"),
                Event::RunnerSilent {
                    pod: "a".into(),
                    error: "x".into()
                }
            ]
        );
        assert!(mailbox.take().is_empty());
    }
}
