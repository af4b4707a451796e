//! The source of a migration.
//!
//! ```text
//! hold ─► describe ─► (copy the disk ─► caught up) ─► send ─► (stopped ─► end the copy ─► go on) ─► handed over ─► done
//!                          └─────────────── failed ◄──┴── recall: cancel, go on if stopped ─► as before
//! ```

use protocol::core::Core;
use protocol::migration::{OutgoingOrder, OutgoingReport, OutgoingStage};
use protocol::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};

use super::manifest::Manifest;
use super::pacer::{LOOK_EVERY, LOOK_IDLE, Pacer};
use super::view::View;
use crate::core::disk_full;

/// `query-status` of a running guest.
const RUNS: &str = "running";
/// `query-status` of a guest that was stopped by a command, as before it is sent without KVM. A
/// guest that was sent is in another state.
const PAUSED: &str = "paused";

/// Whether no migration has stopped the guest: it runs, or QEMU has stopped it because a disk of
/// the host is full.
fn runs(view: &View) -> bool {
    view.run == RUNS || view.run == disk_full::STOPPED
}

/// Whether the guest has not left.
fn is_here(view: &View) -> bool {
    runs(view) || view.run == PAUSED
}

/// `query-migrate` of a QEMU that is connecting and has sent nothing.
const SETUP: &str = "setup";
/// Longest time in that state.
const SETUP_PATIENCE: Span = Span::from_secs(30);

/// A departure, as in the runner's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leaving {
    /// Newest order of the migration, with its destination.
    pub order: OutgoingOrder,
    /// Whether the copy of the disk has begun.
    pub copying: bool,
    /// Whether QEMU was ordered to send.
    pub sent: bool,
    /// Whether the departure is to be undone.
    pub recalled: bool,
}

/// Next step of a departure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OutgoingAction {
    /// Write the departure to the record, before anything else.
    Save(Leaving),
    /// Query the manifest of QEMU.
    Describe,
    /// Query the state of QEMU's migration.
    Look,
    /// Begin to copy the disk.
    Copy,
    /// Begin to send the guest.
    Send,
    /// The guest is stopped: end the copy, which is in sync, and continue.
    Switch,
    /// Cancel the copy and the migration in QEMU.
    Cancel,
    /// Resume the guest at the source.
    Continue,
    /// The rest of the guest here can never run again: end QEMU.
    Abandon,
}

/// Something that a departure depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutgoingEvent {
    /// A newer order of the same migration. Steps that have begun do not change.
    Order(OutgoingOrder),
    /// Undo the departure.
    Recall,
    /// Whether sizes are changing. QEMU is not described meanwhile.
    Resizing(bool),
    /// QEMU has stopped the guest at this time.
    Stopped(i64),
    /// QEMU's state may have changed, which hastens the next query.
    Hint,
    /// The monitor is disconnected; commands in progress will not be answered.
    Disconnected,
    /// Manifest of QEMU, after [`OutgoingAction::Describe`].
    Described(Result<Box<Manifest>, String>),
    /// State of QEMU, after [`OutgoingAction::Look`].
    Viewed(Result<View, String>),
    /// Result of any other action.
    Done(OutgoingAction, Result<(), String>),
}

/// State of one guest's departure.
#[derive(Debug, Clone, Serialize)]
pub struct Outgoing {
    leaving: Leaving,
    manifest: Option<Manifest>,
    view: Option<View>,
    problem: Option<String>,
    stopped_unix_us: Option<i64>,
    pacer: Pacer,
    unsaved: bool,
    /// Last command to QEMU whose effect has not shown yet.
    commanded: Option<OutgoingAction>,
    /// Since when QEMU has been connecting.
    setup_since: Option<Timestamp>,
    over: bool,
    #[serde(skip)]
    resizing: bool,
}

impl Outgoing {
    /// State of a departure at its first order.
    #[must_use]
    pub fn new(order: OutgoingOrder) -> Self {
        let leaving = Leaving {
            order,
            copying: false,
            sent: false,
            recalled: false,
        };
        Self {
            unsaved: true,
            ..Self::found(leaving)
        }
    }

    /// State of a departure in the record of an earlier runner.
    #[must_use]
    pub fn found(leaving: Leaving) -> Self {
        Self {
            leaving,
            manifest: None,
            view: None,
            problem: None,
            stopped_unix_us: None,
            pacer: Pacer::default(),
            unsaved: false,
            commanded: None,
            setup_since: None,
            over: false,
            resizing: false,
        }
    }

