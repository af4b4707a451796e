//! The lives of each name, as far as anybody saw them.

use std::collections::{BTreeMap, BTreeSet};

use super::{History, Key, Kind, Operation, OperationRecord, Outcome, Token, Uid, Version};

/// A point in the order of a name's states: `2 * revision` is the state that this change made, and
/// one more is the state after a removal whose revision nobody saw.
pub(super) type Position = u64;

/// How a life ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// No call can have ended it.
    None,
    /// A delete without an answer may have.
    Perhaps,
    /// At a revision that nobody saw.
    Somewhere,
    /// At a revision.
    At(u64),
}

/// One object, from its creation to its removal.
#[derive(Debug, Clone)]
pub(super) struct Incarnation {
    pub(super) uid: Uid,
    /// By revision, the one of the creation among them.
    pub(super) versions: BTreeMap<u64, Token>,
    pub(super) end: End,
}

impl Incarnation {
    pub(super) fn first(&self) -> u64 {
        *self.versions.keys().next().expect("a version")
    }

    pub(super) fn last(&self) -> u64 {
        *self.versions.keys().next_back().expect("a version")
    }

    /// Where the name is free again, at the earliest.
    pub(super) fn free_from(&self) -> Option<Position> {
        match self.end {
            End::None => None,
            End::Perhaps | End::Somewhere => Some(2 * self.last() + 1),
            End::At(revision) => Some(2 * revision),
        }
    }
}

/// The lives of one name in their order, and the calls that nobody knows the outcome of.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    pub(super) lives: Vec<Incarnation>,
    by_uid: BTreeMap<Uid, usize>,
    /// Deletes without an answer.
    pub(super) lost_removes: usize,
    /// Creates without an answer whose value nobody saw.
    pub(super) unseen_creates: usize,
    /// Lives whose end was answered.
    pub(super) removed: BTreeSet<Uid>,
}

impl Timeline {
    pub(super) fn life(&self, uid: Uid) -> Option<&Incarnation> {
        self.by_uid.get(&uid).map(|index| &self.lives[*index])
    }

    /// The life that was the last one to have begun at a revision.
    pub(super) fn life_at(&self, revision: u64) -> Option<&Incarnation> {
        let after = self.lives.partition_point(|life| life.first() <= revision);
        self.lives[..after].last()
    }

    /// The version before a revision, of whatever life.
    pub(super) fn before(&self, revision: u64) -> Option<u64> {
        let life = self.life_at(revision.checked_sub(1)?)?;
        let earlier = life.versions.range(..revision).next_back();
        earlier.map(|(revision, _)| *revision)
    }

    /// Number of lives that have begun at a position.
    fn begun(&self, position: Position) -> usize {
        self.lives
            .partition_point(|life| 2 * life.first() <= position)
    }

    /// The first position from `from` on at which the name is free.
    pub(super) fn absent_from(&self, from: Position) -> Option<Position> {
        (self.begun(from)..=self.lives.len()).find_map(|next| {
            let start = match next.checked_sub(1) {
                None => 0,
                Some(earlier) => self.lives[earlier].free_from()?,
            };
            let end = self.lives.get(next).map(|life| 2 * life.first());
            let position = start.max(from);
            (position < end.unwrap_or(Position::MAX)).then_some(position)
        })
    }

    /// The first position from `from` on at which the name is taken.
    pub(super) fn present_from(&self, from: Position) -> Option<Position> {
        let lives = &self.lives[self.begun(from).saturating_sub(1)..];
        lives.iter().find_map(|life| {
            let end = match life.end {
                End::None | End::Perhaps => Position::MAX,
                End::Somewhere | End::At(_) => life.free_from().unwrap_or(Position::MAX),
            };
            let position = from.max(2 * life.first());
            (position < end).then_some(position)
        })
    }

    fn count(&mut self, call: &OperationRecord, seen: &BTreeSet<Token>) {
        match (call.asked, call.answer) {
            (Operation::Remove(_), Outcome::Lost) => self.lost_removes += 1,
            (Operation::Create(token), Outcome::Lost) if !seen.contains(&token) => {
                self.unseen_creates += 1;
            }
            (_, Outcome::Removed(uid)) => {
                self.removed.insert(uid);
            }
            _ => {}
        }
    }

