//! Requests and annotations that say more than is true, played by the caller and by the VM's
//! author.

use proptest::prelude::*;
use protocol::annotations::ANNOTATION_APPROVED;
use protocol::core::Core as _;
use protocol::units::Resources;

use super::rig::{GIB, MS, Rig, answers, permit_of, size, writes};
use super::*;
use crate::core::decision::{Limit, Outcome};
use crate::core::event::{Event, annotation_text};

/// 1000 CPU and 4000 GiB, as in the finding.
const FORGED: Resources = Resources::new(1_000_000, 4000 * GIB);
/// The largest size of the rig's VM.
const LARGEST: Resources = Resources::new(4_000, 16 * GIB);

fn outcomes(answer: &PermitResponse) -> [Outcome; 2] {
    let decision = answer.decision.as_ref().expect("was decided");
    [decision.verdicts.cpu.outcome, decision.verdicts.mem.outcome]
}

#[test]
fn forged_last_permit_is_permitted_and_written_nothing_beyond_what_is_approved() {
    let held = size(500, 2);
    for room in [size(0, 0), size(1_500, 4), size(9_000, 64)] {
        let mut rig = Rig::new(room, Some(held));
        rig.ask(0, Some(FORGED), FORGED);
        let got = rig.settle(0);
        assert_eq!(permit_of(&got[0]), Ok(held), "{room}");
        assert_eq!(outcomes(&got[0]), [Outcome::Denied(Limit::Claim); 2]);
        assert_eq!(rig.approved(), Some(held));
        assert_eq!(rig.core.permit_anomalies().overclaims, 1);
        // It is counted until the agent says otherwise, but at no more than the VM could use and
        // the node has.
        let total = held.cpu.0 + room.cpu.0 + 1_000;
        let reserved = rig.core.ledger().load("n").reserved.cpu;
        assert_eq!(reserved, u128::from(LARGEST.cpu.0.min(total)) + 1_000);
        rig.ask(5_000, Some(held), held);
        assert_eq!(permit_of(&rig.settle(5_000)[0]), Ok(held));
        assert_eq!(rig.reserved(), held);
    }
}

#[test]
fn forged_last_permit_below_the_largest_size_is_not_accepted_as_a_fact() {
    let mut rig = Rig::new(size(0, 0), Some(size(500, 2)));
    rig.ask(0, Some(size(1_000, 2)), size(1_000, 2));
    let got = rig.settle(0);
    assert_eq!(permit_of(&got[0]), Ok(size(500, 2)));
    assert_eq!(outcomes(&got[0])[0], Outcome::Denied(Limit::Claim));
    assert_eq!(rig.approved(), Some(size(500, 2)));
    assert_eq!(rig.reserved(), size(1_000, 2), "the agent may be using it");
}

#[test]
fn claim_for_one_resource_leaves_the_other_to_be_granted() {
    let mut rig = Rig::new(size(4_000, 8), Some(size(500, 2)));
    rig.ask(0, Some(size(1_000, 2)), size(2_000, 4));
    let got = rig.settle(0);
    let expected = [Outcome::Denied(Limit::Claim), Outcome::Granted];
    assert_eq!(outcomes(&got[0]), expected);
    assert_eq!(permit_of(&got[0]), Ok(size(500, 4)));
    assert_eq!(rig.approved(), Some(size(500, 4)));
}

/// Requirement: N16. The watch is behind the object; what vouches is the object, not the request.
#[test]
fn last_permit_that_the_object_itself_shows_is_accepted_though_the_watch_is_behind() {
    for approved in [true, false] {
        let mut rig = Rig::new(size(0, 0), Some(size(500, 2)));
        rig.version += 1;
        rig.in_use = size(1_000, 4);
        if approved {
            let text = annotation_text(size(1_000, 4));
            rig.annotations.insert(ANNOTATION_APPROVED.into(), text);
        }
        rig.ask(0, Some(size(1_000, 4)), size(1_000, 4));
        let first = rig.actions(0);
        assert!(matches!(first[..], [Action::ReadVm { .. }]), "{first:?}");
        let Action::ReadVm { id, .. } = first[0] else {
            return;
        };
        let vm = Box::new(rig.vm());
        rig.core
            .handle(MS(1), Event::ReadDone(id, CallOutcome::Done(vm)));
        let got = rig.settle(1);
        assert_eq!(permit_of(&got[0]), Ok(size(1_000, 4)));
        assert_eq!(rig.approved(), Some(size(1_000, 4)));
    }
}

/// A request that claims too much costs one read, however it ends.
#[test]
fn claim_is_verified_once_and_refused_when_the_object_cannot_be_read() {
    let mut rig = Rig::new(size(0, 0), Some(size(500, 2)));
    rig.ask(0, Some(FORGED), FORGED);
    let reads = |actions: &[Action]| {
        let reads = actions.iter().filter_map(|action| match action {
            Action::ReadVm { id, .. } => Some(*id),
            _ => None,
        });
        reads.collect::<Vec<_>>()
    };
    let read = reads(&rig.actions(0));
    assert_eq!(read.len(), 1);
    let unclear = CallOutcome::Unclear("time-out".into());
    rig.core.handle(MS(1), Event::ReadDone(read[0], unclear));
    let actions = rig.actions(1);
    assert_eq!(
        permit_of(&answers(&actions)[0]),
        Err(PermitRefusal::PatchFailed)
    );
    assert!(reads(&actions).is_empty() && writes(&actions).is_empty());
}

