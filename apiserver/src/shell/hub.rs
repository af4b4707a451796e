//! What has been committed, for readers; and every change, for watchers.
//!
//! One lock guards both, so that a watch starts exactly where its list ended. It is never held
//! across I/O.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, RwLock};

use tokio::sync::mpsc;

use crate::core::view::{Change, View};

/// Changes kept per kind, so that a client that lost its connection can go on where it was.
const HISTORY_EVENTS: usize = 4096;
/// Bytes of JSON kept per kind.
const HISTORY_BYTES: usize = 16 << 20;
/// Changes waiting for one watcher. One that falls further behind is closed and must start again
/// from what it has seen.
const WATCH_QUEUE: usize = 1024;
/// Watchers of all kinds together.
const MAX_WATCHERS: usize = 4096;

/// Message to one watcher.
#[derive(Debug, Clone)]
pub enum Notice {
    /// An object was created, changed or deleted.
    Change(Arc<Change>),
    /// Nothing before this revision is still to come.
    Bookmark(u64),
}

/// Why a watch cannot start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchRefused {
    /// Changes since that revision are no longer held; the oldest revision to start from.
    Gone(u64),
    /// The revision has not been reached; the current one.
    Future(u64),
    /// The limit of watchers is reached.
    TooMany,
}

/// A registered watch and its queue.
#[derive(Debug)]
pub struct Watch {
    /// Changes between the asked revision and now.
    pub backlog: Vec<Arc<Change>>,
    /// Changes from now on. Ends when the watcher falls behind.
    pub live: mpsc::Receiver<Notice>,
    /// The revision of the state the live part follows.
    pub revision: u64,
}

#[derive(Debug, Default)]
struct History {
    changes: VecDeque<Arc<Change>>,
    bytes: usize,
    /// Every change after this revision is held.
    floor: u64,
}

