//! Vectors of docs/compatibility/scheduler.md §7.8 and the life of a request, on the whole core
//! with its calls answered by hand.

mod bounds;

use protocol::annotations::ANNOTATION_APPROVED;
use protocol::core::Core as _;
use protocol::units::Resources;

use super::rig::{MS, Rig, answers, permit_of, size, writes};
use super::*;
use crate::core::decision::{Limit, Outcome};
use crate::core::event::{Event, annotation_text};

#[test]
fn vectors_of_the_permit_server() {
    let plenty = size(8_000, 32);
    let held = size(500, 2);
    for (last_permit, resources, room, expected) in [
        (Some(held), held, plenty, held),
        (Some(size(1_000, 4)), held, plenty, held),
        (Some(held), size(1_000, 4), size(500, 2), size(1_000, 4)),
        (Some(held), size(1_000, 4), size(300, 5), size(750, 4)),
        (Some(held), size(1_000, 4), size(0, 0), held),
        (Some(size(1_000, 2)), size(500, 4), plenty, size(500, 4)),
    ] {
        let mut rig = Rig::new(room, Some(held));
        rig.ask(0, last_permit, resources);
        let got = rig.settle(0);
        assert_eq!(got.len(), 1);
        assert_eq!(
            permit_of(&got[0]),
            Ok(expected),
            "{last_permit:?} {resources} {room}"
        );
        assert_eq!(
            rig.approved(),
            Some(expected),
            "what is answered is written"
        );
        assert_eq!(
            rig.reserved(),
            expected.field_max(held),
            "what is written is counted, its use at least"
        );
    }
}

#[test]
fn n09_first_contact_is_permitted_exactly_what_the_vm_has() {
    // Whatever room there is, and even when less was approved than it uses.
    for (room, approved) in [
        (size(0, 0), None),
        (size(4_000, 8), None),
        (size(0, 0), Some(size(250, 1))),
    ] {
        let mut rig = Rig::new(room, approved);
        rig.ask(0, None, size(500, 2));
        let actions = rig.actions(0);
        assert!(
            answers(&actions).is_empty(),
            "nothing is said before it is written"
        );
        let writes = writes(&actions);
        assert_eq!(writes.len(), 1);
        rig.done(5, &writes[0]);
        assert_eq!(permit_of(&rig.settle(5)[0]), Ok(size(500, 2)));
        assert_eq!(rig.approved(), Some(size(500, 2)));
    }
    // More than it has is an increase like any other.
    let mut rig = Rig::new(size(0, 0), None);
    rig.ask(0, None, size(1_000, 2));
    assert_eq!(permit_of(&rig.settle(0)[0]), Ok(size(500, 2)));
}

#[test]
fn nothing_is_written_twice_and_equal_requests_are_answered_at_once() {
    let mut rig = Rig::new(size(0, 0), Some(size(500, 2)));
    rig.ask(0, Some(size(500, 2)), size(500, 2));
    let actions = rig.actions(0);
    assert_eq!(
        (answers(&actions).len(), writes(&actions).len()),
        (1, 1),
        "the wish is recorded behind the answer"
    );
    rig.done(1, &writes(&actions)[0]);
    rig.ask(2, Some(size(500, 2)), size(500, 2));
    let actions = rig.actions(2);
    assert_eq!((answers(&actions).len(), writes(&actions).len()), (1, 0));
}

#[test]
fn a_refusal_is_answered_at_once_and_told_once() {
    let mut rig = Rig::new(size(0, 0), Some(size(500, 2)));
    rig.ask(0, Some(size(500, 2)), size(1_000, 4));
    let actions = rig.actions(0);
    let answer = &answers(&actions)[0];
    assert_eq!(permit_of(answer), Ok(size(500, 2)));
    let decision = answer.decision.as_ref().expect("was decided");
    assert_eq!(
        decision.verdicts.cpu.outcome,
        Outcome::Denied(Limit::NoRoom)
    );
    assert_eq!(
        (decision.verdicts.cpu.asked, decision.verdicts.cpu.held),
        (1_000, 500)
    );
    let told = |actions: &[Action]| {
        actions
            .iter()
            .filter(|a| matches!(a, Action::ScaleUpDenied { .. }))
            .count()
    };
    assert_eq!((told(&actions), answer.is_notable), (1, true));
    rig.done(1, &writes(&actions)[0]);
    for (at, expected) in [(2_000, 0), (59_000, 0), (61_000, 1), (63_000, 0)] {
        rig.ask(at, Some(size(500, 2)), size(1_000, 4));
        assert_eq!(told(&rig.actions(at)), expected, "after {at} ms");
    }
}

