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

use sabotage::FleetSabotage;
use state::Bounds;
use steps::{check, violated};

/// Requirement: B26, B32, B33
#[test]
fn every_order_of_two_engines_starts_one_deployment() {
    let states = check(Bounds {
        lost: 0,
        crashes: 0,
        ..Bounds::SMALL
    });
    assert!(states > 1000, "{states}");
}

/// Requirement: B32, B33, B44
#[test]
fn every_order_with_an_end_of_an_engine_keeps_one_lock() {
    let states = check(Bounds {
        crashes: 1,
        lost: 0,
        starts: false,
        ..Bounds::SMALL
    });
    assert!(states > 1000, "{states}");
}

/// A store that ignores versions lets two engines begin two deployments.
#[test]
fn writes_without_versions_are_noticed() {
    let found = violated(Bounds {
        guests: 1,
        is_blind: true,
        ..Bounds::SMALL
    });
    assert!(!found.is_empty(), "nothing is noticed");
}

/// Guests that take lower epochs carry out the orders of an engine that was overtaken.
#[test]
fn lower_epochs_are_noticed() {
    let found = violated(Bounds {
        guests: 1,
        crashes: 1,
        sabotage: Some(FleetSabotage::LowerEpochs),
        ..Bounds::SMALL
    });
    assert!(
        found.contains(&"F14: no guest takes a lower epoch"),
        "{found:?}"
    );
}

#[test]
fn probe() {
    let text = std::env::var("BOUNDS").unwrap_or_default();
    let n: Vec<u32> = text.split(',').filter_map(|t| t.parse().ok()).collect();
    if n.len() < 7 {
        return;
    }
    check(Bounds {
        guests: n[0],
        lost: n[1],
        refused: n[2],
        crashes: n[3],
        ticks: n[4],
        stops: n[5] > 0,
        starts: n[6] > 0,
        ..Bounds::SMALL
    });
}
