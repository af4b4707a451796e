//! The permit protocol, model-checked: two replicas of the shipped core under every order of asking, writing, observing,
//! losing, crashing and taking over, up to a bound.
//!
//! The bound of an ordinary test run takes seconds. `cargo xtask model` goes further (`SCHEDULER_MODEL=large`).

mod system;

use stateright::{Checker, Model, Property};

use system::{Bounds, Cheat, State, Step, System};

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

fn small(cheat: Option<Cheat>) -> Bounds {
    Bounds {
        vms: 2,
        nodes: 1,
        wishes: &[2],
        ticks: 4,
        faults: 1,
        losses: 0,
        restarts: false,
        cheat,
    }
}

fn is_large() -> bool {
    std::env::var("SCHEDULER_MODEL").is_ok_and(|bound| bound == "large")
}

/// Checks every reachable state; returns how many there are.
fn check(bounds: Bounds) -> usize {
    let began = std::time::Instant::now();
    let text = format!("{bounds:?}");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = System::new(bounds)
        .checker()
        .threads(threads)
        .spawn_bfs()
        .join();
    assert!(checker.is_done());
    for name in SAFE {
        if let Some(path) = checker.discovery(name) {
            panic!("{name} does not hold in {text}: {:?}", path.into_actions());
        }
    }
    for name in REACHED {
        assert!(checker.discovery(name).is_some(), "never: {name} in {text}");
    }
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    let told = format!(
        "{text}: {states} states, {} steps, {depth} deep, {:.1} s",
        checker.state_count(),
        began.elapsed().as_secs_f64()
    );
    eprintln!("{told}");
    states
}

/// The shortest way to a state that must not be.
fn counterexample(cheat: Cheat, name: &'static str) -> Vec<Step> {
    let found = stateright::HasDiscoveries::AllOf([name].into());
    let checker = System::new(small(Some(cheat))).checker().finish_when(found);
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
    if !is_large() {
        return;
    }
    check(Bounds {
        wishes: &[2, 1],
        ..small(None)
    });
    check(Bounds {
        vms: 3,
        nodes: 2,
        ..small(None)
    });
}

#[test]
fn two_replicas_without_a_lease_overcommit() {
    let steps = counterexample(Cheat::NoLease, SAFE[0]);
    assert!(steps.len() >= 4, "{steps:?}");
}

#[test]
fn a_new_leader_that_does_not_wait_overcommits() {
    let steps = counterexample(Cheat::NoSettle, SAFE[0]);
    assert!(
        steps.iter().any(|step| matches!(step, Step::Take(1))),
        "{steps:?}"
    );
}

#[test]
fn a_write_of_unclear_fate_taken_as_refused_overcommits() {
    let steps = counterexample(Cheat::ForgetUnclear, SAFE[0]);
    let lost = |step: &Step| matches!(step, Step::Abandon(_) | Step::LandUnheard(_) | Step::Tick);
    assert!(steps.iter().any(lost), "{steps:?}");
}
