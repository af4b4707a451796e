//! The model of the permit protocol: what holds in every state, and the bounds.

use stateright::{Model, Property};

use crate::exhaustive::{self, Order};
use crate::system::{self, Bounds, Cheat, State, Step, System};

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

pub(crate) const SAFE: [&str; 5] = [
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
pub(crate) fn hand_over(cheat: Option<Cheat>) -> Bounds {
    Bounds {
        ticks: 2,
        faults: 0,
        hand_overs: 1,
        ..small(cheat)
    }
}

pub(crate) fn small(cheat: Option<Cheat>) -> Bounds {
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
pub(crate) fn check(bounds: Bounds, order: Order) -> usize {
    let text = format!("{bounds:?}");
    let reached = match bounds.hand_overs {
        0 => &REACHED,
        _ => &HANDED_OVER,
    };
    exhaustive::check(&text, System::new(bounds), order, (&SAFE, reached))
}
