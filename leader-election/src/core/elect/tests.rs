mod model;

use super::*;
use protocol::core::Core as _;

use crate::core::lease::{Lead, Standing, Turn};
use proptest::prelude::*;

const DURATION: Span = Span::from_secs(8);

const fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * 1_000_000)
}

fn rule(identity: &str) -> ElectRule {
    ElectRule {
        identity: identity.into(),
        duration: DURATION,
        settle: Span::from_secs(2),
    }
}

/// A state of version `version` held by `holder`.
fn state(version: u64, holder: &str) -> LeaseState {
    LeaseState {
        version,
        holder: holder.into(),
        duration: DURATION,
        transitions: 3,
        is_drained: false,
        handover: None,
    }
}

fn drained(handover: Option<&str>) -> Leave {
    Leave {
        is_drained: true,
        handover: handover.map(str::to_owned),
    }
}

fn write_of(step: Step) -> LeaseWrite {
    match step {
        Step::Write(write) => write,
        other => panic!("no write: {other:?}"),
    }
}

/// What the API makes of a write.
fn applied(write: &LeaseWrite, version: u64) -> LeaseState {
    LeaseState {
        version,
        ..write.state.clone()
    }
}

/// An elector that has read this.
fn reader(now: Timestamp, found: Option<LeaseState>) -> Elector {
    let mut elector = Elector::new(rule("a"));
    assert_eq!(elector.poll(now), Step::Read);
    assert_eq!(
        elector.poll(now),
        Step::Wait(Timestamp(u64::MAX)),
        "one call"
    );
    assert_eq!(elector.seen(now, found), None);
    elector
}

#[test]
fn anothers_lease_is_taken_when_it_was_not_renewed_for_its_duration() {
    let mut elector = reader(at(100), Some(state(5, "b")));
    assert_eq!(elector.poll(at(100)), Step::Wait(at(108)));
    elector.seen(at(103), Some(state(6, "b")));
    assert_eq!(elector.poll(at(108)), Step::Wait(at(111)));
    // The same state again, and an older one, are no renewals.
    elector.seen(at(110), Some(state(6, "b")));
    elector.seen(at(110), Some(state(5, "b")));
    let write = write_of(elector.poll(at(111)));
    assert_eq!(
        (write.base, write.takes, write.state.transitions),
        (Some(6), true, 4)
    );
    let told = elector
        .written(at(112), applied(&write, 7))
        .expect("is told");
    let expected = LeaseSeen {
        holder: "a".into(),
        renewed: at(111),
        settled: at(111),
        handover: None,
    };
    assert_eq!(
        told, expected,
        "counted from its sending; the other stopped at its deadline"
    );
    assert_eq!(
        elector.poll(at(111)),
        Step::Wait(at(112)),
        "renewed each second"
    );
    let write = write_of(elector.poll(at(112)));
    assert_eq!(
        (write.base, write.takes, write.state.transitions),
        (Some(7), false, 4)
    );
    // A longer Lease than ours is respected for as long as it says.
    let long = LeaseState {
        duration: Span::from_secs(15),
        ..state(5, "b")
    };
    assert_eq!(
        reader(at(100), Some(long)).poll(at(108)),
        Step::Wait(at(115))
    );
    let short = LeaseState {
        duration: Span(0),
        ..state(5, "b")
    };
    assert_eq!(
        reader(at(100), Some(short)).poll(at(101)),
        Step::Wait(at(108))
    );
}

#[test]
fn a_lease_handed_over_is_led_at_once_and_one_that_is_gone_is_not() {
    for (found, settled) in [
        (
            Some(LeaseState {
                is_drained: true,
                ..state(9, "")
            }),
            at(100),
        ),
        (Some(state(9, "")), at(108)),
        (None, at(108)),
    ] {
        let base = found.as_ref().map(|state| state.version);
        let mut elector = reader(at(100), found);
        let write = write_of(elector.poll(at(100)));
        assert_eq!((write.base, write.state.is_drained), (base, false));
        let told = elector
            .written(at(100), applied(&write, 10))
            .expect("is told");
        assert_eq!(told.settled, settled, "{base:?}");
        let mut lead = Lead::new(rule("a").lease_rule());
        lead.handle(at(100), told);
        let leads = matches!(lead.standing(at(100)), Standing::Leading { .. });
        assert_eq!(leads, settled == at(100));
    }
}