#[test]
fn wish_above_the_largest_size_is_cut_to_it_and_says_so() {
    let mut rig = Rig::new(size(9_000, 64), Some(size(500, 2)));
    rig.ask(0, Some(size(500, 2)), FORGED);
    let got = rig.settle(0);
    assert_eq!(permit_of(&got[0]), Ok(LARGEST));
    assert_eq!(outcomes(&got[0]), [Outcome::Partial(Limit::VmMax); 2]);
    assert_eq!(rig.approved(), Some(LARGEST));
    let wish = rig.annotations[protocol::annotations::ANNOTATION_REQUESTED].clone();
    assert_eq!(wish, annotation_text(LARGEST), "the wish as well");
    rig.ask(1_000, Some(LARGEST), FORGED);
    let got = rig.settle(1_000);
    assert_eq!(permit_of(&got[0]), Ok(LARGEST));
    assert_eq!(outcomes(&got[0]), [Outcome::Denied(Limit::VmMax); 2]);
    // A first contact is bounded alike.
    let mut rig = Rig::new(size(9_000, 64), None);
    rig.ask(0, None, FORGED);
    assert_eq!(permit_of(&rig.settle(0)[0]), Ok(LARGEST));
}

/// Requirement: W6. A wish that could never be met sends nobody away from the node.
#[test]
fn wish_above_the_largest_size_makes_no_more_pressure_than_the_largest_size() {
    let mut rig = Rig::new(size(1_500, 4), Some(size(500, 2)));
    rig.ask(0, Some(size(500, 2)), FORGED);
    rig.settle(0);
    let pressure = rig.core.pressure("n").capacity;
    let (has, total) = (2_000, 3_000);
    assert!(pressure.cpu <= total - has, "{pressure:?}");
}

#[test]
fn forged_annotation_is_no_room_and_is_repaired_by_the_next_request() {
    let held = size(500, 2);
    let mut rig = Rig::new(size(0, 0), Some(held));
    rig.annotations
        .insert(ANNOTATION_APPROVED.into(), annotation_text(FORGED));
    rig.version += 1;
    let vm = rig.vm();
    rig.tell(Event::VmApplied(vm));
    assert_eq!(rig.core.ledger().anomalies().approved_above_max, 1);
    rig.ask(0, Some(held), size(1_000, 4));
    assert_eq!(
        permit_of(&rig.settle(0)[0]),
        Ok(held),
        "the node has no room"
    );
    assert_eq!(rig.approved(), Some(held));
    assert_eq!(rig.reserved(), held);
}

fn any_size() -> impl Strategy<Value = Resources> {
    (0..9_000_u32, 0..40_u64).prop_map(|(milli, gib)| size(milli, gib))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Requirement: W6. Whatever was approved by whoever, and whatever a caller says: no permit is
    /// above the VM's largest size, none grows the node beyond its total by more than what the
    /// object shows, and what is permitted is written.
    #[test]
    fn no_request_is_permitted_more_than_the_object_shows_and_the_room(
        room in any_size(), approved in prop::option::of(any_size()),
        requests in prop::collection::vec((prop::option::of(any_size()), any_size()), 1..6),
    ) {
        let mut rig = Rig::new(room, None);
        if let Some(approved) = approved {
            rig.annotations.insert(ANNOTATION_APPROVED.into(), annotation_text(approved));
            rig.version += 1;
            let vm = rig.vm();
            rig.tell(Event::VmApplied(vm));
        }
        let mut answered = Resources::default();
        for (at, (last, wish)) in requests.into_iter().enumerate() {
            let at = at as u64 * 20_000;
            let before = rig.approved();
            rig.ask(at, last, wish.field_max(size(1, 0)).field_max(Resources::new(0, 1)));
            let Ok(permit) = permit_of(&rig.settle(at)[0]) else { continue };
            prop_assert!(!permit.has_field_above(LARGEST), "{permit}");
            let shown = before.unwrap_or_default().field_max(rig.in_use);
            let room = Resources::new(500 + room.cpu.0, (2 * GIB) + room.mem.0);
            prop_assert!(!permit.has_field_above(shown.field_max(room)), "{permit} of {shown} and {room}");
            if let Some(last) = last {
                // The answer before may be on its way. It was no forgery.
                let vouched = last.field_max(answered).field_min(shown);
                prop_assert!(!permit.has_field_above(vouched.field_max(room)), "the object alone vouches");
            }
            answered = permit;
            prop_assert!(rig.approved().is_some_and(|approved| !permit.has_field_above(approved)));
        }
    }
}
