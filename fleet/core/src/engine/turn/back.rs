//! A turn that returns to the program of the image. No trial is needed: the image ran it before.

use protocol::fleet::{TurnResult, TurnSpec};
use protocol::parts::PartPhase;

use super::{Decision, Memory, PUSH_LIMIT, carried, stop_of, unread};
use crate::engine::action::{Call, Now};
use crate::engine::standing::is_back;
use crate::engine::turn::Finding;
use crate::step::{Step, next};
use crate::world::{Guest, Observed, World};

/// The next order to a guest, or the end of its turn.
pub(super) fn decide(
    world: &World,
    guest: &Guest,
    turn: &TurnSpec,
    memory: &Memory,
    now: Now,
) -> Decision {
    let released = |reason: &str| Decision::End(TurnResult::Wait, reason.to_owned());
    let unread = |reason: &str| match unread(world, guest, turn, memory, now.monotonic, reason) {
        Finding::At(step, Some(event), reason) => {
            carried(step, next(step, event), reason, turn, 0, true)
        }
        Finding::Kept | Finding::At(_, None, _) => Decision::Nothing,
    };
    let part = match &guest.observed {
        Observed::Unmanaged(reason) => return released(reason),
        Observed::Unreachable => return unread("its runner does not answer"),
        Observed::Silent => return unread("its daemon does not answer"),
        Observed::Seen(part) => &part.state,
    };
    if is_back(part) {
        return Decision::End(TurnResult::Good, String::new());
    }
    if let Some(stop) = stop_of(world, guest, turn) {
        let to = next(Step::Push, stop);
        return carried(
            Step::Push,
            to,
            "its deployment ended".to_owned(),
            turn,
            0,
            true,
        );
    }
    if now.monotonic.since(memory.since) >= PUSH_LIMIT {
        return released("the guest did not go back in time");
    }
    if part.phase == PartPhase::Trial {
        return released("busy: a program is on trial");
    }
    if let Some(gate) = guest.gate {
        return released(gate.detail());
    }
    let token = turn.token.clone();
    match now.monotonic >= memory.not_before {
        true => Decision::Call(Call::Back { token }, None),
        false => Decision::Nothing,
    }
}
