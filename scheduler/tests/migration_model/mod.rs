//! The model of migration: what holds in every state, and the bounds.

use scheduler::core::migrate::MigrationRule;
use stateright::{Model, Property};

use crate::exhaustive::{self, Order};
use crate::migration_world::{Bounds, State, Step, System};

const RULE: &str = "N24: begun only while logical + capacity > accounted";
pub(crate) const ALONE: &str = "N25: nobody is moved again within its pause";
const BOUND: &str = "no more leave at a time than may";
const ONCE: &str = "no VM is moved twice at once";
const LEVEL: &str = "pressure that can be relieved is, whatever was missed";

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
        Some(self.after(before, step))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(RULE, |_, state: &State| !state.broken.rule),
            Property::always(ALONE, |_, state: &State| !state.broken.alone),
            Property::always(BOUND, |_, state: &State| !state.broken.bound),
            Property::always(ONCE, |_, state: &State| !state.moves_twice()),
            Property::always(LEVEL, |system: &Self, state| !system.sleeps(state)),
            // What makes the rest mean something.
            Property::sometimes("one is moved for what it was denied", |_, state: &State| {
                state.reached.for_denied
            }),
            Property::sometimes("a VM arrives", |_, state: &State| state.reached.arrived),
            Property::sometimes("a migration fails", |_, state: &State| state.reached.failed),
        ]
    }
}

const SAFE: [&str; 5] = [RULE, ALONE, BOUND, ONCE, LEVEL];

/// What may happen in one run; each bound is small in most and larger in some.
pub(crate) fn bounds(rule: MigrationRule) -> [Bounds; 3] {
    let asking = Bounds {
        vms: 2,
        rule,
        asks: 1,
        failures: 1,
        losses: 0,
        pauses: 1,
        // Until a node is looked at again; a wish lasts longer.
        pause: 5,
        objects: 2,
    };
    let waiting = Bounds {
        asks: 0,
        // Beyond the first pause of a VM, and until what got nowhere is cancelled.
        pause: 61,
        ..asking.clone()
    };
    let losing = Bounds {
        failures: 0,
        losses: 1,
        ..waiting.clone()
    };
    [asking, waiting, losing]
}

/// Checks every reachable state; `reach` is what has to be there.
pub(crate) fn check(bounds: Bounds, order: Order, reach: &[&'static str]) {
    let text = format!("{bounds:?}");
    exhaustive::check(&text, System::new(bounds), order, (&SAFE, reach));
}