    /// Id of the migration, from its order.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.leaving.order.id
    }

    fn order(&mut self, now: Timestamp, order: OutgoingOrder) {
        if self.leaving.sent || self.leaving.copying || self.leaving.order == order {
            return;
        }
        self.leaving.order = order;
        self.unsaved = true;
        self.pacer.look_at = now;
        self.pacer.fresh = false;
    }

    fn recall(&mut self, now: Timestamp) {
        if !self.leaving.recalled {
            self.leaving.recalled = true;
            self.unsaved = true;
            (self.pacer.look_at, self.pacer.fresh, self.pacer.failed) = (now, false, 0);
        }
    }

    /// Whether the departure was recalled and the guest runs as before.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Whether all state of the guest was sent.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.stage() == OutgoingStage::HandedOver
    }

    fn described(&mut self, now: Timestamp, manifest: Result<Box<Manifest>, String>) {
        self.pacer.did(now);
        match manifest {
            Ok(manifest) => {
                self.manifest = Some(*manifest);
                self.pacer.failed = 0;
            }
            Err(problem) => self.refused(now, problem),
        }
    }

    fn viewed(&mut self, now: Timestamp, view: Result<View, String>) {
        self.pacer.saw(now);
        match view {
            Ok(view) => self.view = Some(view),
            // The next query decides.
            Err(_) => {
                self.pacer.fail(now);
            }
        }
    }

    fn acted(&mut self, now: Timestamp, action: OutgoingAction, result: Result<(), String>) {
        self.pacer.did(now);
        match result {
            Ok(()) => {
                self.pacer.failed = 0;
                self.commanded = Some(action);
            }
            Err(problem) => self.refused(now, problem),
        }
    }

    fn refused(&mut self, now: Timestamp, problem: String) {
        let is_final = self.pacer.fail(now);
        // A recall is retried without end.
        if is_final && !self.leaving.recalled && !self.is_handed_over() {
            self.problem.get_or_insert(problem);
        }
    }

    fn next(&mut self, now: Timestamp) -> Option<OutgoingAction> {
        let Some(view) = self.view.as_ref().filter(|_| self.pacer.fresh) else {
            return Some(OutgoingAction::Look);
        };
        let is_active = !matches!(
            view.migration.as_str(),
            "none" | "completed" | "failed" | "cancelled"
        );
        if self.leaving.recalled {
            return match view.migration.as_str() {
                "postcopy-active" | "postcopy-paused" => Some(OutgoingAction::Abandon),
                "cancelling" => self.look(now),
                _ if is_active || view.copy.is_some() => Some(OutgoingAction::Cancel),
                _ if runs(view) => {
                    self.over = true;
                    None
                }
                _ => Some(OutgoingAction::Continue),
            };
        }
        if self.manifest.is_none() && !self.leaving.sent && !self.leaving.copying {
            return if self.resizing {
                self.look(now)
            } else {
                Some(OutgoingAction::Describe)
            };
        }
        let Some(disk) = self.leaving.order.to.as_ref().map(|to| to.disk) else {
            self.pacer.wait(now, LOOK_IDLE);
            return None;
        };
        if self.problem.is_some() {
            return if is_active || view.copy.is_some() {
                Some(OutgoingAction::Cancel)
            } else if view.run == PAUSED {
                Some(OutgoingAction::Continue)
            } else {
                self.pacer.wait(now, LOOK_IDLE);
                None
            };
        }
        if self.leaving.sent {
            return self.sending(now, disk.is_some());
        }
        match (disk, view.copy) {
            (None, _) | (Some(_), Some(true)) => Some(OutgoingAction::Send),
            (Some(_), Some(false)) => self.look(now),
            (Some(_), None) if self.commanded == Some(OutgoingAction::Copy) => {
                self.problem = Some("the copy of the disk broke off".to_owned());
                self.look(now)
            }
            (Some(_), None) => Some(OutgoingAction::Copy),
        }
    }

    fn sending(&mut self, now: Timestamp, with_disk: bool) -> Option<OutgoingAction> {
        let view = self.view.clone().unwrap_or_default();
        if view.migration == SETUP {
            let since = *self.setup_since.get_or_insert(now);
            if now >= since + SETUP_PATIENCE {
                self.problem = Some("QEMU does not begin to send".to_owned());
            }
        }
        match view.migration.as_str() {
            // It is in the record and not carried out: a query came between, or another runner
            // wrote it.
            "none" if self.commanded != Some(OutgoingAction::Send) => Some(OutgoingAction::Send),
            // Of an earlier migration that was recalled at its very end.
            "completed" if is_here(&view) => Some(OutgoingAction::Send),
            "failed" | "cancelled"
                if self.commanded == Some(OutgoingAction::Send)
                    || (with_disk && view.copy != Some(true)) =>
            {
                let why = view.error.unwrap_or_else(|| view.migration.clone());
                self.problem = Some(why);
                self.look(now)
            }
            // Of an earlier migration: this one has not begun.
            "failed" | "cancelled" => Some(OutgoingAction::Send),
            "pre-switchover" if self.commanded != Some(OutgoingAction::Switch) => {
                if view.copy == Some(true) {
                    Some(OutgoingAction::Switch)
                } else if view.copy.is_none() {
                    self.problem = Some("the copy of the disk broke off".to_owned());
                    self.look(now)
                } else {
                    self.look(now)
                }
            }
            "completed" => {
                self.pacer.wait(now, LOOK_IDLE);
                None
            }
            _ => self.look(now),
        }
    }

    /// Nothing but the next query is due.
    fn look(&mut self, now: Timestamp) -> Option<OutgoingAction> {
        self.pacer.wait(now, LOOK_EVERY);
        None
    }

    fn stage(&self) -> OutgoingStage {
        // A guest that runs here has not left: QEMU's status may be that of an earlier migration.
        let stopped = self.view.as_ref().filter(|view| !is_here(view));
        let status = stopped.map(|view| view.migration.as_str());
        match (&self.problem, status) {
            _ if self.leaving.recalled => OutgoingStage::Recalling,
            (_, Some("completed" | "postcopy-active")) if self.leaving.sent => {
                OutgoingStage::HandedOver
            }
            (Some(_), _) => OutgoingStage::Failed,
            _ if self.leaving.sent => OutgoingStage::Sending,
            _ if self.leaving.copying => OutgoingStage::CopyingDisk,
            _ => OutgoingStage::Holding,
        }
    }

    /// Report for the runner's state.
    #[must_use]
    pub fn report(&self) -> OutgoingReport {
        let stage = self.stage();
        let has_begun = self.commanded.is_some() || stage == OutgoingStage::HandedOver;
        let view = self
            .view
            .as_ref()
            .filter(|_| self.leaving.sent && has_begun);
        OutgoingReport {
            id: self.leaving.order.id.clone(),
            stage,
            shape: self
                .manifest
                .as_ref()
                .and_then(|manifest| serde_json::to_value(manifest).ok()),
            progress: view.map(|view| view.progress.clone()),
            problem: self.problem.clone(),
            stopped_unix_us: self.stopped_unix_us,
        }
    }
}

