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
mod steps;

use sabotage::FleetSabotage;
use state::Bounds;
use steps::{check, violated};

/// One guest keeps the program, and the next one has it on trial.
///
/// Requirement: B26, B32
#[test]
fn every_order_until_the_second_of_three_guests_holds() {
    check(Bounds {
        guests: 3,
        ..Bounds::SMALL
    });
}

/// Requirement: B33
#[test]
fn every_order_with_a_stop_and_another_start_holds() {
    check(Bounds {
        stops: true,
        starts: true,
        ..Bounds::SMALL
    });
}

/// Requirement: B33, B36
#[test]
fn every_order_with_a_lost_answer_and_a_stop_holds() {
    check(Bounds {
        lost: 1,
        stops: true,
        ..Bounds::SMALL
    });
}

/// Requirement: B38, B43, B44
#[test]
fn every_order_with_an_end_of_an_engine_holds() {
    check(Bounds {
        crashes: 1,
        ..Bounds::SMALL
    });
}

/// Guests that take lower epochs carry out the late order of a deployment that was stopped.
#[test]
fn lower_epochs_are_noticed() {
    let found = violated(Bounds {
        ticks: 0,
        stops: true,
        starts: true,
        sabotage: Some(FleetSabotage::LowerEpochs),
        ..Bounds::SMALL
    });
    let expected = "F14: no guest takes a lower epoch";
    assert!(found.contains(&expected), "{found:?}");
}