    /// Says how lives ended, once all versions, removals and calls are known.
    fn set_ends(&mut self, removals: &BTreeMap<Uid, u64>) {
        self.lives.sort_by_key(Incarnation::first);
        let uids = self.lives.iter().map(|life| life.uid);
        self.by_uid = uids.zip(0..).collect();
        let count = self.lives.len();
        for (index, life) in self.lives.iter_mut().enumerate() {
            let is_over = index + 1 < count || self.removed.contains(&life.uid);
            life.end = match removals.get(&life.uid) {
                Some(revision) => End::At(*revision),
                None if is_over => End::Somewhere,
                None if self.lost_removes > 0 => End::Perhaps,
                None => End::None,
            };
        }
    }
}

/// What a revision did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Wrote(Token),
    Removed,
}

/// The lives of all names.
#[derive(Debug, Default)]
pub(super) struct Timelines {
    keys: BTreeMap<Key, Timeline>,
    /// Every revision that anybody saw.
    pub(super) changes: BTreeMap<u64, Key>,
}

impl Timelines {
    /// Rule 1: the versions, and those that do not agree.
    pub(super) fn of(history: &History, found: &mut Vec<String>) -> Self {
        let mut seen = Seen::default();
        for call in &history.calls {
            if let Outcome::Is(version) = call.answer {
                seen.wrote(call.key, version);
            }
        }
        for list in history.all_lists() {
            for (key, version) in &list.objects {
                seen.wrote(*key, *version);
            }
        }
        for event in history.watches.iter().flat_map(|watch| &watch.events) {
            if event.kind == Kind::Deleted {
                seen.removed(event.key, event.version);
            } else {
                seen.wrote(event.key, event.version);
            }
        }
        found.append(&mut seen.found);
        seen.timelines(history)
    }

    pub(super) fn of_key(&self, key: Key) -> &Timeline {
        &self.keys[&key]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Timeline)> {
        self.keys.iter().map(|(key, timeline)| (*key, timeline))
    }
}

/// Collects what was seen.
#[derive(Default)]
struct Seen {
    lives: BTreeMap<(Key, Uid), BTreeMap<u64, Token>>,
    removals: BTreeMap<Uid, u64>,
    changes: BTreeMap<u64, (Key, Uid, Change)>,
    found: Vec<String>,
}

impl Seen {
    fn wrote(&mut self, key: Key, version: Version) {
        self.change(key, version, Change::Wrote(version.token));
        let life = self.lives.entry((key, version.uid)).or_default();
        life.insert(version.revision, version.token);
    }

    fn removed(&mut self, key: Key, version: Version) {
        self.change(key, version, Change::Removed);
        let at = *self.removals.entry(version.uid).or_insert(version.revision);
        if at != version.revision {
            self.found
                .push(format!("object {key} is removed twice: {version:?}, {at}"));
        }
    }

    fn change(&mut self, key: Key, version: Version, change: Change) {
        let change = (key, version.uid, change);
        let first = *self.changes.entry(version.revision).or_insert(change);
        if first != change {
            self.found.push(format!(
                "revision {} is {first:?} and {change:?}",
                version.revision
            ));
        }
    }

    fn timelines(self, history: &History) -> Timelines {
        let tokens = self.lives.values().flat_map(BTreeMap::values);
        let tokens: BTreeSet<Token> = tokens.copied().collect();
        let mut keys: BTreeMap<Key, Timeline> = BTreeMap::new();
        for call in &history.calls {
            keys.entry(call.key).or_default().count(call, &tokens);
        }
        for ((key, uid), versions) in self.lives {
            let end = End::None;
            let life = Incarnation { uid, versions, end };
            keys.entry(key).or_default().lives.push(life);
        }
        for timeline in keys.values_mut() {
            timeline.set_ends(&self.removals);
        }
        let changes = self.changes.into_iter();
        Timelines {
            keys,
            changes: changes
                .map(|(revision, (key, ..))| (revision, key))
                .collect(),
        }
    }
}