#[derive(Debug, Default)]
struct Inner {
    view: View,
    /// Revision at start: nothing before it is held.
    start: u64,
    histories: BTreeMap<String, History>,
    watchers: BTreeMap<String, Vec<mpsc::Sender<Notice>>>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Hub {
    inner: RwLock<Inner>,
}

impl Hub {
    /// A hub that starts with a state.
    #[must_use]
    pub fn new(view: View) -> Self {
        let start = view.revision;
        let inner = Inner {
            view,
            start,
            ..Inner::default()
        };
        Self {
            inner: RwLock::new(inner),
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Inner> {
        self.inner
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Inner> {
        self.inner
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Reads the committed state. `read` must be short: writers wait for it.
    pub fn with<T>(&self, read: impl FnOnce(&View) -> T) -> T {
        read(&self.read().view)
    }

    /// Takes over committed changes and tells the watchers.
    pub fn publish(&self, changes: Vec<Change>) {
        let mut inner = self.write();
        let Inner {
            view,
            start,
            histories,
            watchers,
        } = &mut *inner;
        for change in changes {
            view.replay(&change);
            let change = Arc::new(change);
            if let Some(list) = watchers.get_mut(&change.kind) {
                // A full queue means a watcher that does not read: it is dropped, the others are
                // not held up.
                list.retain(|watcher| {
                    watcher
                        .try_send(Notice::Change(Arc::clone(&change)))
                        .is_ok()
                });
            }
            let fresh = || History {
                floor: *start,
                ..History::default()
            };
            histories
                .entry(change.kind.clone())
                .or_insert_with(fresh)
                .push(change);
        }
    }

    /// Tells every watcher which revision it has seen.
    pub fn bookmark(&self) {
        let mut inner = self.write();
        let revision = inner.view.revision;
        for list in inner.watchers.values_mut() {
            list.retain(|watcher| watcher.try_send(Notice::Bookmark(revision)).is_ok());
        }
        inner.watchers.retain(|_, list| !list.is_empty());
    }

    /// Starts a watch of one kind after `since` (`None` = from the current state, which `start`
    /// reads under the same lock).
    ///
    /// # Errors
    /// See [`WatchRefused`].
    pub fn watch<T>(
        &self,
        kind: &str,
        since: Option<u64>,
        start: impl FnOnce(&View) -> T,
    ) -> Result<(Watch, T), WatchRefused> {
        let mut inner = self.write();
        if inner.watchers.values().map(Vec::len).sum::<usize>() >= MAX_WATCHERS {
            return Err(WatchRefused::TooMany);
        }
        let revision = inner.view.revision;
        let since = since.unwrap_or(revision);
        if since > revision {
            return Err(WatchRefused::Future(revision));
        }
        let floor = inner
            .histories
            .get(kind)
            .map_or(inner.start, |history| history.floor);
        if since < floor {
            return Err(WatchRefused::Gone(floor));
        }
        let history = inner.histories.get(kind).map(|history| &history.changes);
        let newer = |change: &&Arc<Change>| change.after.revision > since;
        let backlog = history
            .into_iter()
            .flatten()
            .filter(newer)
            .cloned()
            .collect();
        let started = start(&inner.view);
        let (sender, live) = mpsc::channel(WATCH_QUEUE);
        inner
            .watchers
            .entry(kind.to_owned())
            .or_default()
            .push(sender);
        Ok((
            Watch {
                backlog,
                live,
                revision,
            },
            started,
        ))
    }

    /// Number of watches that run now.
    #[must_use]
    pub fn watchers(&self) -> usize {
        self.read()
            .watchers
            .values()
            .flatten()
            .filter(|watcher| !watcher.is_closed())
            .count()
    }
}

impl History {
    fn push(&mut self, change: Arc<Change>) {
        self.bytes += change.after.json.len();
        self.changes.push_back(change);
        while self.changes.len() > HISTORY_EVENTS || self.bytes > HISTORY_BYTES {
            let Some(old) = self.changes.pop_front() else {
                break;
            };
            self.bytes -= old.after.json.len();
            self.floor = old.after.revision;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::core::object::Object;
    use crate::core::registry::Registry;

    const KIND: &str = "configmaps";

    fn hub(revision: u64) -> Hub {
        Hub::new(View::new(Registry::default(), revision))
    }

    fn change(revision: u64, text: &str) -> Change {
        Change {
            kind: KIND.to_owned(),
            place: ("default".to_owned(), "a".to_owned()),
            before: None,
            after: Object::new(
                json!({"metadata": {"name": "a"}, "data": {"k": text}}),
                revision,
            ),
            removed: false,
        }
    }

    fn watch(hub: &Hub, since: u64) -> Result<Watch, WatchRefused> {
        hub.watch(KIND, Some(since), |_| ())
            .map(|(watch, ())| watch)
    }

    fn revisions(changes: &[Arc<Change>]) -> Vec<u64> {
        changes.iter().map(|change| change.after.revision).collect()
    }

    #[test]
    fn a_watch_gets_what_it_missed_and_then_what_comes() {
        let hub = hub(10);
        hub.publish(vec![change(11, "x"), change(12, "y")]);
        let mut running = watch(&hub, 11).expect("held");
        assert_eq!(revisions(&running.backlog), [12]);
        hub.publish(vec![change(13, "z")]);
        assert!(
            matches!(running.live.try_recv(), Ok(Notice::Change(seen)) if seen.after.revision == 13)
        );
        hub.bookmark();
        assert!(matches!(running.live.try_recv(), Ok(Notice::Bookmark(13))));
        assert_eq!(
            watch(&hub, 9).expect_err("before the start"),
            WatchRefused::Gone(10)
        );
        assert_eq!(
            watch(&hub, 14).expect_err("not reached"),
            WatchRefused::Future(13)
        );
        assert_eq!(
            hub.watch("secrets", Some(9), |_| ())
                .expect_err("also for quiet kinds"),
            WatchRefused::Gone(10)
        );
        assert!(hub.watch("secrets", Some(10), |_| ()).is_ok());
    }

    #[test]
    fn history_is_bounded_in_number_and_bytes() {
        let hub_of_many = hub(0);
        let last = HISTORY_EVENTS as u64 + 100;
        hub_of_many.publish((1..=last).map(|revision| change(revision, "x")).collect());
        assert_eq!(
            watch(&hub_of_many, 99).expect_err("dropped"),
            WatchRefused::Gone(100)
        );
        assert_eq!(
            watch(&hub_of_many, 100).expect("held").backlog.len(),
            HISTORY_EVENTS
        );
        let hub_of_big = hub(0);
        let big = "x".repeat(HISTORY_BYTES / 4);
        hub_of_big.publish((1..=6).map(|revision| change(revision, &big)).collect());
        assert_eq!(
            watch(&hub_of_big, 2).expect_err("dropped"),
            WatchRefused::Gone(3)
        );
    }

    #[test]
    fn a_watcher_that_falls_behind_is_closed_after_what_it_has_and_others_are_not() {
        let hub = hub(0);
        let mut slow = watch(&hub, 0).expect("starts");
        let mut quick = watch(&hub, 0).expect("starts");
        for revision in 1..=WATCH_QUEUE as u64 + 5 {
            hub.publish(vec![change(revision, "x")]);
            assert!(
                matches!(quick.live.try_recv(), Ok(Notice::Change(seen)) if seen.after.revision == revision)
            );
        }
        let mut seen = 0;
        while let Ok(Notice::Change(change)) = slow.live.try_recv() {
            seen += 1;
            assert_eq!(change.after.revision, seen, "in order, without a gap");
        }
        assert_eq!(seen, WATCH_QUEUE as u64);
        assert!(matches!(
            slow.live.try_recv(),
            Err(mpsc::error::TryRecvError::Disconnected)
        ));
        assert_eq!(hub.watchers(), 1);
    }
}
