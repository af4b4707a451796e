//! The permit protocol, model-checked: two replicas of the shipped core under every order of asking, writing, observing,
//! losing, crashing and taking over, up to a bound.
//!
//! The bound of an ordinary test run takes seconds. `cargo xtask model` goes further (`SCHEDULER_MODEL=large`).

mod exhaustive;
mod system;

use std::collections::HashMap;

use stateright::{Checker, Model, Property};

use system::{Bounds, Cheat, State, Step, System, fingerprint};

impl Model for System {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.first()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        self.steps(state, actions);
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        self.after(before, step)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("I1, N08: never overcommitted", |system: &Self, state| {
                (0..system.bounds.nodes).all(|node| {
                    let (given, total) = system.given_on(state, node);
                    given <= total
                })
            }),
            Property::always("I2: written before it is said", |_, state: &State| {
                !state.said_too_early
            }),
            Property::always(
                "I4, N14: in use within what is approved",
                |_, state: &State| {
                    let within =
                        |vm: &system::Vm| vm.now().approved.is_none_or(|a| vm.now().used <= a);
                    state.vms.iter().all(within)
                },
            ),
            Property::always(
                "N06, N16: a leader counts all that is given",
                |system: &Self, state| {
                    (0..system.bounds.nodes).all(|node| {
                        let given = system.given_on(state, node).0;
                        let counted = |replica| system.counted_by(state, replica, node);
                        (0..2)
                            .all(|replica| counted(replica).is_none_or(|counted| counted >= given))
                    })
                },
            ),
            Property::always("one leader at a time", |system: &Self, state| {
                !(system.leads(state, 0) && system.leads(state, 1))
            }),
            // What makes the rest mean something.
            Property::sometimes("the second leader grants", |system: &Self, state| {
                system.grants(state, 1)
            }),
            Property::sometimes("a wish is denied", |_, state: &State| {
                let asked = |vm: &system::Vm| vm.now().requested == 2;
                let given: u32 = state.vms.iter().map(system::Vm::given).sum();
                state.vms.iter().all(asked)
                    && given < 2 * u32::try_from(state.vms.len()).unwrap_or(0)
            }),
            Property::sometimes(
                "a call is on its way that nobody waits for",
                |system: &Self, state| system.has_stray(state),
            ),
            Property::sometimes(
                "who is handed the lead needs no lists",
                |system: &Self, state| system.grants(state, 1) && !state.lists_after_all,
            ),
            Property::sometimes(
                "who is handed the lead lists after all",
                |system: &Self, state| {
                    system.counted_by(state, 1, 0).is_some() && state.lists_after_all
                },
            ),
        ]
    }
}

const SAFE: [&str; 5] = [
    "I1, N08: never overcommitted",
    "I2: written before it is said",
    "I4, N14: in use within what is approved",
    "N06, N16: a leader counts all that is given",
    "one leader at a time",
];
const REACHED: [&str; 3] = [
    "the second leader grants",
    "a wish is denied",
    "a call is on its way that nobody waits for",
];

const HANDED_OVER: [&str; 3] = [
    "a wish is denied",
    "who is handed the lead needs no lists",
    "who is handed the lead lists after all",
];

/// The leader ends in good order, at any time, and the other's watch is as late as it likes.
fn hand_over(cheat: Option<Cheat>) -> Bounds {
    Bounds {
        ticks: 2,
        faults: 0,
        hand_overs: 1,
        ..small(cheat)
    }
}

fn small(cheat: Option<Cheat>) -> Bounds {
    Bounds {
        vms: 2,
        nodes: 1,
        wishes: &[2],
        ticks: 4,
        faults: 1,
        losses: 0,
        hand_overs: 0,
        restarts: false,
        cheat,
    }
}

/// Checks every reachable state; returns how many there are.
fn check(bounds: Bounds) -> usize {
    let text = format!("{bounds:?}");
    let reached = match bounds.hand_overs {
        0 => &REACHED,
        _ => &HANDED_OVER,
    };
    exhaustive::check(&text, System::new(bounds), &SAFE, reached)
}

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
    assert!(check(small(None)) > 1_000, "too small to mean anything");
}

#[test]
fn every_order_holds_in_the_larger_bounds() {
    if !exhaustive::is_large() {
        return;
    }
    check(Bounds {
        wishes: &[2, 1],
        ..small(None)
    });
}

#[test]
fn n06_n08_n16_every_order_of_a_hand_over_holds() {
    check(hand_over(None));
}

#[test]
fn every_order_of_a_hand_over_and_a_fault_holds() {
    if !exhaustive::is_large() {
        return;
    }
    check(Bounds {
        ticks: 4,
        faults: 1,
        ..hand_over(None)
    });
}

#[test]
fn who_is_handed_the_lead_and_does_not_wait_for_its_watch_overcommits() {
    let steps = counterexample(hand_over(Some(Cheat::NoMarks)), SAFE[0]);
    let handed = steps.iter().position(|step| *step == Step::HandOver);
    assert!(handed.is_some(), "{steps:?}");
}

#[test]
fn n06_n08_n16_every_order_of_three_vms_holds() {
    if !exhaustive::is_large() {
        return;
    }
    check(three(small(None)));
    check(Bounds {
        nodes: 2,
        ..three(small(None))
    });
}

#[test]
fn n06_n08_n16_every_order_of_three_vms_that_also_shrink_holds() {
    if !exhaustive::is_large() {
        return;
    }
    check(Bounds {
        wishes: &[2, 1],
        ..three(small(None))
    });
}

#[test]
fn n06_n08_n16_every_order_of_a_lost_answer_holds() {
    if !exhaustive::is_large() {
        return;
    }
    check(Bounds {
        losses: 1,
        ..small(None)
    });
}

#[test]
fn every_order_of_a_hand_over_among_three_vms_holds() {
    if !exhaustive::is_large() {
        return;
    }
    check(three(hand_over(None)));
}

fn three(bounds: Bounds) -> Bounds {
    Bounds { vms: 3, ..bounds }
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

/// Why one state stands for all that differ in the VMs' names alone (`system::State`): the same steps with exchanged names are
/// possible, and lead to states that again differ in the names alone. And the digests of a core in parts tell cores apart as
/// the one of the whole does.
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
