//! Orders of the controller to the runner of a machine.

use neonvm_controller::core::{Refusal, migration};
use neonvm_runner::core::transfer::{Arrival, Incoming, Outgoing, OutgoingEvent};
use protocol::core::Core as _;
use protocol::migration::{IncomingOrder, OutgoingOrder};
use protocol::runner::ExitReason;
use protocol::time::Timestamp;

use super::{Machine, Qemu};
use crate::migrations::world::MigrationWorld;

impl MigrationWorld {
    /// The controller tells a runner something.
    pub(crate) fn order(
        &mut self,
        action: migration::Action,
    ) -> Result<migration::ActionResponse, Refusal> {
        use migration::Action as A;
        let now = self.now;
        let refused = |message: &str| {
            Err(Refusal::Failed {
                message: message.to_owned(),
                permanent: false,
            })
        };
        let (A::Send { pod, .. }
        | A::Recall { pod, .. }
        | A::Quit { pod, .. }
        | A::Receive { pod, .. }
        | A::Begin { pod, .. }) = &action
        else {
            return refused("this is the API server's business");
        };
        let Some(machine) = self.machines.get_mut(pod).filter(|machine| machine.up) else {
            return refused("connection refused");
        };
        machine.generation += 1;
        if let Err(message) = machine.take(action, now) {
            return refused(message);
        }
        match machine.state() {
            Some(state) => Ok(migration::ActionResponse::Runner(Box::new(state))),
            None => refused("connection refused"),
        }
    }
}

impl Machine {
    /// Its runner takes an order, or refuses it.
    fn take(&mut self, action: migration::Action, now: Timestamp) -> Result<(), &'static str> {
        use migration::Action as A;
        match action {
            A::Send { order, .. } => return self.send(order, now),
            A::Recall { id, .. } => {
                if let Some(outgoing) = self.outgoing.as_mut().filter(|at| at.id() == id) {
                    outgoing.handle(now, OutgoingEvent::Recall);
                }
            }
            A::Quit { id, .. } => {
                let outgoing = self.outgoing.as_ref().filter(|at| at.id() == id);
                if !outgoing.is_some_and(Outgoing::is_handed_over) {
                    return Err("the guest has not left");
                }
                self.end(ExitReason::Moved, true);
            }
            A::Receive { order, .. }
                if self.incoming.is_none() && self.receives && self.exit.is_none() =>
            {
                self.receive(*order);
            }
            A::Begin { id, .. } => {
                let incoming = self.incoming.as_mut().filter(|at| at.id() == id);
                if !incoming.is_some_and(|incoming| incoming.begin(now)) {
                    return Err("the guest is not here yet");
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn send(&mut self, order: OutgoingOrder, now: Timestamp) -> Result<(), &'static str> {
        if self.qemu.is_none() {
            return Err("it has ended");
        }
        if self.incoming.as_ref().is_some_and(|at| !at.is_begun()) {
            return Err("the guest is not here yet");
        }
        match &mut self.outgoing {
            Some(outgoing) if outgoing.id() == order.id => {
                outgoing.handle(now, OutgoingEvent::Order(order));
            }
            Some(_) => return Err("another migration is not over"),
            None => self.outgoing = Some(Outgoing::new(order)),
        }
        Ok(())
    }

    fn receive(&mut self, order: IncomingOrder) {
        let arrival = Arrival {
            order,
            shares_disk: true,
            listening: false,
            begun: false,
            ran: false,
        };
        self.arrival = Some(arrival.clone());
        self.incoming = Some(Incoming::new(arrival, self.destination()));
        self.qemu = Some(Qemu {
            migration: "none",
            run: "inmigrate",
            peer: None,
            whole: false,
        });
    }
}
