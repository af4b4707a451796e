//! Two engines of one environment, without an election: every order of their writes and calls, of
//! lost answers, of their ends and of what people order, within bounds.
//!
//! The budget of guests that are away rests on one engine (decision 0072), so it is no property
//! here.

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

use state::Bounds;
use steps::{check, violated};

/// Requirement: B26, B32
#[test]
fn every_order_of_two_engines_starts_one_deployment() {
    let states = check(Bounds {
        ticks: 0,
        ..Bounds::SMALL
    });
    assert!(states > 1000, "{states}");
}

/// A store that ignores versions lets an engine begin a deployment that another one has canceled.
#[test]
fn writes_without_versions_are_noticed() {
    let found = violated(Bounds {
        ticks: 0,
        starts: true,
        is_blind: true,
        ..Bounds::SMALL
    });
    let expected = "F2: one deployment runs, and the lock names it";
    assert!(found.contains(&expected), "{found:?}");
}