#[test]
fn durable_before_said_for_increases_and_decreases() {
    for resources in [size(1_000, 4), size(250, 1)] {
        let mut rig = Rig::new(size(4_000, 8), Some(size(500, 2)));
        rig.ask(0, Some(size(500, 2)), resources);
        let actions = rig.actions(0);
        assert!(answers(&actions).is_empty());
        // The room is held from the moment it is promised, and not freed before the write is seen.
        assert_eq!(rig.reserved(), resources.field_max(size(500, 2)));
        rig.done(3, &writes(&actions)[0]);
        assert_eq!(permit_of(&rig.settle(3)[0]), Ok(resources));
    }
}

#[test]
fn a_conflict_is_decided_anew_on_what_is_there_now() {
    let mut rig = Rig::new(size(4_000, 8), Some(size(500, 2)));
    rig.ask(0, Some(size(500, 2)), size(1_000, 4));
    let first = writes(&rig.actions(0));
    rig.version += 7;
    assert_eq!(rig.apply(&first[0]), CallOutcome::Conflict);
    rig.core
        .handle(MS(1), Event::WriteDone(first[0].id, CallOutcome::Conflict));
    assert_eq!(
        rig.reserved(),
        size(500, 2),
        "it did not and will not happen"
    );
    assert_eq!(permit_of(&rig.settle(2)[0]), Ok(size(1_000, 4)));
    // With an object that never stands still it gives up in a bounded number of tries.
    rig.ask(10, Some(size(1_000, 4)), size(2_000, 8));
    let mut tries = 0;
    let answer = loop {
        let actions = rig.actions(10);
        if let Some(answer) = answers(&actions).first() {
            break answer.clone();
        }
        for action in actions {
            match action {
                Action::WriteVm(write) => {
                    tries += 1;
                    rig.version += 1;
                    rig.core
                        .handle(MS(10), Event::WriteDone(write.id, CallOutcome::Conflict));
                }
                Action::ReadVm { id, .. } => {
                    let outcome = CallOutcome::Done(Box::new(rig.vm()));
                    rig.core.handle(MS(10), Event::ReadDone(id, outcome));
                }
                _ => {}
            }
        }
    };
    assert_eq!(permit_of(&answer), Err(PermitRefusal::PatchFailed));
    assert_eq!(tries, MAX_CONFLICTS + 1);
}

#[test]
fn refused_writes_end_their_hold_and_leave_no_permit() {
    for outcome in [
        CallOutcome::Refused("forbidden".into()),
        CallOutcome::NotFound,
    ] {
        let mut rig = Rig::new(size(4_000, 8), Some(size(500, 2)));
        rig.ask(0, Some(size(500, 2)), size(1_000, 4));
        let write = writes(&rig.actions(0))[0].clone();
        rig.core.handle(MS(1), Event::WriteDone(write.id, outcome));
        let actions = rig.actions(1);
        assert_eq!(
            permit_of(&answers(&actions)[0]),
            Err(PermitRefusal::PatchFailed)
        );
        assert_eq!(rig.reserved(), size(500, 2));
        // The next event computes anew.
        rig.ask(3_000, Some(size(500, 2)), size(1_000, 4));
        assert_eq!(permit_of(&rig.settle(3_000)[0]), Ok(size(1_000, 4)));
    }
}

#[test]
fn an_unclear_write_stays_held_and_is_settled_by_sending_it_again() {
    for happened in [true, false] {
        let mut rig = Rig::new(size(500, 2), Some(size(500, 2)));
        rig.ask(0, Some(size(500, 2)), size(1_000, 4));
        let write = writes(&rig.actions(0))[0].clone();
        if happened {
            rig.apply(&write);
        }
        rig.core.handle(
            MS(1_000),
            Event::WriteDone(write.id, CallOutcome::Unclear("time-out".into())),
        );
        let actions = rig.actions(1_000);
        assert_eq!(
            permit_of(&answers(&actions)[0]),
            Err(PermitRefusal::PatchFailed)
        );
        assert_eq!(rig.reserved(), size(1_000, 4), "it may have happened");
        assert!(rig.core.poll_deadline().is_some_and(|at| at <= MS(1_600)));
        assert!(rig.settle(1_700).is_empty());
        assert_eq!(
            rig.approved(),
            Some(size(1_000, 4)),
            "exactly once, in either case"
        );
        assert_eq!(rig.version, 101);
        assert_eq!(rig.core.permit_anomalies().unclear_writes, 1);
        rig.ask(3_000, Some(size(500, 2)), size(1_000, 4));
        assert_eq!(
            permit_of(&rig.settle(3_000)[0]),
            Ok(size(1_000, 4)),
            "held, so no room is needed"
        );
    }
}

