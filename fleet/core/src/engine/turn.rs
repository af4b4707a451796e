//! The turn of one guest: the next order, or its end.

use protocol::fleet::{TurnResult, TurnSpec, TurnVerb};
use protocol::parts::PartPhase;

use super::action::{Call, Now};
use crate::cause::{EndCause, Why};
use crate::step::{Step, StepMove, next};
use crate::world::{Guest, Observed, World};

mod back;
mod ending;
mod finding;
mod memory;

pub(super) use ending::{Ending, ended_part};
pub(crate) use finding::MARGIN_SECONDS;
use finding::{Finding, finding, trial_seconds};
pub(super) use memory::{Memory, pause};

/// What follows for a guest with a turn.
pub(super) enum Decision {
    Nothing,
    /// An order, and the end that it brings if it is the last one.
    Call(Call, Option<Ending>),
    End(Ending),
}

/// The next order to a guest, or the end of its turn.
pub(super) fn decide(world: &World, guest: &Guest, memory: &Memory, now: Now) -> Decision {
    let Some(turn) = guest.turn.as_ref().filter(|_| guest.is_in_flight()) else {
        return Decision::Nothing;
    };
    if turn.environment != world.environment.name || memory.token != turn.token {
        return Decision::Nothing;
    }
    let revision = world.revisions.get(&turn.revision);
    let is_other = revision.is_some_and(|one| one.program.sha256 != turn.sha256);
    if is_other && turn.verb == TurnVerb::Try && memory.tried.is_none() {
        let reason = format!("names another program than revision {}", turn.revision);
        return Decision::End(Ending::new(TurnResult::Skip, EndCause::Other, reason));
    }
    let is_on_trial = matches!(&guest.observed, Observed::Seen(part)
        if part.state.token == turn.token && part.state.phase == PartPhase::Trial);
    if let Some(ending) = &memory.ending
        && (memory.is_final || (!is_on_trial && matches!(guest.observed, Observed::Seen(_))))
    {
        return Decision::End(ending.clone());
    }
    let seconds = trial_seconds(world, turn) + MARGIN_SECONDS;
    if turn.verb == TurnVerb::Back {
        return back::decide(world, guest, turn, memory, now);
    }
    match finding(world, guest, turn, memory, now) {
        Finding::Kept => Decision::End(Ending::kept()),
        Finding::At(step, event, why) => {
            let to = event.map_or(StepMove::Stay, |event| next(step, event));
            let may_call = now.monotonic >= memory.not_before;
            carried(step, to, why, turn, seconds, may_call)
        }
    }
}

fn carried(
    step: Step,
    to: StepMove,
    why: Why,
    turn: &TurnSpec,
    seconds: u64,
    may_call: bool,
) -> Decision {
    let token = turn.token.clone();
    let epoch = turn.epoch;
    let back = |result| {
        let why = why.clone();
        let ending = Some(Ending { result, why });
        Decision::Call(
            Call::Back {
                token: token.clone(),
            },
            ending,
        )
    };
    let end = |result| {
        let why = why.clone();
        Decision::End(Ending { result, why })
    };
    let decision = match to {
        StepMove::Bad => return end(TurnResult::Bad),
        StepMove::Release => return end(TurnResult::Wait),
        StepMove::Skip => return end(TurnResult::Skip),
        StepMove::Try => Decision::Call(
            Call::Try {
                token,
                epoch,
                seconds,
            },
            None,
        ),
        StepMove::Keep => Decision::Call(Call::Keep { token }, None),
        StepMove::BackBad => back(TurnResult::Bad),
        StepMove::BackRelease => back(TurnResult::Wait),
        StepMove::BackSkip => back(TurnResult::Skip),
        StepMove::Push => Decision::Call(Call::Push(turn.clone()), None),
        StepMove::Stay if matches!(step, Step::Push) => {
            Decision::Call(Call::Push(turn.clone()), None)
        }
        StepMove::Stay | StepMove::Ignored => Decision::Nothing,
    };
    if may_call {
        decision
    } else {
        Decision::Nothing
    }
}
