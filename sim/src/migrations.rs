//! Live migrations with the shipped cores. The scheduler chooses and places, the controller carries
//! out, and two runners move the guest between their QEMUs. The world loses, delays and reorders
//! messages, and kills components.
//!
//! This world is separate from [`crate::world`]. A VM there has one machine, and its size matters.
//! A VM here has two machines, and their ownership of the guest matters. Sizes do not change. The
//! seed draws the next step from all that are possible, so that every order of messages occurs.
//!
//! Invariants, checked after every step: no VM has two guests that run ([`Broken::TwoGuests`]). A
//! guest is lost only if its QEMU was killed ([`Broken::LostGuest`]). No pod is bound to a node
//! that lacks room for it ([`Broken::Overcommitted`]). After the fault phase every VM has one guest
//! that runs, and no migration has left a trace ([`Broken::Unsettled`]).

mod api;
mod check;
mod controller;
mod outcome;
mod runner;
mod scheduler;
mod steps;
mod world;

use serde_json::Value;

use api::{Change, Kind};
use world::MigrationWorld;

pub use outcome::{Broken, Cheat, Outcome};

/// Runs one seed for `steps` steps of faults, and then until the world is at rest.
#[must_use]
pub fn run(seed: u64, steps: u64, cheat: Option<Cheat>) -> Outcome {
    let mut moves = MigrationWorld::new(seed, cheat);
    while moves.outcome.steps < steps && moves.outcome.broken.is_none() {
        moves.step();
    }
    if moves.outcome.broken.is_none() {
        moves.settle();
    }
    moves.outcome.lost = moves
        .booted
        .iter()
        .map(|count| count.saturating_sub(1))
        .sum();
    moves.outcome.by_scheduler = moves.scheduler.begun;
    for change in moves.objects.log() {
        let Change {
            kind,
            value,
            gone,
            before,
            ..
        } = change;
        if *kind == Kind::Move && !gone {
            let phase = |value: &Value| {
                value["status"]["phase"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            };
            let (was, is) = (before.as_ref().map(phase), phase(value));
            if was.as_deref() != Some(is.as_str()) {
                match is.as_str() {
                    "Succeeded" => moves.outcome.moved[0] += 1,
                    "Failed" => moves.outcome.moved[1] += 1,
                    _ => {}
                }
            }
        }
    }
    moves.outcome
}
