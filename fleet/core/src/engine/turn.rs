//! The turn of one guest: the next order, or its end.

use protocol::fleet::{DeploymentState, TurnResult, TurnSpec, TurnVerb};
use protocol::parts::PartPhase;
use protocol::time::{Span, Timestamp, WallTime};

use super::action::{Call, Now, Outcome};
use super::standing;
use super::timing::Timing;
use crate::cause::{EndCause, Why};
use crate::permit::Gate;
use crate::proof::{Proof, Trial, prove};
use crate::step::{Step, StepEvent, StepMove, next};
use crate::world::{Guest, Observed, PartFacts, Returned, World};

/// Time by which a guest's own limit is longer than the proof, seconds.
pub(crate) const MARGIN_SECONDS: u64 = 30;
/// Before the guest's own limit, in which an open proof is given up, seconds.
const LAST_SECONDS: u64 = 10;
const STOPPED: &str = "its deployment ended";
/// Longest time in which a program is brought.
const PUSH_LIMIT: Span = Span::from_secs(300);
/// From the end of a trial until a guest that does not answer is given up.
const SILENCE_LIMIT: Span = Span::from_secs(30);
/// Time behind a gate of its own after which a guest no longer holds its group.
const DEFERRED_AFTER: Span = Span::from_secs(3600);
/// After an order that failed.
const CALL_AGAIN: Span = Span::from_secs(5);

/// What this run of the engine knows about a guest beyond the objects.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    token: String,
    /// Boot at the first look at this turn.
    boot: String,
    since: Timestamp,
    is_staged: bool,
    tried: Option<Timestamp>,
    /// The guest did not answer during the trial although its runner did.
    was_silent: bool,
    /// End that follows as soon as the program is off trial.
    pub(super) ending: Option<Ending>,
    /// The end is certain: no further order is needed.
    is_final: bool,
    not_before: Timestamp,
    /// Its own gate has been closed since.
    held_since: Option<Timestamp>,
    /// Its record is not written before this time.
    no_write_before: Timestamp,
    /// Writes of its record that were refused in a row.
    refused_writes: u32,
    /// Turns that were given back in a row.
    pub(super) releases: u32,
}

mod back;
mod ending;

use ending::Ending;
pub(super) use ending::ended_part;

/// What follows for a guest with a turn.
pub(super) enum Decision {
    Nothing,
    /// An order, and the end that it brings if it is the last one.
    Call(Call, Option<Ending>),
    End(Ending),
}

impl Memory {
    pub(super) fn observe(&mut self, guest: &Guest, now: Timestamp) {
        let token = guest.turn.as_ref().map_or("", |turn| &turn.token);
        if self.token != token {
            *self = Self {
                token: token.to_owned(),
                boot: guest.boot.clone(),
                since: now,
                releases: self.releases,
                held_since: self.held_since,
                no_write_before: self.no_write_before,
                refused_writes: self.refused_writes,
                ..Self::default()
            };
        }
        let is_held = guest.gate.is_some() && !guest.is_in_flight();
        self.held_since = is_held.then(|| self.held_since.unwrap_or(now));
        if self.tried.is_some() && guest.observed == Observed::Silent {
            self.was_silent = true;
        }
    }

    /// Whether its own gate has been closed for so long that others go on without it.
    pub(super) fn is_deferred(&self, now: Timestamp) -> bool {
        self.held_since
            .is_some_and(|since| now.since(since) >= DEFERRED_AFTER)
    }

    /// A write of its record has ended. One that is refused must not hold the others.
    pub(super) fn written(&mut self, outcome: &Outcome, now: Timestamp) {
        match outcome {
            Outcome::Done => self.refused_writes = 0,
            Outcome::Refused(_) => {
                self.no_write_before = now + pause(self.refused_writes);
                self.refused_writes = self.refused_writes.saturating_add(1);
            }
            _ => {}
        }
    }

    /// Whether its record may be written.
    pub(super) fn may_write(&self, now: Timestamp) -> bool {
        now >= self.no_write_before
    }

    pub(super) const fn ended(&mut self, result: TurnResult) {
        match result {
            TurnResult::Wait => self.releases = self.releases.saturating_add(1),
            TurnResult::Good | TurnResult::Bad | TurnResult::Skip => self.releases = 0,
        }
    }

    pub(super) fn called(&mut self, call: &Call, outcome: Outcome, now: Timestamp) {
        if *token_of(call) != self.token {
            return;
        }
        let end = match (call, outcome) {
            (Call::Push(_), Outcome::Done) => {
                self.is_staged = true;
                None
            }
            (Call::Try { .. }, Outcome::Done) => {
                self.tried = Some(now);
                None
            }
            (Call::Keep { .. }, Outcome::Done) => Some(Ending::kept()),
            (Call::Back { .. }, Outcome::Done | Outcome::GoneBack(_)) => self.ending.take(),
            (_, Outcome::NothingStaged) => {
                self.is_staged = false;
                None
            }
            (Call::Push(_) | Call::Try { .. }, Outcome::Refused(reason)) => {
                Some(Ending::new(TurnResult::Bad, EndCause::Other, reason))
            }
            (Call::Push(_) | Call::Try { .. }, Outcome::Busy(reason)) => {
                let text = format!("busy: {reason}");
                Some(Ending::new(TurnResult::Wait, EndCause::Busy, text))
            }
            (Call::Push(_) | Call::Try { .. }, Outcome::Conflict) => Some(Ending::new(
                TurnResult::Wait,
                EndCause::Other,
                "the guest has seen a newer order",
            )),
            (Call::Push(_), Outcome::Transient(reason)) => {
                Some(Ending::new(TurnResult::Wait, EndCause::Other, reason))
            }
            (Call::Try { .. }, Outcome::Transient(_)) => {
                // It may have begun. What the guest reports next decides.
                self.tried = Some(now);
                None
            }
            _ => None,
        };
        match end {
            Some(end) => {
                self.ending = Some(end);
                self.is_final = true;
            }
            None => self.not_before = now + CALL_AGAIN,
        }
        if self.is_staged && matches!(call, Call::Push(_)) {
            self.not_before = now;
        }
    }
}

fn token_of(call: &Call) -> &String {
    match call {
        Call::Push(turn) => &turn.token,
        Call::Try { token, .. } | Call::Keep { token } | Call::Back { token } => token,
    }
}

/// What was concluded about a turn from the guest's report.
enum Finding {
    /// The program is kept.
    Kept,
    /// The turn goes on from a step, by an event if there is one.
    At(Step, Option<StepEvent>, Why),
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

/// Whether the turn's deployment gives turns, may let trials finish, or neither.
fn stop_of(world: &World, guest: &Guest, turn: &TurnSpec) -> Option<StepEvent> {
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

fn trial_seconds(world: &World, turn: &TurnSpec) -> u64 {
    let revision = world.revisions.get(&turn.revision);
    revision.map_or(60, |revision| revision.rollout.trial_seconds)
}

fn finding(world: &World, guest: &Guest, turn: &TurnSpec, memory: &Memory, now: Now) -> Finding {
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
fn unread(
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

/// Length of the pause after a turn that was given back or ended badly.
pub(super) fn pause(releases: u32) -> Span {
    Span::from_secs((30_u64 << releases.min(6)).min(standing::LONGEST_PAUSE_SECONDS))
}
