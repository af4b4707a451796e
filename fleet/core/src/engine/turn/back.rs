//! A turn that returns to the program of the image. No trial is needed: the image ran it before.

use protocol::fleet::{TurnResult, TurnSpec};
use protocol::parts::PartPhase;

use super::ending::Ending;
use super::finding::{Finding, PUSH_LIMIT, STOPPED, stop_of, unread};
use super::memory::Memory;
use super::{Decision, carried};
use crate::cause::{EndCause, Why};
use crate::engine::action::{Call, Now};
use crate::engine::standing::is_back;
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
    let ended = |cause, text: &str| Decision::End(Ending::new(TurnResult::Wait, cause, text));
    let released = |text: &str| ended(EndCause::Other, text);
    let unread = |text: &str| match unread(world, guest, turn, memory, now.monotonic, text) {
        Finding::At(step, Some(event), why) => carried(step, next(step, event), why, turn, 0, true),
        Finding::Kept | Finding::At(_, None, _) => Decision::Nothing,
    };
    let part = match &guest.observed {
        Observed::Unmanaged(reason) => return released(reason),
        Observed::Unreachable => return unread("its runner or its node does not answer"),
        Observed::Silent => return unread("its daemon does not answer"),
        Observed::Seen(part) => &part.state,
    };
    if is_back(part) {
        return Decision::End(Ending::kept());
    }
    if let Some(stop) = stop_of(world, guest, turn) {
        let to = next(Step::Push, stop);
        let why = Why::new(EndCause::Stopped, STOPPED);
        return carried(Step::Push, to, why, turn, 0, true);
    }
    if now.monotonic.since(memory.since) >= PUSH_LIMIT {
        return released("the guest did not go back in time");
    }
    if part.phase == PartPhase::Trial {
        return ended(EndCause::Busy, "busy: a program is on trial");
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