#[test]
fn a_late_unclear_write_can_not_land_after_the_room_was_given_back() {
    let mut rig = Rig::new(size(500, 2), Some(size(500, 2)));
    rig.ask(0, Some(size(500, 2)), size(1_000, 4));
    let late = writes(&rig.actions(0))[0].clone();
    rig.core.handle(
        MS(1_000),
        Event::WriteDone(late.id, CallOutcome::Unclear("time-out".into())),
    );
    rig.actions(1_000);
    // The agent gives up its wish; that write goes through.
    rig.ask(1_100, Some(size(500, 2)), size(500, 2));
    rig.settle(1_100);
    assert_eq!(
        rig.reserved(),
        size(500, 2),
        "a later version was seen, so the fate is known"
    );
    assert_eq!(rig.apply(&late), CallOutcome::Conflict);
}

#[test]
fn no_further_write_is_sent_while_the_most_unclear_ones_are_open() {
    let mut rig = Rig::new(size(4_000, 8), Some(size(500, 2)));
    for index in 0..MAX_UNCLEAR {
        let units = u32::try_from(index).expect("few") + 3;
        rig.ask(10, Some(size(500, 2)), size(250 * units, units.into()));
        let write = writes(&rig.actions(10))[0].clone();
        let unclear = CallOutcome::Unclear("time-out".into());
        rig.core.handle(MS(10), Event::WriteDone(write.id, unclear));
        rig.actions(10);
        assert_eq!(
            rig.reserved(),
            size(250 * units, units.into()),
            "any of them may happen"
        );
    }
    rig.ask(10, Some(size(500, 2)), size(2_000, 8));
    let actions = rig.actions(10);
    assert_eq!(
        permit_of(&answers(&actions)[0]),
        Err(PermitRefusal::PatchFailed)
    );
    assert!(writes(&actions).is_empty());
    // One of them settles all: the others were for the version before it.
    assert!(rig.settle(700).is_empty());
    let approved = rig.approved().expect("one of them has happened");
    assert_eq!(rig.reserved(), approved);
}

/// A shrink was not heard to its end, and is taken back: what is asked for is what is approved, so
/// its write changes nothing.
#[test]
fn nothing_is_permitted_that_a_write_of_unclear_fate_may_yet_take_away() {
    let mut rig = Rig::new(size(4_000, 8), Some(size(500, 2)));
    rig.ask(0, Some(size(500, 2)), size(1_000, 4));
    rig.settle(0);
    rig.ask(10, Some(size(1_000, 4)), size(500, 2));
    let late = writes(&rig.actions(10))[0].clone();
    let unclear = CallOutcome::Unclear("time-out".into());
    rig.core.handle(MS(20), Event::WriteDone(late.id, unclear));
    rig.actions(20);
    rig.ask(30, Some(size(500, 2)), size(1_000, 4));
    let refused = rig.settle(30);
    assert_eq!(permit_of(&refused[0]), Err(PermitRefusal::PatchFailed));
    assert_eq!(rig.reserved(), size(1_000, 4), "it may be either");
    // It lands after all; or is sent again, as here.
    assert!(rig.settle(600).is_empty());
    assert_eq!(rig.approved(), Some(size(500, 2)));
    rig.ask(3_030, Some(size(500, 2)), size(1_000, 4));
    assert_eq!(permit_of(&rig.settle(3_030)[0]), Ok(size(1_000, 4)));
    assert_eq!(rig.apply(&late), CallOutcome::Conflict);
}

