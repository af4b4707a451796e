//! The driver's part of a migration: executes the actions of the two cores of
//! [`crate::core::transfer`] concurrently with everything else, and replies to orders.

use protocol::core::Core as _;
use protocol::runner::BeforeSilence;
use protocol::time::Timestamp;
use tokio::sync::mpsc;
use tracing::{info, warn};

use super::VmDriver;
use crate::core::guest_liveness::GuestLiveness;
use crate::core::sizer::{Event, QmpFailure};
use crate::core::transfer::{
    Incoming, IncomingAction, IncomingEvent, Outgoing, OutgoingAction, OutgoingEvent,
};
use crate::shell::input::{Input, MigrationOrder, ReplySender, TransferResult};
use crate::shell::transfer::{depart, describe, destination, manifest};

fn message_of(result: Result<(), QmpFailure>) -> Result<(), String> {
    result.map_err(|failure| format!("{}: {}", failure.command, failure.message))
}

impl VmDriver {
    /// Takes an order of a route and replies.
    pub(super) fn take_migration(
        &mut self,
        now: Timestamp,
        ask: MigrationOrder,
        answer: ReplySender,
    ) {
        let refusal = self.asked(now, ask).err();
        self.turn();
        let state = self.state.current();
        // The client may have disconnected.
        let _ = answer.send(refusal.map_or(Ok(state), Err));
    }

    fn asked(&mut self, now: Timestamp, ask: MigrationOrder) -> Result<(), String> {
        match ask {
            MigrationOrder::Send(order) => {
                if self.incoming.as_ref().is_some_and(|at| !at.is_begun()) {
                    return Err("the guest has not arrived".to_owned());
                }
                if self.seen_stopping() {
                    return Err("the guest is being stopped".to_owned());
                }
                match &mut self.outgoing {
                    Some(outgoing) if outgoing.id() == order.id => {
                        outgoing.handle(now, OutgoingEvent::Order(order));
                    }
                    Some(outgoing) => {
                        return Err(format!("migration {} is not over", outgoing.id()));
                    }
                    None => {
                        info!(
                            migration = order.id,
                            "the size is held, the guest may migrate"
                        );
                        let id = Some(order.id.clone());
                        self.outgoing = Some(Outgoing::new(order));
                        self.sizer.handle(now, Event::Hold(id));
                    }
                }
            }
            MigrationOrder::Recall(id) => {
                if let Some(outgoing) = self.outgoing.as_mut().filter(|at| at.id() == id) {
                    info!(migration = id, "the guest stays");
                    outgoing.handle(now, OutgoingEvent::Recall);
                }
            }
            MigrationOrder::Quit(id) => {
                let outgoing = self.outgoing.as_ref().filter(|at| at.id() == id);
                if !outgoing.is_some_and(Outgoing::is_handed_over) {
                    return Err("the guest has not left".to_owned());
                }
                info!(migration = id, "the guest runs elsewhere, QEMU ends");
                self.record.moved = true;
                self.save();
                self.quit();
            }
            MigrationOrder::Receive(order) => {
                let known = self.incoming.as_ref().map(Incoming::id);
                if known != Some(order.id.as_str()) {
                    return Err("there is a guest here".to_owned());
                }
            }
            MigrationOrder::Begin(id) => {
                let incoming = self.incoming.as_mut().filter(|at| at.id() == id);
                if !incoming.is_some_and(|incoming| incoming.begin(now)) {
                    return Err("the guest has not arrived".to_owned());
                }
            }
        }
        Ok(())
    }

