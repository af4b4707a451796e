//! Rules 1, 2, 4, 5 and 6.

use std::collections::{BTreeMap, BTreeSet};

use super::timeline::{End, Timeline, Timelines};
use super::{History, Key, Kind, Operation, OperationRecord, Outcome, Token, Version, Watch};

/// Rule 1: where values come from.
pub(super) fn origins(history: &History, timelines: &Timelines, found: &mut Vec<String>) {
    let written = |call: &'_ OperationRecord| Some((call.asked.token()?, *call));
    let writes: BTreeMap<Token, OperationRecord> =
        history.calls.iter().filter_map(written).collect();
    let mut revisions: BTreeMap<Token, u64> = BTreeMap::new();
    for (key, timeline) in timelines.iter() {
        for life in &timeline.lives {
            for (revision, token) in &life.versions {
                let Some(call) = writes.get(token).filter(|call| call.key == key) else {
                    found.push(format!("object {key}: nobody wrote revision {revision}"));
                    continue;
                };
                let is_written = match call.answer {
                    Outcome::Is(version) => version.revision == *revision,
                    answer => answer == Outcome::Lost,
                };
                if !is_written {
                    found.push(format!("revision {revision} has the value of {call:?}"));
                }
                if matches!(call.asked, Operation::Create(_)) && *revision != life.first() {
                    found.push(format!("{call:?} made what was there"));
                }
                if revisions.insert(*token, *revision).is_some() {
                    found.push(format!("value {token} of object {key} has two revisions"));
                }
            }
        }
    }
    for event in history.watches.iter().flat_map(|watch| &watch.events) {
        let is_deleted = event.kind == Kind::Deleted;
        let call = writes.get(&event.version.token);
        if is_deleted && call.is_none_or(|call| call.key != event.key) {
            found.push(format!("{event:?} has a value that nobody wrote"));
        }
    }
}

/// Rules 1 and 2: how the lives of a name begin and end.
pub(super) fn lives(
    key: Key,
    calls: &[&OperationRecord],
    timeline: &Timeline,
    found: &mut Vec<String>,
) {
    for pair in timeline.lives.windows(2) {
        let end = match pair[0].end {
            End::At(revision) => revision,
            _ => pair[0].last(),
        };
        if end >= pair[1].first() {
            found.push(format!("lives of object {key} overlap: {pair:?}"));
        }
    }
    let mut ended = BTreeSet::new();
    let mut unseen = 0;
    for call in calls {
        let Outcome::Removed(uid) = call.answer else {
            continue;
        };
        unseen += usize::from(timeline.life(uid).is_none());
        if !ended.insert(uid) {
            found.push(format!("{call:?} ended what another call had ended"));
        }
    }
    let creates: BTreeSet<Token> = calls
        .iter()
        .filter(|call| matches!(call.asked, Operation::Create(_)))
        .filter_map(|call| call.asked.token())
        .collect();
    let (mut unexplained, mut not_created) = (0, unseen);
    for life in &timeline.lives {
        let is_over = matches!(life.end, End::At(_) | End::Somewhere);
        unexplained += usize::from(is_over && !ended.contains(&life.uid));
        not_created += usize::from(!creates.contains(&life.versions[&life.first()]));
        if let End::At(revision) = life.end
            && revision <= life.last()
        {
            found.push(format!("object {key} changed after its end: {life:?}"));
        }
    }
    if unexplained > timeline.lost_removes {
        found.push(format!(
            "object {key}: {unexplained} lives ended, and {} deletes can have done it",
            timeline.lost_removes
        ));
    }
    if not_created > timeline.unseen_creates {
        found.push(format!(
            "object {key}: {not_created} lives began, and {} creates can have done it",
            timeline.unseen_creates
        ));
    }
}

