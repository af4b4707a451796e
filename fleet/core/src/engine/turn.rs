//! The turn of one guest: the next order, or its end.

use protocol::fleet::{DeploymentState, InstancePart, TurnEnd, TurnResult, TurnSpec, TurnVerb};
use protocol::parts::{PartPhase, PartSource};
use protocol::time::{Span, Timestamp, WallTime};

use super::action::{Call, Now, Outcome};
use super::standing;
use super::timing::Timing;
use crate::permit::Gate;
use crate::proof::{broken, health};
use crate::step::{Step, StepEvent, StepMove, next};
use crate::world::{Guest, Observed, PartFacts, World};

/// Time by which a guest's own limit is longer than the proof, seconds.
const MARGIN_SECONDS: u64 = 30;
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
    pub(super) ending: Option<(TurnResult, String)>,
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

/// What follows for a guest with a turn.
pub(super) enum Decision {
    Nothing,
    /// An order, and the end that it brings if it is the last one.
    Call(Call, Option<(TurnResult, String)>),
    End(TurnResult, String),
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
            (Call::Keep { .. }, Outcome::Done) => Some((TurnResult::Good, String::new())),
            (Call::Back { .. }, Outcome::Done | Outcome::GoneBack(_)) => self.ending.take(),
            (_, Outcome::NothingStaged) => {
                self.is_staged = false;
                None
            }
            (Call::Push(_) | Call::Try { .. }, Outcome::Refused(reason)) => {
                Some((TurnResult::Bad, reason))
            }
            (Call::Push(_) | Call::Try { .. }, Outcome::Busy(reason)) => {
                Some((TurnResult::Wait, format!("busy: {reason}")))
            }
            (Call::Push(_) | Call::Try { .. }, Outcome::Conflict) => Some((
                TurnResult::Wait,
                "the guest has seen a newer order".to_owned(),
            )),
            (Call::Push(_), Outcome::Transient(reason)) => Some((TurnResult::Wait, reason)),
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
    At(Step, Option<StepEvent>, String),
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
        return Decision::End(TurnResult::Skip, reason);
    }
    let is_on_trial = matches!(&guest.observed, Observed::Seen(part)
        if part.state.token == turn.token && part.state.phase == PartPhase::Trial);
    if let Some((result, reason)) = &memory.ending
        && (memory.is_final || (!is_on_trial && matches!(guest.observed, Observed::Seen(_))))
    {
        return Decision::End(*result, reason.clone());
    }
    let seconds = trial_seconds(world, turn) + MARGIN_SECONDS;
    if turn.verb == TurnVerb::Back {
        return back::decide(world, guest, turn, memory, now);
    }
    match finding(world, guest, turn, memory, now) {
        Finding::Kept => Decision::End(TurnResult::Good, String::new()),
        Finding::At(step, event, reason) => {
            let to = event.map_or(StepMove::Stay, |event| next(step, event));
            let may_call = now.monotonic >= memory.not_before;
            carried(step, to, reason, turn, seconds, may_call)
        }
    }
}