#[test]
fn a_patch_of_an_earlier_agent_is_counted_though_the_next_gives_back() {
    let mut rig = Rig::new(size(0, 0), Some(size(500, 2)));
    rig.ask(0, None, size(500, 2));
    rig.settle(0);
    rig.ask(100, Some(size(500, 2)), size(250, 1));
    rig.settle(100);
    // Another one comes, and its time begins anew.
    rig.ask(6_000, None, size(250, 1));
    rig.settle(6_000);
    rig.settle(12_100);
    let counted = |rig: &Rig| rig.core.ledger().vm(&rig.vm().key).expect("seen").legacy;
    assert_eq!(counted(&rig), size(500, 2), "the first one's is over");
    rig.settle(18_100);
    assert_eq!(counted(&rig), Resources::default());
}

#[test]
fn a_call_without_any_outcome_is_taken_as_unclear() {
    let mut rig = Rig::new(size(500, 2), Some(size(500, 2)));
    rig.ask(0, Some(size(500, 2)), size(1_000, 4));
    let write = writes(&rig.actions(0))[0].clone();
    let got = answers(&rig.actions(1_000));
    assert_eq!(
        permit_of(&got[0]),
        Err(PermitRefusal::PatchFailed),
        "the request has one second"
    );
    rig.actions(3_100);
    assert_eq!(rig.core.permit_anomalies().unclear_writes, 1);
    let outcome = rig.apply(&write);
    rig.core
        .handle(MS(3_200), Event::WriteDone(write.id, outcome));
    assert_eq!(rig.core.permit_anomalies().late_outcomes, 1);
    assert_eq!(rig.reserved(), size(1_000, 4), "late, but true");
    assert!(rig.settle(9_000).is_empty());
}

#[test]
fn n08_a_late_copy_of_what_was_given_back_makes_no_room() {
    let mut rig = Rig::new(size(0, 0), Some(size(500, 2)));
    // The pod's copy is from a time when more was approved; the room has gone to another pod since.
    rig.annotations
        .insert(ANNOTATION_APPROVED.into(), annotation_text(size(1_000, 4)));
    let stale = rig.pod("n");
    rig.annotations
        .insert(ANNOTATION_APPROVED.into(), annotation_text(size(500, 2)));
    rig.tell(Event::PodApplied(stale));
    assert_eq!(
        rig.reserved(),
        size(1_000, 3),
        "it is counted while it is seen, as far as the node goes"
    );
    rig.ask(0, Some(size(500, 2)), size(1_000, 4));
    assert_eq!(
        permit_of(&rig.settle(0)[0]),
        Ok(size(500, 2)),
        "but not granted"
    );
}

#[test]
fn n16_what_an_earlier_agent_was_permitted_stays_counted_for_a_while() {
    let (using, approved) = (size(500, 2), size(1_000, 4));
    let mut rig = Rig::new(size(8_000, 32), Some(approved));
    // A new agent tells what is in use; a patch of the one before may be on its way.
    rig.ask(0, None, using);
    let got = rig.settle(0);
    assert_eq!(permit_of(&got[0]), Ok(using));
    let pod = rig.pod("n");
    rig.tell(Event::PodApplied(pod));
    assert_eq!(rig.reserved(), approved);
    rig.actions(11_000);
    assert_eq!(rig.reserved(), approved);
    rig.actions(13_000);
    assert_eq!(rig.reserved(), using);
}

/// An agent asked for less and ended; the next one was permitted more and uses it by the time the
/// request arrives.
#[test]
fn a_late_request_leaves_approved_what_is_in_use() {
    let (using, asked) = (size(500, 2), size(250, 1));
    let mut rig = Rig::new(size(4_000, 8), Some(using));
    rig.ask(0, Some(using), asked);
    let got = rig.settle(0);
    assert_eq!(permit_of(&got[0]), Ok(asked), "as asked");
    assert_eq!(rig.approved(), Some(using), "as used");
    assert_eq!(rig.reserved(), using);
}

/// An agent patches its VM before it tells, and the scheduler's watch is behind: what is given back
/// is free at once all the same.
#[test]
fn what_is_given_back_before_the_watch_tells_of_it_is_given_back() {
    let mut rig = Rig::new(size(4_000, 8), Some(size(500, 2)));
    rig.version += 1;
    rig.in_use = size(250, 1);
    rig.ask(0, Some(size(500, 2)), size(250, 1));
    let got = rig.settle(0);
    assert_eq!(permit_of(&got[0]), Ok(size(250, 1)));
    assert_eq!(rig.approved(), Some(size(250, 1)));
}