impl Core for Outgoing {
    type Time = Timestamp;
    type Event = OutgoingEvent;
    type Action = OutgoingAction;

    fn handle(&mut self, now: Timestamp, event: OutgoingEvent) {
        match event {
            OutgoingEvent::Order(order) => self.order(now, order),
            OutgoingEvent::Recall => self.recall(now),
            OutgoingEvent::Resizing(resizing) => self.resizing = resizing,
            OutgoingEvent::Stopped(unix_us) => self.stopped_unix_us = Some(unix_us),
            OutgoingEvent::Hint => self.pacer.hint(now),
            OutgoingEvent::Disconnected => {
                self.pacer.disconnected();
                self.view = None;
            }
            OutgoingEvent::Described(manifest) => self.described(now, manifest),
            OutgoingEvent::Viewed(view) => self.viewed(now, view),
            OutgoingEvent::Done(action, result) => self.acted(now, action, result),
        }
    }

    fn poll_action(&mut self, now: Timestamp) -> Option<OutgoingAction> {
        if std::mem::take(&mut self.unsaved) {
            return Some(OutgoingAction::Save(self.leaving.clone()));
        }
        if self.pacer.busy || now < self.pacer.look_at || self.over {
            return None;
        }
        let action = self.next(now)?;
        if let OutgoingAction::Copy | OutgoingAction::Send = action {
            // The record comes first: a runner that finds a step in the record and not in QEMU
            // repeats it.
            let (copying, sent) = (self.leaving.copying, self.leaving.sent);
            self.leaving.copying |= action == OutgoingAction::Copy;
            self.leaving.sent |= action == OutgoingAction::Send;
            if (copying, sent) != (self.leaving.copying, self.leaving.sent) {
                self.commanded = None;
                return Some(OutgoingAction::Save(self.leaving.clone()));
            }
        }
        self.pacer.busy = true;
        Some(action)
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        Some(self.pacer.look_at)
    }
}
