//! The model of two engines in bounds that take minutes. `cargo xtask model` runs it; an ordinary
//! test run does not build it to run (`test = false` in `Cargo.toml`).

#[path = "simulation/guest.rs"]
#[allow(dead_code, reason = "the simulation plays more")]
mod guest;
#[path = "model/objects.rs"]
mod objects;
#[path = "simulation/sabotage.rs"]
#[allow(dead_code, reason = "the simulation plants more")]
mod sabotage;
#[path = "model/state.rs"]
mod state;
#[path = "model/steps.rs"]
#[allow(dead_code, reason = "planted faults are the smaller model's own")]
mod steps;

use state::Bounds;
use steps::check;

/// Requirement: B26, B32, B33, B43, B44
#[test]
fn every_order_of_two_engines_and_three_guests_holds() {
    check(Bounds {
        guests: 3,
        ..Bounds::SMALL
    });
}
