//! What is known about a guest's turn beyond the objects.

use protocol::fleet::TurnResult;
use protocol::time::{Span, Timestamp};

use super::ending::Ending;
use crate::cause::EndCause;
use crate::engine::action::{Call, Outcome};
use crate::engine::standing;
use crate::world::{Guest, Observed};

/// Time behind a gate of its own after which a guest no longer holds its group.
const DEFERRED_AFTER: Span = Span::from_secs(3600);
/// After an order that failed.
const CALL_AGAIN: Span = Span::from_secs(5);

/// What this run of the engine knows about a guest beyond the objects.
#[derive(Debug, Clone, Default)]
pub(in crate::engine) struct Memory {
    pub(super) token: String,
    /// Boot at the first look at this turn.
    pub(super) boot: String,
    pub(super) since: Timestamp,
    pub(super) is_staged: bool,
    pub(super) tried: Option<Timestamp>,
    /// The guest did not answer during the trial although its runner did.
    pub(super) was_silent: bool,
    /// End that follows as soon as the program is off trial.
    pub(in crate::engine) ending: Option<Ending>,
    /// The end is certain: no further order is needed.
    pub(super) is_final: bool,
    pub(super) not_before: Timestamp,
    /// Its own gate has been closed since.
    held_since: Option<Timestamp>,
    /// Its record is not written before this time.
    no_write_before: Timestamp,
    /// Writes of its record that were refused in a row.
    refused_writes: u32,
    /// Turns that were given back in a row.
    pub(in crate::engine) releases: u32,
}

impl Memory {
    pub(in crate::engine) fn observe(&mut self, guest: &Guest, now: Timestamp) {
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
    pub(in crate::engine) fn is_deferred(&self, now: Timestamp) -> bool {
        self.held_since
            .is_some_and(|since| now.since(since) >= DEFERRED_AFTER)
    }

    /// A write of its record has ended. One that is refused must not hold the others.
    pub(in crate::engine) fn written(&mut self, outcome: &Outcome, now: Timestamp) {
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
    pub(in crate::engine) fn may_write(&self, now: Timestamp) -> bool {
        now >= self.no_write_before
    }

    pub(in crate::engine) const fn ended(&mut self, result: TurnResult) {
        match result {
            TurnResult::Wait => self.releases = self.releases.saturating_add(1),
            TurnResult::Good | TurnResult::Bad | TurnResult::Skip => self.releases = 0,
        }
    }

    pub(in crate::engine) fn called(&mut self, call: &Call, outcome: Outcome, now: Timestamp) {
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

/// Length of the pause after a turn that was given back or ended badly.
pub(in crate::engine) fn pause(releases: u32) -> Span {
    Span::from_secs((30_u64 << releases.min(6)).min(standing::LONGEST_PAUSE_SECONDS))
}