    pub(super) fn act_outgoing(&mut self, action: OutgoingAction) {
        let qmp = match action {
            OutgoingAction::Save(leaving) => {
                self.record.leaving = Some(leaving);
                return self.save();
            }
            OutgoingAction::Abandon => {
                warn!("memory is split between both sides: the guest ends");
                return self.quit();
            }
            _ => self.qmp(),
        };
        let (config, paths, record) =
            (self.config.clone(), self.paths.clone(), self.record.clone());
        let (inputs, key) = (self.inputs.clone(), self.guestd_key.clone());
        tokio::spawn(async move {
            let Some(qmp) = qmp else {
                let lost = "QEMU's monitor is not connected".to_owned();
                let event = match action {
                    OutgoingAction::Look => OutgoingEvent::Viewed(Err(lost)),
                    OutgoingAction::Describe => OutgoingEvent::Described(Err(lost)),
                    other => OutgoingEvent::Done(other, Err(lost)),
                };
                return send(&inputs, TransferResult::Outgoing(event)).await;
            };
            let order = record.leaving.as_ref().map(|leaving| &leaving.order);
            let to = order.and_then(|order| order.to.clone().map(|to| (to, order.how)));
            let result = match &action {
                OutgoingAction::Look => {
                    let mut view = qmp.view().await.map_err(|failure| failure.message);
                    if let Ok(view) = &mut view {
                        view.progress.encrypted = to.is_some_and(|(to, _)| to.encrypted);
                    }
                    let event = OutgoingEvent::Viewed(view);
                    return send(&inputs, TransferResult::Outgoing(event)).await;
                }
                OutgoingAction::Describe => {
                    let found = describe(qmp, config, paths, record, key).await;
                    let event = OutgoingEvent::Described(found);
                    return send(&inputs, TransferResult::Outgoing(event)).await;
                }
                OutgoingAction::Copy | OutgoingAction::Send => {
                    depart(&qmp, &config, &action, to, record.accel).await
                }
                OutgoingAction::Switch => qmp.switch().await,
                OutgoingAction::Cancel => qmp.call_off().await,
                OutgoingAction::Continue => qmp.go_on().await,
                OutgoingAction::Save(_) | OutgoingAction::Abandon => Ok(()),
            };
            log_step(&format!("{action:?}"), &result);
            let event = OutgoingEvent::Done(action, message_of(result));
            send(&inputs, TransferResult::Outgoing(event)).await;
        });
    }

    pub(super) fn act_incoming(&mut self, action: IncomingAction) {
        let qmp = match action {
            IncomingAction::Save(arrival) => {
                self.record.arrival = Some(arrival);
                return self.save();
            }
            IncomingAction::GiveUp => {
                warn!("the guest cannot be received");
                return self.quit();
            }
            _ => self.qmp(),
        };
        let Some(arrival) = self.record.arrival.clone() else {
            return;
        };
        let at = destination(&self.config, &self.paths, &arrival);
        let fits = manifest(&self.config, &arrival.order);
        let keys = self.config.migration_keys.clone().filter(|_| at.encrypted);
        let inputs = self.inputs.clone();
        tokio::spawn(async move {
            let result = match (&action, qmp) {
                (IncomingAction::Look, Some(qmp)) => {
                    let view = qmp.view().await.map_err(|failure| failure.message);
                    let event = IncomingEvent::Viewed(view);
                    return send(&inputs, TransferResult::Incoming(event)).await;
                }
                (IncomingAction::Look, None) => {
                    let event = IncomingEvent::Viewed(Err("no monitor".to_owned()));
                    return send(&inputs, TransferResult::Incoming(event)).await;
                }
                (_, None) => Err("QEMU's monitor is not connected".to_owned()),
                (IncomingAction::Listen, Some(qmp)) => {
                    match fits.and_then(|manifest| manifest.fits(&qmp.version)) {
                        Ok(()) => {
                            message_of(qmp.listen(&at, arrival.order.how, keys.as_deref()).await)
                        }
                        Err(unfit) => Err(unfit.to_string()),
                    }
                }
                (_, Some(qmp)) => message_of(qmp.begin(at.disk.is_some()).await),
            };
            if let Err(problem) = &result {
                warn!(?action, problem, "a step of the guest's arrival failed");
            }
            let event = IncomingEvent::Done(action, result);
            send(&inputs, TransferResult::Incoming(event)).await;
        });
    }

    pub(super) fn take_transfer(&mut self, now: Timestamp, result: TransferResult) {
        match result {
            TransferResult::Outgoing(event) => self.outgoing.handle(now, event),
            TransferResult::Incoming(event) => {
                let begun = matches!(event, IncomingEvent::Done(IncomingAction::Begin, Ok(())));
                self.incoming.handle(now, event);
                if begun {
                    info!("the guest runs here");
                    self.sizer.handle(now, Event::Hold(None));
                    let wall = self.clock.wall();
                    self.liveness = GuestLiveness::new(now, wall, BeforeSilence::Move);
                    self.follow_guest();
                }
            }
        }
    }
}

async fn send(inputs: &mpsc::Sender<Input>, result: TransferResult) {
    // The driver is gone only when the runner ends.
    let _ = inputs.send(Input::Transfer(result)).await;
}

fn log_step(action: &str, result: &Result<(), QmpFailure>) {
    match result {
        Ok(()) => info!(action, "a step of the guest's departure is done"),
        Err(failure) => warn!(
            action,
            command = failure.command,
            problem = failure.message,
            "a step of the guest's departure failed"
        ),
    }
}
