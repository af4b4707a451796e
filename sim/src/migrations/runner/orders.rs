//! Orders of the controller to the runner of a machine.

use neonvm_controller::core::{Refusal, migration};
use neonvm_runner::core::transfer::{Arrival, Incoming, Outgoing, OutgoingEvent};
use protocol::core::Core as _;
use protocol::runner::ExitReason;

use super::Qemu;
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
        match action {
            A::Send { order, .. } => {
                if machine.qemu.is_none() {
                    return refused("it has ended");
                }
                if machine.incoming.as_ref().is_some_and(|at| !at.is_begun()) {
                    return refused("the guest is not here yet");
                }
                match &mut machine.outgoing {
                    Some(outgoing) if outgoing.id() == order.id => {
                        outgoing.handle(now, OutgoingEvent::Order(order));
                    }
                    Some(_) => return refused("another migration is not over"),
                    None => machine.outgoing = Some(Outgoing::new(order)),
                }
            }
            A::Recall { id, .. } => {
                if let Some(outgoing) = machine.outgoing.as_mut().filter(|at| at.id() == id) {
                    outgoing.handle(now, OutgoingEvent::Recall);
                }
            }
            A::Quit { id, .. } => {
                let outgoing = machine.outgoing.as_ref().filter(|at| at.id() == id);
                if !outgoing.is_some_and(Outgoing::is_handed_over) {
                    return refused("the guest has not left");
                }
                machine.end(ExitReason::Moved, true);
            }
            A::Receive { order, .. }
                if machine.incoming.is_none() && machine.receives && machine.exit.is_none() =>
            {
                let arrival = Arrival {
                    order: *order,
                    shares_disk: true,
                    listening: false,
                    begun: false,
                    ran: false,
                };
                machine.arrival = Some(arrival.clone());
                machine.incoming = Some(Incoming::new(arrival, machine.destination()));
                machine.qemu = Some(Qemu {
                    migration: "none",
                    run: "inmigrate",
                    peer: None,
                    whole: false,
                });
            }
            A::Begin { id, .. } => {
                let incoming = machine.incoming.as_mut().filter(|at| at.id() == id);
                if !incoming.is_some_and(|incoming| incoming.begin(now)) {
                    return refused("the guest is not here yet");
                }
            }
            _ => {}
        }
        match machine.state() {
            Some(state) => Ok(migration::ActionResponse::Runner(Box::new(state))),
            None => refused("connection refused"),
        }
    }
}
