//! The finalizer of an environment. It is there before the first deployment begins, and goes once
//! nothing of a deleted environment runs.

use super::action::Write;
use crate::world::World;

/// The write that adds the finalizer or takes it away.
pub(super) fn next(world: &World) -> Option<Write> {
    let environment = &world.environment;
    let mut deployments = world.deployments.iter();
    let runs = deployments.any(|one| !one.status.state.is_terminal());
    if !environment.is_deleted {
        return (runs && !environment.has_finalizer).then_some(Write::Finalizer(true));
    }
    let is_own = |turn: &protocol::fleet::TurnSpec| turn.environment == environment.name;
    let mut guests = world.guests.values();
    let is_open =
        guests.any(|guest| guest.is_in_flight() && guest.turn.as_ref().is_some_and(is_own));
    let is_over = !runs && !is_open && environment.status.lock.is_none();
    is_over.then_some(Write::Finalizer(false))
}
