//! The steps of one unit.
//!
//! The machine has at most one action in progress. Values that arrive meanwhile are rendered after
//! it ends.

use protocol::core::Core;
use protocol::time::{Span, Timestamp};

use super::unit::{Template, Unit};
use super::{Content, Outcome, Values, template};

/// Plugged memory arrives in blocks. Values must be unchanged for this long before they are
/// rendered …
const QUIET: Span = Span::from_secs(1);
/// … or the first change this old.
const LONGEST_DELAY: Span = Span::from_secs(5);
/// Delay of the first repetition of a failed step; each further delay doubles …
const FIRST_RETRY: Span = Span::from_secs(1);
/// … this often, to about a minute.
const DOUBLINGS: u32 = 6;

/// Signals that may fail while the guest boots: half a minute.
const SIGNALS_AT_START: u32 = 5;

/// Something to do in the file system, or a program to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Remove what a crash left beside the destination, and read the destination.
    Read,
    /// Write this to a temporary name beside the destination, on disk before the end.
    Write(Content),
    /// Run the check on the temporary name.
    Check,
    /// Remove the temporary name.
    Discard,
    /// Note on disk that the program is owed a signal.
    Note,
    /// Move the temporary name to the destination, on disk before the end.
    Place,
    /// Signal the program.
    Signal,
    /// Remove the note.
    Forget,
}

/// News for a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// What templates may use, complete.
    Values(Values),
    /// Result of [`Action::Read`]. `None`: nothing is there, or its owner or mode differ from the
    /// unit's.
    Present(Result<Option<Content>, String>),
    /// [`Action::Check`] took too long, so the file is neither accepted nor refused.
    CheckLate(String),
    /// Result of any other action.
    Done(Result<(), String>),
}

/// Times of repetitions.
#[derive(Debug, Default)]
struct Retry {
    at: Option<Timestamp>,
    count: u32,
}

impl Retry {
    fn fail(&mut self, now: Timestamp) {
        let doubled = FIRST_RETRY.0 << self.count.min(DOUBLINGS);
        self.at = Some(now + Span(doubled));
        self.count += 1;
    }

    fn is_due(&self, now: Timestamp) -> bool {
        self.at.is_some_and(|at| at <= now)
    }
}

/// Keeps one unit's destination up to date.
#[derive(Debug)]
pub struct Machine {
    template: Template,
    has_check: bool,
    has_signal: bool,
    values: Option<Values>,
    /// First change since the last rendering, and when it is rendered.
    changed: Option<(Timestamp, Timestamp)>,
    /// Action in progress.
    step: Option<Action>,
    next: Option<Action>,
    /// Text that is on its way to the destination.
    content: Option<Content>,
    outcome: Outcome,
    again: Retry,
    /// Whether the note is on disk.
    is_owed: bool,
    signal: Retry,
    signal_error: Option<String>,
}

impl Machine {
    /// The machine of a unit. `is_owed`: an earlier daemon left the note of this unit.
    #[must_use]
    pub fn new(unit: &Unit, is_owed: bool) -> Self {
        Self {
            template: unit.template.clone(),
            has_check: unit.check.is_some(),
            has_signal: unit.signal.is_some(),
            values: None,
            changed: None,
            step: None,
            next: None,
            content: None,
            outcome: Outcome::Waiting,
            again: Retry::default(),
            is_owed,
            signal: Retry::default(),
            signal_error: None,
        }
    }

    /// Result of the last attempt.
    #[must_use]
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// Whether the program may not have seen the file at the destination, and why the last signal
    /// failed.
    #[must_use]
    pub fn owed(&self) -> Option<&str> {
        let error = self.signal_error.as_deref();
        self.is_owed.then(|| error.unwrap_or("not sent"))
    }

