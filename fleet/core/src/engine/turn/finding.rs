//! What a guest's report says about its turn.

use protocol::fleet::{DeploymentState, TurnSpec, TurnVerb};
use protocol::parts::PartPhase;
use protocol::time::{Span, Timestamp, WallTime};

use super::memory::Memory;
use crate::cause::{EndCause, Why};
use crate::engine::action::Now;
use crate::engine::timing::Timing;
use crate::permit::Gate;
use crate::proof::{Proof, Trial, prove};
use crate::step::{Step, StepEvent};
use crate::world::{Guest, Observed, PartFacts, Returned, World};

/// Time by which a guest's own limit is longer than the proof, seconds.
pub(crate) const MARGIN_SECONDS: u64 = 30;
/// Before the guest's own limit, in which an open proof is given up, seconds.
const LAST_SECONDS: u64 = 10;
pub(super) const STOPPED: &str = "its deployment ended";
/// Longest time in which a program is brought.
pub(super) const PUSH_LIMIT: Span = Span::from_secs(300);
/// From the end of a trial until a guest that does not answer is given up.
const SILENCE_LIMIT: Span = Span::from_secs(30);

/// What was concluded about a turn from the guest's report.
pub(super) enum Finding {
    /// The program is kept.
    Kept,
    /// The turn goes on from a step, by an event if there is one.
    At(Step, Option<StepEvent>, Why),
}

/// Whether the turn's deployment gives turns, may let trials finish, or neither.
pub(super) fn stop_of(world: &World, guest: &Guest, turn: &TurnSpec) -> Option<StepEvent> {
    let stop = |may_finish| Some(StepEvent::Stop { may_finish });
    let of_turn = |one: &&crate::world::Deployment| one.name == turn.deployment;
    let Some(deployment) = world.deployments.iter().find(of_turn) else {
        return stop(false);
    };
    let status = &deployment.status;
    match status.state {
        DeploymentState::InProgress | DeploymentState::Blocked if belongs(guest, turn) => None,
        DeploymentState::InProgress | DeploymentState::Blocked => stop(true),
        DeploymentState::ToBeStopped => stop(status.ending != Some(DeploymentState::Unhealthy)),
        _ => stop(false),
    }
}

/// Whether the guest is still one for this turn: no label keeps it out or moved it.
const fn belongs(guest: &Guest, turn: &TurnSpec) -> bool {
    let is_back = matches!(turn.verb, TurnVerb::Back);
    guest.is_enrolled && (is_back || !guest.has_left)
}

pub(super) fn trial_seconds(world: &World, turn: &TurnSpec) -> u64 {
    let revision = world.revisions.get(&turn.revision);
    revision.map_or(60, |revision| revision.rollout.trial_seconds)
}

pub(super) fn finding(
    world: &World,
    guest: &Guest,
    turn: &TurnSpec,
    memory: &Memory,
    now: Now,
) -> Finding {
    let at = |step, event, cause, text: &str| Finding::At(step, Some(event), Why::new(cause, text));
    let unread = |text: &str| unread(world, guest, turn, memory, now.monotonic, text);
    let part = match &guest.observed {
        Observed::Unmanaged(text) => {
            return at(Step::Push, StepEvent::Transient, EndCause::Other, text);
        }
        Observed::Unreachable => return unread("its runner or its node does not answer"),
        Observed::Silent => return unread("its daemon does not answer"),
        Observed::Seen(part) => part,
    };
    if !memory.boot.is_empty() && !guest.boot.is_empty() && memory.boot != guest.boot {
        let text = "the guest began again";
        return at(Step::Push, StepEvent::BootChanged, EndCause::Other, text);
    }
    let runs_it = part.state.sha256 == turn.sha256;
    let is_ours = part.state.token == turn.token;
    match part.state.phase {
        PartPhase::Settled if runs_it => Finding::Kept,
        PartPhase::Trial if is_ours => on_trial(world, guest, turn, part, now.wall),
        PartPhase::Back if is_ours && part.returned == Returned::NotKept && !memory.was_silent => {
            let text = "the trial ended before the host kept the program";
            at(Step::Trial, StepEvent::Expired, EndCause::Other, text)
        }
        PartPhase::Back if is_ours => {
            let is_stopped = stop_of(world, guest, turn).is_some();
            went_back(part, is_stopped)
        }
        PartPhase::Staged if is_ours => staged(world, guest, turn, now.wall),
        _ if memory.is_staged => staged(world, guest, turn, now.wall),
        _ => match stop_of(world, guest, turn) {
            Some(stop) => at(Step::Push, stop, EndCause::Stopped, STOPPED),
            None => Finding::At(Step::Push, None, Why::new(EndCause::Other, "")),
        },
    }
}

