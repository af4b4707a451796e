//! Migration, model-checked: the shipped core under every order of growing and shrinking, making, moving, failing,
//! observing, losing and waiting, up to a bound (mission N23, N24, N25).
//!
//! Real is the core whole. Played are agents, the API server with watches that lag, and the VMs' controller that moves.

mod exhaustive;
mod moves;

use stateright::{Checker, HasDiscoveries, Model, Property};

use moves::{Bounds, State, Step, System};
use scheduler::core::migrate::MigrationRule;

const RULE: &str = "N24: begun only while logical + capacity > accounted";
const ALONE: &str = "N25: nobody is moved again within its pause";
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
fn bounds(rule: MigrationRule) -> [Bounds; 3] {
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
fn check(bounds: Bounds, reach: &[&'static str]) {
    let text = format!("{bounds:?}");
    exhaustive::check(&text, System::new(bounds), &SAFE, reach);
}

#[test]
fn n23_n24_n25_every_order_of_two_vms_holds() {
    let [asking, waiting, losing] = bounds(MigrationRule::default());
    let (arrives, fails) = ("a VM arrives", "a migration fails");
    let denied = "one is moved for what it was denied";
    check(waiting, &[arrives, fails]);
    check(losing, &[arrives]);
    check(asking, &[arrives, fails, denied]);
}

/// `cargo xtask model`: minutes.
#[test]
fn n23_n24_n25_every_order_of_three_vms_holds() {
    if !exhaustive::is_large() {
        return;
    }
    for max_per_node in [0, 1] {
        let rule = MigrationRule {
            max_per_node,
            ..MigrationRule::default()
        };
        for bounds in bounds(rule) {
            let bounds = Bounds {
                vms: 3,
                objects: 3,
                ..bounds
            };
            check(bounds, &["a VM arrives"]);
        }
    }
}

/// The model can fail: what the deployed rule lacks is missed.
#[test]
fn n25_the_deployed_rule_moves_a_vm_again_at_once() {
    let found = HasDiscoveries::AllOf([ALONE].into());
    let [asking, ..] = bounds(MigrationRule::deployed());
    let system = System::new(asking);
    let checker = system.checker().finish_when(found).spawn_bfs().join();
    assert!(checker.discovery(ALONE).is_some(), "it has a pause");
}
