//! What an event writes into a deployment.

use protocol::fleet::DeploymentState;
use protocol::time::WallTime;

use super::action::Write;
use crate::deployment::{DeploymentEvent, Move, next as table};
use crate::world::Deployment;

/// The write of an event's consequence. `None` if the state stays.
pub(super) fn moved(
    one: &Deployment,
    event: DeploymentEvent,
    evidence: Vec<String>,
    now: WallTime,
) -> Option<Write> {
    let mut status = one.status.clone();
    match table(status.state, one.spec.kind, event) {
        Move::Ignored | Move::Stay | Move::Quit | Move::RollBack => return None,
        Move::To(state) => status.state = state,
        Move::StopFor(ending) => {
            if status.ending == Some(ending) {
                return None;
            }
            status.state = DeploymentState::ToBeStopped;
            status.ending = Some(ending);
        }
        Move::End => {
            status.state = status.ending.take().unwrap_or(DeploymentState::Stopped);
        }
    }
    status.evidence.extend(evidence);
    status.blocked_by = None;
    if status.state.is_terminal() {
        status.ending = None;
        status.ended_at = Some(now);
    }
    Some(Write::Deployment {
        name: one.name.clone(),
        status,
    })
}