/// Rule 4: a conditional call changes the version it names.
pub(super) fn conditions(calls: &[&OperationRecord], timeline: &Timeline, found: &mut Vec<String>) {
    for call in calls {
        let Some(condition) = call.asked.condition() else {
            continue;
        };
        let is_kept = match call.answer {
            Outcome::Is(version) => {
                let has_it = timeline
                    .life(version.uid)
                    .is_some_and(|life| life.versions.contains_key(&condition));
                has_it && timeline.before(version.revision) == Some(condition)
            }
            Outcome::Removed(uid) => {
                let life = timeline.life(uid);
                life.is_some_and(|life| life.last() == condition)
            }
            // A lost write may have come in between, and nobody may have seen it.
            Outcome::Conflict => {
                let last = timeline.lives.last();
                let is_other = last.is_some_and(|life| life.last() > condition);
                let is_lost =
                    |it: &&OperationRecord| it.answer == Outcome::Lost && it.began < call.ended;
                is_other || calls.iter().any(is_lost)
            }
            _ => true,
        };
        if !is_kept {
            found.push(format!("{call:?} does not keep to its condition"));
        }
    }
}

/// Rule 5: a list shows one revision.
pub(super) fn lists(history: &History, timelines: &Timelines, found: &mut Vec<String>) {
    for list in history.all_lists() {
        for (key, timeline) in timelines.iter() {
            let shown = list.objects.get(&key).copied();
            let due = due(timeline, list.revision);
            let is_due = match due {
                Due::Absent => shown.is_none(),
                Due::Is(version) => shown == Some(version),
                Due::Either(version) => shown.is_none_or(|shown| shown == version),
            };
            if !is_due {
                found.push(format!(
                    "the list at revision {} shows object {key} as {shown:?}, not {due:?}",
                    list.revision
                ));
            }
        }
    }
}

/// What a list has to show of a name.
#[derive(Debug)]
enum Due {
    Absent,
    Is(Version),
    /// This version, or nothing: the revision of the removal is not known.
    Either(Version),
}

fn due(timeline: &Timeline, at: u64) -> Due {
    let Some(life) = timeline.life_at(at) else {
        return Due::Absent;
    };
    let Some((revision, token)) = life.versions.range(..=at).next_back() else {
        return Due::Absent;
    };
    let version = Version {
        revision: *revision,
        token: *token,
        uid: life.uid,
    };
    match life.end {
        End::At(end) if end <= at => Due::Absent,
        End::Somewhere | End::Perhaps if at >= life.last() => Due::Either(version),
        _ => Due::Is(version),
    }
}

/// Rule 6: a watch is complete, and its kinds of events are right.
pub(super) fn watches(history: &History, timelines: &Timelines, found: &mut Vec<String>) {
    for watch in &history.watches {
        let from = watch.list.revision;
        let revisions = watch.events.iter().map(|event| event.version.revision);
        let sent: Vec<u64> = revisions.collect();
        let Some(last) = sent.last() else {
            continue;
        };
        if !sent.is_sorted_by(|a, b| a < b) || sent[0] <= from {
            found.push(format!("a watch from {from} sends out of order"));
            continue;
        }
        let due = timelines.changes.range(from + 1..=*last);
        let missing: Vec<u64> = due
            .map(|(revision, _)| *revision)
            .filter(|revision| sent.binary_search(revision).is_err())
            .collect();
        if !missing.is_empty() {
            found.push(format!("a watch from {from} does not send {missing:?}"));
        }
        kinds(watch, found);
    }
}

/// `ADDED` is of what was absent; `MODIFIED` and `DELETED` are of the object that was there, and
/// `DELETED` shows its last version.
fn kinds(watch: &Watch, found: &mut Vec<String>) {
    let mut present = watch.list.objects.clone();
    for event in &watch.events {
        let before = present.get(&event.key);
        let is_right = match event.kind {
            Kind::Added => before.is_none(),
            Kind::Modified => before.is_some_and(|it| it.uid == event.version.uid),
            Kind::Deleted => before
                .is_some_and(|it| (it.uid, it.token) == (event.version.uid, event.version.token)),
        };
        if !is_right {
            found.push(format!("{event:?} comes when the object was {before:?}"));
        }
        if event.kind == Kind::Deleted {
            present.remove(&event.key);
        } else {
            present.insert(event.key, event.version);
        }
    }
}