    /// Whether the owed signal fails for longer than a program takes to start.
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        self.is_owed && self.signal.count > SIGNALS_AT_START
    }

    fn begin(&mut self) {
        self.changed = None;
        self.again.at = None;
        let Some(values) = &self.values else { return };
        match template::render(&self.template, values) {
            Ok(content) => {
                self.content = Some(content);
                self.next = Some(Action::Read);
            }
            Err(error) => self.end(Outcome::Template(error)),
        }
    }

    /// Ends an attempt. A signal that is owed goes out, whatever the result is.
    fn end(&mut self, outcome: Outcome) {
        if !matches!(outcome, Outcome::Failed(_) | Outcome::Refused(_)) {
            self.again = Retry::default();
        }
        self.outcome = outcome;
        self.content = None;
        self.next = self.is_owed.then_some(if self.has_signal {
            Action::Signal
        } else {
            Action::Forget
        });
    }

    fn fail(&mut self, now: Timestamp, outcome: Outcome) {
        self.end(outcome);
        self.again.fail(now);
    }

    fn take_present(&mut self, now: Timestamp, present: Result<Option<Content>, String>) {
        match present {
            Err(error) => self.fail(now, Outcome::Refused(error)),
            Ok(present) if present == self.content => self.end(Outcome::Current),
            Ok(_) => self.next = self.content.clone().map(Action::Write),
        }
    }

    fn take_done(&mut self, now: Timestamp, step: &Action, done: Result<(), String>) {
        match (step, done) {
            (Action::Write(_), Ok(())) if self.has_check => self.next = Some(Action::Check),
            (Action::Write(_) | Action::Check, Ok(())) if self.has_signal && !self.is_owed => {
                self.next = Some(Action::Note);
            }
            (Action::Write(_) | Action::Check, Ok(())) => self.next = Some(Action::Place),
            (Action::Note, Ok(())) => {
                self.is_owed = true;
                self.next = Some(Action::Place);
            }
            (Action::Place, Ok(())) => self.end(Outcome::Current),
            (Action::Check, Err(line)) => {
                self.end(Outcome::Check(line));
                self.next = Some(Action::Discard);
            }
            (Action::Write(_) | Action::Note | Action::Place, Err(error)) => {
                self.fail(now, Outcome::Failed(error));
                self.next = Some(Action::Discard);
            }
            (Action::Discard, _) => self.end(self.outcome.clone()),
            (Action::Signal, Ok(())) => self.next = Some(Action::Forget),
            (Action::Signal, Err(error)) => {
                self.signal_error = Some(error);
                self.signal.fail(now);
            }
            // If the note stays, the next daemon sends one signal more.
            (Action::Forget, _) => {
                self.is_owed = false;
                self.signal = Retry::default();
                self.signal_error = None;
            }
            (Action::Read, _) => {}
        }
    }
}

impl Core for Machine {
    type Time = Timestamp;
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event) {
        match event {
            Event::Values(values) => {
                if self.values.as_ref() == Some(&values) {
                    return;
                }
                let is_first = self.values.replace(values).is_none();
                let first = self.changed.map_or(now, |(first, _)| first);
                let quiet = (now + QUIET).min(first + LONGEST_DELAY);
                self.changed = Some((first, if is_first { now } else { quiet }));
            }
            Event::Present(present) => {
                self.step = None;
                self.take_present(now, present);
            }
            Event::CheckLate(error) => {
                self.step = None;
                let text = format!("the check did not end: {error}");
                self.fail(now, Outcome::Failed(text));
                self.next = Some(Action::Discard);
            }
            Event::Done(done) => {
                if let Some(step) = self.step.take() {
                    self.take_done(now, &step, done);
                }
            }
        }
    }

    fn poll_action(&mut self, now: Timestamp) -> Option<Action> {
        if self.step.is_some() {
            return None;
        }
        if self.next.is_none() {
            if self.changed.is_some_and(|(_, at)| at <= now) || self.again.is_due(now) {
                self.begin();
            } else if self.is_owed && self.signal.is_due(now) {
                self.signal.at = None;
                self.next = Some(Action::Signal);
            }
        }
        let action = self.next.take()?;
        self.step = Some(action.clone());
        Some(action)
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        if self.step.is_some() {
            return None;
        }
        let changed = self.changed.map(|(_, at)| at);
        let signal = self.signal.at.filter(|_| self.is_owed);
        [changed, self.again.at, signal].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests;
