//! The target of a migration: a stopped QEMU of the same shape waits for the guest, and for the
//! order to run it.

use protocol::core::Core;
use protocol::migration::{Destination, IncomingReport, IncomingStage};
use protocol::time::Timestamp;
use serde::Serialize;

use super::manifest::Arrival;
use super::pacer::{LOOK_EVERY, LOOK_IDLE, Pacer};
use super::view::View;

/// Next step of an arrival.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IncomingAction {
    /// Write the arrival to the record, before anything else.
    Save(Arrival),
    /// Order QEMU to listen at the destination.
    Listen,
    /// Query the state of QEMU's migration.
    Look,
    /// Run the guest, whose state has arrived.
    Begin,
    /// The guest cannot arrive: end QEMU, and with it the VM's runner.
    GiveUp,
}

/// Something that an arrival depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IncomingEvent {
    /// QEMU has resumed the guest at this time.
    Resumed(i64),
    /// QEMU's state may have changed, which hastens the next query.
    Hint,
    /// The monitor is disconnected; commands in progress will not be answered.
    Disconnected,
    /// State of QEMU, after [`IncomingAction::Look`].
    Viewed(Result<View, String>),
    /// Result of any other action.
    Done(IncomingAction, Result<(), String>),
}

/// State of one guest's arrival.
#[derive(Debug, Clone, Serialize)]
pub struct Incoming {
    arrival: Arrival,
    /// Address or sockets on which QEMU listens.
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
    /// State of a new arrival, or of one in the record.
    #[must_use]
    pub fn new(arrival: Arrival, destination: Destination) -> Self {
        Self {
            // QEMU was ordered to listen and does, or it is gone.
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

    /// Whether the order to run the guest was given.
    #[must_use]
    pub fn is_begun(&self) -> bool {
        self.arrival.begun
    }

    /// Whether the guest has run since. The arrival is then over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.arrival.ran
    }

    /// Whether all state of the guest has arrived, so that it may run.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        let view = self.view.as_ref();
        self.problem.is_none()
            && view.is_some_and(|view| {
                matches!(view.migration.as_str(), "completed" | "postcopy-active")
            })
    }

    /// Takes the order to run the guest. Returns whether all its state has arrived.
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

    /// Fails the arrival with this problem.
    pub fn refuse(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }

    fn viewed(&mut self, now: Timestamp, view: Result<View, String>) {
        if self.arrival.ran {
            // The answer belongs to an earlier state.
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

    fn acted(&mut self, now: Timestamp, action: &IncomingAction, result: Result<(), String>) {
        self.pacer.did(now);
        match (action, result) {
            (IncomingAction::Listen, Ok(())) => {
                self.listens = true;
                self.arrival.listening = true;
                self.unsaved = true;
            }
            // One QEMU cannot listen for a stream twice.
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

    /// The guest has run: the arrival is over.
    fn has_run(&mut self) {
        if self.arrival.begun && self.runs && !self.arrival.ran {
            self.arrival.ran = true;
            self.unsaved = true;
        }
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
            // The guest is stopped meanwhile, so no query comes first.
            return Some(IncomingAction::Begin);
        }
        if !self.pacer.fresh {
            return Some(IncomingAction::Look);
        }
        self.pacer
            .wait(now, if self.runs { LOOK_IDLE } else { LOOK_EVERY });
        None
    }

    /// Report for the runner's state.
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

impl Core for Incoming {
    type Time = Timestamp;
    type Event = IncomingEvent;
    type Action = IncomingAction;

    fn handle(&mut self, now: Timestamp, event: IncomingEvent) {
        match event {
            IncomingEvent::Resumed(unix_us) if self.arrival.begun => {
                self.began_unix_us.get_or_insert(unix_us);
            }
            IncomingEvent::Resumed(_) => {}
            IncomingEvent::Hint => self.pacer.hint(now),
            IncomingEvent::Disconnected => {
                self.pacer.disconnected();
                self.view = None;
            }
            IncomingEvent::Viewed(view) => self.viewed(now, view),
            IncomingEvent::Done(action, result) => self.acted(now, &action, result),
        }
    }

    fn poll_action(&mut self, now: Timestamp) -> Option<IncomingAction> {
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

    fn poll_deadline(&self) -> Option<Timestamp> {
        let is_over = self.arrival.ran && !self.unsaved;
        (!is_over).then_some(self.pacer.look_at)
    }
}