/// A guest that has gone back: there is nothing to take back.
fn went_back(part: &PartFacts, is_stopped: bool) -> Finding {
    let text = match part.state.reason.as_str() {
        "" => "the guest went back",
        reason => reason,
    };
    let (event, cause) = match part.returned {
        Returned::ByHost | Returned::NotKept if is_stopped => {
            let stop = StepEvent::Stop { may_finish: false };
            (stop, EndCause::Stopped)
        }
        Returned::ByHost | Returned::NotKept => (StepEvent::Broken, EndCause::Other),
        Returned::Ended => (StepEvent::Broken, EndCause::Ended),
    };
    Finding::At(Step::Push, Some(event), Why::new(cause, text))
}

fn staged(world: &World, guest: &Guest, turn: &TurnSpec, now: WallTime) -> Finding {
    let at = |event, cause, text: &str| Finding::At(Step::Push, Some(event), Why::new(cause, text));
    if let Some(stop) = stop_of(world, guest, turn) {
        return at(stop, EndCause::Stopped, STOPPED);
    }
    let gate = guest.gate.or_else(|| window_gate(world, guest, turn, now));
    match gate {
        Some(gate) => at(StepEvent::PushedBehindGate, EndCause::Other, gate.detail()),
        None => at(StepEvent::Pushed, EndCause::Other, ""),
    }
}

/// The window may have closed since the turn was given.
fn window_gate(world: &World, guest: &Guest, turn: &TurnSpec, now: WallTime) -> Option<Gate> {
    let mut all = world.deployments.iter();
    let kind = all.find(|one| one.name == turn.deployment)?.spec.kind;
    let timing = Timing::new(world, kind, trial_seconds(world, turn), now);
    timing.waits_for_window(guest).then_some(Gate::Window)
}

fn on_trial(
    world: &World,
    guest: &Guest,
    turn: &TurnSpec,
    part: &PartFacts,
    now: WallTime,
) -> Finding {
    let at = |event, why| Finding::At(Step::Trial, event, why);
    let left = part.state.left_s;
    let given = trial_seconds(world, turn) + MARGIN_SECONDS;
    let ran_seconds = given.saturating_sub(left);
    let trial = Trial {
        part: &part.state,
        sha256: &turn.sha256,
        ran_seconds,
        now,
    };
    let proof = prove(&trial, &guest.facts);
    if let Proof::Broken(why) = proof {
        return at(Some(StepEvent::Broken), why);
    }
    if let Some(stop @ StepEvent::Stop { may_finish: false }) = stop_of(world, guest, turn) {
        return at(Some(stop), Why::new(EndCause::Stopped, STOPPED));
    }
    match proof {
        Proof::Open(why) if left <= LAST_SECONDS => at(Some(StepEvent::Transient), why),
        Proof::Open(why) | Proof::Broken(why) => at(None, why),
        Proof::Whole => {
            let event = (left <= MARGIN_SECONDS).then_some(StepEvent::Proven);
            at(event, Why::new(EndCause::Other, ""))
        }
    }
}

/// A guest whose state cannot be read.
pub(super) fn unread(
    world: &World,
    guest: &Guest,
    turn: &TurnSpec,
    memory: &Memory,
    now: Timestamp,
    text: &str,
) -> Finding {
    let Some(tried) = memory.tried else {
        let is_late = now.since(memory.since) >= PUSH_LIMIT;
        let event = is_late.then_some(StepEvent::Transient);
        // Without an event nothing is sent: an order to a guest that does not answer is lost.
        let step = if is_late { Step::Push } else { Step::Ended };
        return Finding::At(step, event, Why::new(EndCause::Unanswered, text));
    };
    let seconds = trial_seconds(world, turn) + MARGIN_SECONDS;
    if now.since(tried) < Span(Span::from_secs(seconds).0 + SILENCE_LIMIT.0) {
        return Finding::At(Step::Ended, None, Why::new(EndCause::Unanswered, text));
    }
    let event = if guest.observed == Observed::Silent {
        StepEvent::Broken
    } else {
        StepEvent::Transient
    };
    // The trial is over in the guest, so nothing is left to take back.
    let why = Why::new(EndCause::Unanswered, format!("{text} since its trial"));
    Finding::At(Step::Push, Some(event), why)
}