fn carried(
    step: Step,
    to: StepMove,
    reason: String,
    turn: &TurnSpec,
    seconds: u64,
    may_call: bool,
) -> Decision {
    let token = turn.token.clone();
    let epoch = turn.epoch;
    let back = |result| {
        let ending = Some((result, reason.clone()));
        Decision::Call(
            Call::Back {
                token: token.clone(),
            },
            ending,
        )
    };
    let decision = match to {
        StepMove::Bad => return Decision::End(TurnResult::Bad, reason),
        StepMove::Release => return Decision::End(TurnResult::Wait, reason),
        StepMove::Skip => return Decision::End(TurnResult::Skip, reason),
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
    let at = |step, event, reason: &str| Finding::At(step, Some(event), reason.to_owned());
    let unread = |reason: &str| unread(world, guest, turn, memory, now.monotonic, reason);
    let part = match &guest.observed {
        Observed::Unmanaged(reason) => return at(Step::Push, StepEvent::Transient, reason),
        Observed::Unreachable => return unread("its runner does not answer"),
        Observed::Silent => return unread("its daemon does not answer"),
        Observed::Seen(part) => part,
    };
    if !memory.boot.is_empty() && !guest.boot.is_empty() && memory.boot != guest.boot {
        return at(Step::Push, StepEvent::BootChanged, "the guest began again");
    }
    let runs_it = part.state.sha256 == turn.sha256;
    let is_ours = part.state.token == turn.token;
    match part.state.phase {
        PartPhase::Settled if runs_it => Finding::Kept,
        PartPhase::Trial if is_ours => on_trial(world, guest, turn, part),
        PartPhase::Back if is_ours && part.is_expired && !memory.was_silent => at(
            Step::Trial,
            StepEvent::Expired,
            "the trial ended before the host kept the program",
        ),
        PartPhase::Back if is_ours => {
            let reason = if part.state.reason.is_empty() {
                "the guest went back"
            } else {
                &part.state.reason
            };
            // It has gone back: there is nothing to take back.
            let is_stopped = stop_of(world, guest, turn).is_some() && reason.contains("host");
            let event = if is_stopped {
                StepEvent::Stop { may_finish: false }
            } else {
                StepEvent::Broken
            };
            at(Step::Push, event, reason)
        }
        PartPhase::Staged if is_ours => staged(world, guest, turn, now.wall),
        _ if memory.is_staged => staged(world, guest, turn, now.wall),
        _ => match stop_of(world, guest, turn) {
            Some(stop) => at(Step::Push, stop, "its deployment ended"),
            None => Finding::At(Step::Push, None, String::new()),
        },
    }
}

fn staged(world: &World, guest: &Guest, turn: &TurnSpec, now: WallTime) -> Finding {
    let at = |event, reason: &str| Finding::At(Step::Push, Some(event), reason.to_owned());
    if let Some(stop) = stop_of(world, guest, turn) {
        return at(stop, "its deployment ended");
    }
    let gate = guest.gate.or_else(|| window_gate(world, guest, turn, now));
    match gate {
        Some(gate) => at(StepEvent::PushedBehindGate, gate.detail()),
        None => at(StepEvent::Pushed, ""),
    }
}

/// The window may have closed since the turn was given.
fn window_gate(world: &World, guest: &Guest, turn: &TurnSpec, now: WallTime) -> Option<Gate> {
    let mut all = world.deployments.iter();
    let kind = all.find(|one| one.name == turn.deployment)?.spec.kind;
    let timing = Timing::new(world, kind, trial_seconds(world, turn), now);
    timing.waits_for_window(guest).then_some(Gate::Window)
}

fn on_trial(world: &World, guest: &Guest, turn: &TurnSpec, part: &PartFacts) -> Finding {
    let given = trial_seconds(world, turn) + MARGIN_SECONDS;
    let ran = given.saturating_sub(part.state.left_s);
    if let Some(reason) = broken(&part.state, &guest.facts, &turn.sha256, ran) {
        return Finding::At(Step::Trial, Some(StepEvent::Broken), reason);
    }
    if let Some(stop @ StepEvent::Stop { may_finish: false }) = stop_of(world, guest, turn) {
        return Finding::At(Step::Trial, Some(stop), "its deployment ended".to_owned());
    }
    let event = (part.state.left_s <= MARGIN_SECONDS).then_some(StepEvent::Proven);
    Finding::At(Step::Trial, event, String::new())
}

/// A guest whose state cannot be read.
fn unread(
    world: &World,
    guest: &Guest,
    turn: &TurnSpec,
    memory: &Memory,
    now: Timestamp,
    reason: &str,
) -> Finding {
    let Some(tried) = memory.tried else {
        let is_late = now.since(memory.since) >= PUSH_LIMIT;
        let event = is_late.then_some(StepEvent::Transient);
        // Without an event nothing is sent: an order to a guest that does not answer is lost.
        let step = if is_late { Step::Push } else { Step::Ended };
        return Finding::At(step, event, reason.to_owned());
    };
    let seconds = trial_seconds(world, turn) + MARGIN_SECONDS;
    if now.since(tried) < Span(Span::from_secs(seconds).0 + SILENCE_LIMIT.0) {
        return Finding::At(Step::Ended, None, String::new());
    }
    let event = if guest.observed == Observed::Silent {
        StepEvent::Broken
    } else {
        StepEvent::Transient
    };
    // The trial is over in the guest, so nothing is left to take back.
    Finding::At(Step::Push, Some(event), format!("{reason} since its trial"))
}

/// State of the part with the end of its turn.
pub(super) fn ended_part(
    guest: &Guest,
    result: TurnResult,
    reason: String,
    at: WallTime,
) -> Option<InstancePart> {
    let turn = guest.turn.as_ref()?;
    let seen = match &guest.observed {
        Observed::Seen(part) => Some(&part.state),
        _ => None,
    };
    let is_good = result == TurnResult::Good;
    let is_brought = is_good && turn.verb == TurnVerb::Try;
    let text = |of_turn: &String, seen: Option<&String>| {
        let shown = if is_brought { Some(of_turn) } else { seen };
        shown.cloned().unwrap_or_default()
    };
    Some(InstancePart {
        version: text(&turn.version, seen.map(|part| &part.version)),
        sha256: text(&turn.sha256, seen.map(|part| &part.sha256)),
        from: seen.map_or(PartSource::Image, |part| part.from),
        phase: match seen.map(|part| part.phase) {
            _ if is_good => PartPhase::Settled,
            // It was taken back since the report.
            Some(PartPhase::Trial) | None => PartPhase::Back,
            Some(phase) => phase,
        },
        healthy: is_good || health(guest) == Some(true),
        last: TurnEnd {
            token: turn.token.clone(),
            result,
            reason,
            at,
        },
    })
}

/// Length of the pause after a turn that was given back or ended badly.
pub(super) fn pause(releases: u32) -> Span {
    Span::from_secs((30_u64 << releases.min(6)).min(standing::LONGEST_PAUSE_SECONDS))
}
