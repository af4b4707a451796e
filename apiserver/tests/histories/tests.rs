//! A sound history is found sound, and each fault that is planted in it is named.

use super::*;

fn version(revision: u64, token: Token, uid: Uid) -> Version {
    Version {
        revision,
        token,
        uid,
    }
}

fn is(revision: u64, token: Token, uid: Uid) -> Outcome {
    Outcome::Is(version(revision, token, uid))
}

fn event(kind: Kind, key: Key, version: Version) -> Event {
    Event { kind, key, version }
}

/// Two objects, made at 1 and 2; object 0 is changed at 3 and 5, object 1 at 4. Object 0 is deleted
/// at 6, made anew at 7, and deleted again at 8, which no watch shows.
fn sound() -> History {
    let asked = [
        (0, Operation::Create(10), is(1, 10, 90)),
        (1, Operation::Create(20), is(2, 20, 91)),
        (0, Operation::Replace(11, 1), is(3, 11, 90)),
        (0, Operation::Replace(12, 1), Outcome::Conflict),
        (1, Operation::Patch(21), is(4, 21, 91)),
        (0, Operation::Get, is(3, 11, 90)),
        (0, Operation::Patch(13), Outcome::Refused),
        (0, Operation::Patch(14), Outcome::Lost),
        (0, Operation::Get, is(5, 14, 90)),
        (0, Operation::Create(15), Outcome::Exists),
        (0, Operation::Remove(Some(5)), Outcome::Removed(90)),
        (0, Operation::Get, Outcome::Absent),
        (0, Operation::Create(16), is(7, 16, 92)),
        (0, Operation::Remove(None), Outcome::Lost),
        (0, Operation::Get, Outcome::Absent),
    ];
    let calls = asked
        .into_iter()
        .zip(0..)
        .map(|((key, asked, answer), at)| OperationRecord {
            key,
            asked,
            answer,
            began: 10 * at,
            ended: 10 * at + 5,
        });
    let list = |revision, began, objects| List {
        revision,
        objects: BTreeMap::from_iter(objects),
        began,
        ended: began + 5,
    };
    let made = list(
        2,
        12,
        [(0, version(1, 10, 90)), (1, version(2, 20, 91))].to_vec(),
    );
    let events = vec![
        event(Kind::Modified, 0, version(3, 11, 90)),
        event(Kind::Modified, 1, version(4, 21, 91)),
        event(Kind::Modified, 0, version(5, 14, 90)),
        event(Kind::Deleted, 0, version(6, 14, 90)),
        event(Kind::Added, 0, version(7, 16, 92)),
    ];
    History {
        calls: calls.collect(),
        lists: vec![
            list(
                4,
                50,
                [(0, version(3, 11, 90)), (1, version(4, 21, 91))].to_vec(),
            ),
            list(6, 111, [(1, version(4, 21, 91))].to_vec()),
        ],
        watches: vec![Watch { list: made, events }],
    }
}

#[test]
fn sound_history_has_no_anomaly() {
    assert_eq!(anomalies(&sound()), Vec::<String>::new());
}

#[test]
fn delete_whose_revision_nobody_saw_is_no_anomaly() {
    let mut history = sound();
    history.watches.clear();
    assert_eq!(anomalies(&history), Vec::<String>::new());
}

#[test]
fn life_that_nobody_saw_begin_is_no_anomaly_when_a_create_was_lost() {
    let mut history = sound();
    history.watches.clear();
    history.calls[12].answer = Outcome::Lost;
    history.calls[13].answer = Outcome::Removed(92);
    assert_eq!(anomalies(&history), Vec::<String>::new());
}

type Plant = fn(&mut History);

fn assert_found(faults: &[(&str, Plant)]) {
    for (name, plant) in faults {
        let mut history = sound();
        plant(&mut history);
        assert!(!anomalies(&history).is_empty(), "{name} is not found");
    }
}

#[test]
fn each_planted_fault_is_an_anomaly() {
    assert_found(&[
        ("a stale read", |it| it.calls[8].answer = is(1, 10, 90)),
        ("an answered write is lost", |it| {
            it.calls[7].answer = is(5, 14, 90);
            it.calls[8].answer = is(3, 11, 90);
        }),
        ("a revision is given twice", |it| {
            it.calls[8].answer = is(4, 14, 90);
        }),
        ("a value nobody wrote", |it| {
            it.calls[8].answer = is(5, 99, 90);
        }),
        ("a refused write is seen", |it| {
            it.calls[8].answer = is(5, 13, 90);
        }),
        ("a write of another object is seen", |it| {
            it.calls[8].answer = is(5, 21, 90);
        }),
        ("an object is gone", |it| {
            it.calls[8].answer = Outcome::Absent
        }),
        ("a write does not grow the revision", |it| {
            it.calls[4].answer = is(2, 21, 91);
        }),
        ("a condition is not kept", |it| {
            it.calls[2].asked = Operation::Replace(11, 0);
        }),
        ("a write over one it did not see", |it| {
            it.calls[7].asked = Operation::Replace(14, 1);
            it.calls[7].answer = is(5, 14, 90);
        }),
        ("a refusal without a reason", |it| {
            it.calls[3].asked = Operation::Replace(12, 7);
        }),
    ]);
}

#[test]
fn each_fault_in_a_list_or_watch_is_an_anomaly() {
    assert_found(&[
        ("a list that is no state", |it| {
            it.lists[0].objects.insert(0, version(1, 10, 90));
        }),
        ("a list without an object", |it| {
            it.lists[0].objects.remove(&0);
        }),
        ("a list with a deleted object", |it| {
            it.lists[1].objects.insert(0, version(5, 14, 90));
        }),
        ("a watch that omits a change", |it| {
            it.watches[0].events.remove(0);
        }),
        ("a watch that omits a removal", |it| {
            it.watches[0].events.remove(3);
        }),
        ("a watch out of order", |it| it.watches[0].events.swap(0, 1)),
        ("a watch that adds what is there", |it| {
            it.watches[0].events[0].kind = Kind::Added;
        }),
        ("a watch that changes what is gone", |it| {
            it.watches[0].events[4].kind = Kind::Modified;
        }),
        ("a removal that shows an earlier version", |it| {
            it.watches[0].events[3].version.token = 11;
        }),
    ]);
}

#[test]
fn each_fault_of_a_delete_is_an_anomaly() {
    assert_found(&[
        ("an answered delete is undone", |it| {
            it.calls[11].answer = is(5, 14, 90);
        }),
        ("a create over what is there", |it| {
            it.calls[10].answer = Outcome::Refused;
            it.calls.remove(13);
        }),
        ("a create that keeps the uid", |it| {
            it.calls[12].answer = is(7, 16, 90);
        }),
        ("a patch that makes an object", |it| {
            it.calls[12].asked = Operation::Patch(16);
        }),
        ("two deletes of one object", |it| {
            it.calls[13].answer = Outcome::Removed(90);
        }),
        ("a delete of what nobody made", |it| {
            it.calls[13].answer = Outcome::Removed(93);
        }),
        ("a delete against its condition", |it| {
            it.calls[10].asked = Operation::Remove(Some(3));
        }),
        ("an object is gone that nobody deleted", |it| {
            it.calls.remove(13);
        }),
        ("an object is there before it is made", |it| {
            it.calls[11].answer = Outcome::Exists;
        }),
    ]);
}
