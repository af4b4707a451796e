//! The permit protocol, model-checked: two replicas of the shipped core under every order of
//! asking, writing, observing, losing, crashing and taking over, up to a bound.
//!
//! These bounds take seconds. Larger ones are in `large_models`, which `cargo xtask model` runs.

mod exhaustive;
mod permit_model;
mod system;

use std::collections::HashMap;

use stateright::{Checker, Model};

use exhaustive::Order;
use permit_model::{SAFE, check, hand_over, small};
use system::{Bounds, Cheat, Step, System, fingerprint};

/// The shortest way to a state that must not be.
fn counterexample(bounds: Bounds, name: &'static str) -> Vec<Step> {
    let found = stateright::HasDiscoveries::AllOf([name].into());
    let cheat = bounds.cheat;
    let checker = System::new(bounds).checker().finish_when(found);
    let path = checker.spawn_bfs().join().discovery(name);
    path.unwrap_or_else(|| panic!("{cheat:?} goes unnoticed"))
        .into_actions()
}

#[test]
fn n06_n08_n16_every_order_of_a_failover_holds() {
    assert!(
        check(small(None), Order::Breadth) > 1_000,
        "too small to mean anything"
    );
}

#[test]
fn n06_n08_n16_every_order_of_a_hand_over_holds() {
    check(hand_over(None), Order::Breadth);
}

#[test]
fn who_is_handed_the_lead_and_does_not_wait_for_its_watch_overcommits() {
    let steps = counterexample(hand_over(Some(Cheat::NoMarks)), SAFE[0]);
    let handed = steps.iter().position(|step| *step == Step::HandOver);
    assert!(handed.is_some(), "{steps:?}");
}

#[test]
fn n06_n08_n16_every_order_of_a_lost_answer_holds() {
    let bounds = Bounds {
        losses: 1,
        ..small(None)
    };
    check(bounds, Order::Breadth);
}

#[test]
fn two_replicas_without_a_lease_overcommit() {
    let steps = counterexample(small(Some(Cheat::NoLease)), SAFE[0]);
    assert!(steps.len() >= 4, "{steps:?}");
}

#[test]
fn a_new_leader_that_does_not_wait_overcommits() {
    let steps = counterexample(small(Some(Cheat::NoSettle)), SAFE[0]);
    assert!(
        steps.iter().any(|step| matches!(step, Step::Take(1))),
        "{steps:?}"
    );
}

#[test]
fn a_write_of_unclear_fate_taken_as_refused_overcommits() {
    let steps = counterexample(small(Some(Cheat::ForgetUnclear)), SAFE[0]);
    let lost = |step: &Step| matches!(step, Step::Abandon(_) | Step::LandUnheard(_) | Step::Tick);
    assert!(steps.iter().any(lost), "{steps:?}");
}

/// Numbers that look random, the same in every run.
fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed + 1;
    move |below| {
        state = state
            .wrapping_mul(0x5851_F42D_4C95_7F2D)
            .wrapping_add(0x1405_7B7E_F767_814F);
        usize::try_from(state >> 33).unwrap_or(0) % below
    }
}

/// Why one state stands for all that differ in the VMs' names alone (`system::State`): the same
/// steps with exchanged names are possible, and lead to states that again differ in the names
/// alone. And the digests of a core in parts tell cores apart as the one of the whole does.
#[test]
fn what_happens_to_vms_does_not_go_by_their_names() {
    let (mut taken, mut wholes) = (0, HashMap::new());
    let names = [[1, 2, 0], [1, 0, 2]];
    for (seed, names) in (0..300).zip(names.into_iter().cycle()) {
        let bounds = Bounds {
            vms: 3,
            wishes: &[2, 1],
            losses: 1,
            hand_overs: u8::from(seed % 3 == 0),
            restarts: true,
            ..small(None)
        };
        let system = System::new(bounds);
        let mut number = numbers(seed);
        let (mut state, mut twin) = (system.first_with(&[0, 1, 2]), system.first_with(&names));
        for _ in 0..120 {
            let (mut steps, mut twins) = (Vec::new(), Vec::new());
            system.steps(&state, &mut steps);
            system.steps(&twin, &mut twins);
            assert_eq!(steps.len(), twins.len(), "{steps:?} {twins:?}");
            if steps.is_empty() {
                break;
            }
            let step = steps[number(steps.len())];
            let renamed = state.renamed(step, &twin, &names);
            assert!(twins.contains(&renamed), "{renamed:?} of {twins:?}");
            let next = (system.after(&state, step), system.after(&twin, renamed));
            let (Some(next), Some(next_twin)) = next else {
                assert!(next.0.is_none() && next.1.is_none(), "{step:?}");
                continue;
            };
            (state, twin) = (next, next_twin);
            assert_eq!(fingerprint(&state), fingerprint(&twin), "after {step:?}");
            for (parts, whole) in state.digests() {
                let known = wholes.entry(parts).or_insert(whole);
                assert_eq!(
                    *known, whole,
                    "the parts do not tell apart what the whole does"
                );
            }
            taken += 1;
        }
    }
    assert!(
        taken > 2_000 && wholes.len() > 500,
        "{taken} steps, {} cores",
        wholes.len()
    );
}
