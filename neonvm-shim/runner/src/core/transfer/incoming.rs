//! The side that is gone to: a QEMU of the same shape waits, stopped, until its guest is there and
//! told to run.

use protocol::migration::{Destination, IncomingReport, IncomingStage};
use protocol::time::Timestamp;
use serde::Serialize;

use super::{Arrival, LOOK_EVERY, LOOK_IDLE, Pacer, View};

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IncomingAction {
    /// Write the arrival down, before anything else that is done.
    Save(Arrival),
    /// Have QEMU listen.
    Listen,
    /// See what QEMU says.
    Look,
    /// Let the guest run.
    Begin,
    /// It cannot come: QEMU ends, and the VM's runner with it.
    GiveUp,
}

/// The arrival of one guest.
#[derive(Debug, Clone, Serialize)]
pub struct Incoming {
    arrival: Arrival,
    /// Where QEMU is to listen.
    destination: Destination,
    view: Option<View>,
    problem: Option<String>,
    listens: bool,
    runs: bool,
    began_unix_us: Option<i64>,
    pacer: Pacer,
    unsaved: bool,
    given_up: bool,
}

impl Incoming {
    /// An arrival, new or found.
    #[must_use]
    pub fn new(arrival: Arrival, destination: Destination) -> Self {
        Self {
            // One that was told to listen does so, or QEMU is gone.
            listens: arrival.listening,
            runs: arrival.ran,
            arrival,
            destination,
            view: None,
            problem: None,
            began_unix_us: None,
            pacer: Pacer::default(),
            unsaved: false,
            given_up: false,
        }
    }

    /// Id of the migration, from its order.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.arrival.order.id
    }

    /// Whether the guest was told to run.
    #[must_use]
    pub fn is_begun(&self) -> bool {
        self.arrival.begun
    }

    /// Whether it has run since: the arrival is over, and nobody waits for it.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.arrival.ran
    }

    /// Whether the guest may be told to run: all that it needs is here.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        let view = self.view.as_ref();
        self.problem.is_none()
            && view.is_some_and(|view| {
                matches!(view.migration.as_str(), "completed" | "postcopy-active")
            })
    }

    /// The guest may run. Returns whether it is there.
    pub fn begin(&mut self, now: Timestamp) -> bool {
        if !self.arrival.begun {
            if !self.is_loaded() {
                return false;
            }
            self.arrival.begun = true;
            self.unsaved = true;
            self.pacer.look_at = now;
            self.pacer.failed = 0;
        }
        true
    }

    /// The guest runs.
    pub fn resumed(&mut self, unix_us: i64) {
        if self.arrival.begun {
            self.began_unix_us.get_or_insert(unix_us);
        }
    }

    /// Something was told: look at once.
    pub fn hint(&mut self, now: Timestamp) {
        self.pacer.look_at = self.pacer.look_at.min(now);
    }

    /// The monitor is lost.
    pub fn disconnected(&mut self) {
        (self.pacer.busy, self.pacer.fresh) = (false, false);
        self.view = None;
    }

    /// It cannot come.
    pub fn refuse(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }

    /// What QEMU says.
    pub fn viewed(&mut self, now: Timestamp, view: Result<View, String>) {
        if self.arrival.ran {
            // What QEMU says now is about something else.
            self.pacer.busy = false;
            return;
        }
        self.pacer.saw(now);
        match view {
            Ok(view) => {
                self.runs = view.run == "running";
                if view.migration == "failed" {
                    let why = view.error.clone();
                    self.refuse(why.unwrap_or_else(|| "the stream broke off".to_owned()));
                }
                self.view = Some(view);
                self.has_run();
            }
            Err(_) => {
                self.pacer.fail(now);
            }
        }
    }

    /// What was told to be done was taken, or refused.
    pub fn acted(&mut self, now: Timestamp, action: &IncomingAction, result: Result<(), String>) {
        self.pacer.did(now);
        match (action, result) {
            (IncomingAction::Listen, Ok(())) => {
                self.listens = true;
                self.arrival.listening = true;
                self.unsaved = true;
            }
            // A stream cannot be waited for twice by one QEMU.
            (IncomingAction::Listen, Err(problem)) => self.refuse(problem),
            (action, Ok(())) => {
                self.pacer.failed = 0;
                self.runs |= *action == IncomingAction::Begin;
                self.has_run();
            }
            (_, Err(_)) => {
                self.pacer.fail(now);
            }
        }
    }

    /// Told to run, it runs: this is over.
    fn has_run(&mut self) {
        if self.arrival.begun && self.runs && !self.arrival.ran {
            self.arrival.ran = true;
            self.unsaved = true;
        }
    }

    /// The next thing to do.
    pub fn poll_action(&mut self, now: Timestamp) -> Option<IncomingAction> {
        if std::mem::take(&mut self.unsaved) {
            return Some(IncomingAction::Save(self.arrival.clone()));
        }
        if self.arrival.ran || self.pacer.busy || now < self.pacer.look_at {
            return None;
        }
        let action = self.next(now)?;
        self.pacer.busy = true;
        Some(action)
    }

    fn next(&mut self, now: Timestamp) -> Option<IncomingAction> {
        if self.problem.is_some() && !self.arrival.begun {
            let first = !std::mem::replace(&mut self.given_up, true);
            return first.then_some(IncomingAction::GiveUp);
        }
        if !self.listens {
            return Some(IncomingAction::Listen);
        }
        if self.arrival.begun && !self.runs && (self.pacer.fresh || self.is_loaded()) {
            // The guest stands still: nothing is looked at first.
            return Some(IncomingAction::Begin);
        }
        if !self.pacer.fresh {
            return Some(IncomingAction::Look);
        }
        self.pacer
            .wait(now, if self.runs { LOOK_IDLE } else { LOOK_EVERY });
        None
    }

    /// When to ask again.
    #[must_use]
    pub fn poll_deadline(&self) -> Timestamp {
        if self.arrival.ran && !self.unsaved {
            // Nothing more comes of it.
            return Timestamp(u64::MAX);
        }
        self.pacer.look_at
    }

    /// What is told.
    #[must_use]
    pub fn report(&self) -> IncomingReport {
        let stage = if self.arrival.begun && self.began_or_runs() {
            IncomingStage::Begun
        } else if self.problem.is_some() {
            IncomingStage::Failed
        } else if self.is_loaded() || self.arrival.begun {
            IncomingStage::Loaded
        } else if self.listens {
            IncomingStage::Listening
        } else {
            IncomingStage::Starting
        };
        IncomingReport {
            id: self.arrival.order.id.clone(),
            stage,
            destination: self.listens.then(|| self.destination.clone()),
            problem: self.problem.clone(),
            began_unix_us: self.began_unix_us,
        }
    }

    fn began_or_runs(&self) -> bool {
        self.runs || self.began_unix_us.is_some()
    }
}
