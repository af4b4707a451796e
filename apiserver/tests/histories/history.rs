//! What clients saw of a store, and whether one store that changes one step at a time can have
//! shown it.
//!
//! Revisions give the order of all changes, so no search is needed. Each write has a value of its
//! own, and each object that is made has a uid of its own: from its creation to its removal it is
//! one *life* of its name. The rules:
//!
//! 1. A revision is one change of one object, and a value has one revision. A value that a client
//!    saw was written by a call that was not refused. A life begins with a create, and nothing else
//!    in it is one.
//! 2. A life ends once, by a delete. Lives of one name do not overlap.
//! 3. What is seen of a name never goes back: after a call has ended, later calls see its revision
//!    or a later one, and a write has a later one. So no fault loses an answered write or
//!    delete.
//! 4. A conditional call changes the very version it names. It is refused only if the object had
//!    another version.
//! 5. A list shows each name as of the revision of the list.
//! 6. A watch sends every change between its first and its last revision, in their order, once:
//!    `ADDED` of what was absent, `MODIFIED` and `DELETED` of what was there.
//!
//! A call without an answer may have happened. Its change may be seen, or only its consequences:
//! the rules then count how many such calls there are.

use std::collections::BTreeMap;

mod order;
mod rules;
mod timeline;

use timeline::Timelines;

/// Number of an object's name.
pub(crate) type Key = usize;
/// What a write put there; unique.
pub(crate) type Token = u64;
/// Identity of a life.
pub(crate) type Uid = u128;
/// Microseconds since the recording began.
pub(crate) type Instant = u64;

/// A version of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) revision: u64,
    pub(crate) token: Token,
    pub(crate) uid: Uid,
}

/// Operation that a client requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Get,
    Create(Token),
    /// A replace of exactly this revision.
    Replace(Token, u64),
    Patch(Token),
    /// A delete, on condition of a revision or without one.
    Remove(Option<u64>),
}

impl Operation {
    /// The value that it writes.
    pub(crate) fn token(self) -> Option<Token> {
        match self {
            Self::Create(token) | Self::Replace(token, _) | Self::Patch(token) => Some(token),
            Self::Get | Self::Remove(_) => None,
        }
    }

    /// The revision that it names.
    pub(crate) fn condition(self) -> Option<u64> {
        match self {
            Self::Replace(_, revision) | Self::Remove(Some(revision)) => Some(revision),
            _ => None,
        }
    }
}

/// Result of an operation as the client saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The object as it is now.
    Is(Version),
    /// The life that was ended.
    Removed(Uid),
    /// There is no such object.
    Absent,
    /// There is such an object already.
    Exists,
    /// The object has another revision.
    Conflict,
    /// Nothing was changed: the store could take no write.
    Refused,
    /// The connection ended: it may have happened.
    Lost,
}

/// One operation on one object, with its result and its start and end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperationRecord {
    pub(crate) key: Key,
    pub(crate) asked: Operation,
    pub(crate) answer: Outcome,
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
}

/// A list of all objects.
#[derive(Debug, Clone)]
pub(crate) struct List {
    pub(crate) revision: u64,
    pub(crate) objects: BTreeMap<Key, Version>,
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
}

/// What kind of change an event tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Added,
    Modified,
    /// The version is the last one, with the revision of the removal.
    Deleted,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    pub(crate) kind: Kind,
    pub(crate) key: Key,
    pub(crate) version: Version,
}

/// What one watch sent. It shows the changes after its list, up to the last event.
#[derive(Debug, Clone)]
pub(crate) struct Watch {
    pub(crate) list: List,
    pub(crate) events: Vec<Event>,
}

/// All that was seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    pub(crate) calls: Vec<OperationRecord>,
    pub(crate) lists: Vec<List>,
    pub(crate) watches: Vec<Watch>,
}

impl History {
    /// The lists of clients, and those that watches began with.
    fn all_lists(&self) -> impl Iterator<Item = &List> {
        let of_watches = self.watches.iter().map(|watch| &watch.list);
        self.lists.iter().chain(of_watches)
    }
}

/// What breaks a rule, in words.
pub(crate) fn anomalies(history: &History) -> Vec<String> {
    let mut found = Vec::new();
    let timelines = Timelines::of(history, &mut found);
    let mut by_key: BTreeMap<Key, Vec<&OperationRecord>> = BTreeMap::new();
    for call in &history.calls {
        by_key.entry(call.key).or_default().push(call);
    }
    rules::origins(history, &timelines, &mut found);
    for (key, calls) in &by_key {
        let timeline = timelines.of_key(*key);
        rules::lives(*key, calls, timeline, &mut found);
        rules::conditions(calls, timeline, &mut found);
        order::order(*key, calls, history, timeline, &mut found);
    }
    rules::lists(history, &timelines, &mut found);
    rules::watches(history, &timelines, &mut found);
    found
}

#[cfg(test)]
mod tests;