#[test]
fn a_failed_call_is_made_again_after_a_pause_and_starts_no_duration_anew() {
    let mut elector = reader(at(100), Some(state(5, "b")));
    let write = write_of(elector.poll(at(108)));
    elector.failed(at(109));
    assert_eq!(elector.poll(at(109)), Step::Wait(at(110)));
    assert_eq!(elector.poll(at(110)), Step::Read);
    elector.seen(at(110), Some(state(5, "b")));
    assert_eq!(write_of(elector.poll(at(110))), write);
    // This one landed and its answer was lost: it is ours, and led once a renewal says since when.
    elector.failed(at(111));
    assert_eq!(elector.poll(at(112)), Step::Read);
    assert_eq!(elector.seen(at(112), Some(applied(&write, 6))), None);
    let write = write_of(elector.poll(at(112)));
    assert!(!write.takes);
    let told = elector
        .written(at(113), applied(&write, 7))
        .expect("is told");
    assert_eq!((told.renewed, told.settled), (at(112), at(108)));
}

#[test]
fn who_is_told_to_leave_gives_it_up_and_takes_none() {
    let mut elector = reader(at(100), None);
    let write = write_of(elector.poll(at(100)));
    elector.written(at(100), applied(&write, 1));
    elector.leave(drained(None));
    assert!(!elector.has_left());
    let write = write_of(elector.poll(at(108)));
    assert_eq!(
        (write.state.holder.as_str(), write.state.is_drained),
        ("", true)
    );
    let told = elector
        .written(at(109), applied(&write, 2))
        .expect("is told");
    assert_eq!((told.holder.as_str(), elector.has_left()), ("", true));
    assert_eq!(elector.poll(at(200)), Step::Wait(Timestamp(u64::MAX)));
    let mut follower = reader(at(100), Some(state(5, "b")));
    follower.leave(drained(None));
    assert!(follower.has_left());
}

#[test]
fn who_leaves_before_it_settled_promises_nothing_of_the_one_before() {
    let mut elector = reader(at(100), None);
    let write = write_of(elector.poll(at(100)));
    elector.written(at(100), applied(&write, 1));
    elector.leave(drained(None));
    let write = write_of(elector.poll(at(101)));
    assert_eq!(
        (write.state.holder.as_str(), write.state.is_drained),
        ("", false)
    );
}

/// What whoever takes this Lease is told.
fn told_of(found: LeaseState) -> LeaseSeen {
    let now = at(200);
    let mut elector = reader(now, Some(found));
    let write = write_of(elector.poll(now));
    assert_eq!(write.state.handover, None, "it is removed");
    let told = elector.written(now, applied(&write, 100));
    let told = told.expect("is told");
    let again = write_of(elector.poll(now + rule("a").retry()));
    let renewed = elector.written(now, applied(&again, 101));
    assert_eq!(renewed.expect("is told").handover, None, "it is told once");
    told
}

#[test]
fn a_note_reaches_whoever_takes_over_from_the_one_that_left_it_and_nobody_else() {
    let mut elector = reader(at(100), None);
    let write = write_of(elector.poll(at(100)));
    elector.written(at(100), applied(&write, 1));
    elector.leave(drained(Some("all to 7")));
    let write = write_of(elector.poll(at(108)));
    let left = applied(&write, 2);
    assert_eq!(
        left.handover.as_ref().map(|handover| handover.transitions),
        Some(1)
    );
    assert_eq!(told_of(left.clone()).handover.as_deref(), Some("all to 7"));
    // A holder of before notes were known took it and gave it up: it removed its own mark alone.
    let since = LeaseState {
        transitions: 2,
        ..left.clone()
    };
    assert_eq!(told_of(since).handover, None, "somebody led since");
    let undrained = LeaseState {
        is_drained: false,
        ..left.clone()
    };
    assert_eq!(
        told_of(undrained).handover,
        None,
        "something may be under way"
    );
    let mut late = reader(
        at(190),
        Some(LeaseState {
            holder: "b".into(),
            ..left
        }),
    );
    let write = write_of(late.poll(at(198)));
    let told = late.written(at(198), applied(&write, 3));
    assert_eq!(
        told.expect("is told").handover,
        None,
        "it was not handed over"
    );
}

#[test]
fn who_leaves_before_it_settled_leaves_no_note() {
    let mut elector = reader(at(100), None);
    let write = write_of(elector.poll(at(100)));
    elector.written(at(100), applied(&write, 1));
    elector.leave(drained(Some("all to 7")));
    assert_eq!(write_of(elector.poll(at(101))).state.handover, None);
}

#[test]
fn a_lease_that_is_taken_or_deleted_under_us_ends_the_lead_at_once() {
    for lost in [Some(state(9, "b")), Some(state(9, "")), None] {
        let mut elector = reader(at(100), None);
        let write = write_of(elector.poll(at(100)));
        elector.written(at(100), applied(&write, 1));
        let told = elector.seen(at(101), lost.clone()).expect("is told");
        assert_ne!(told.holder, "a");
        assert_eq!(elector.seen(at(101), lost), None, "once");
    }
}
