//! The permit link: one HTTP request per task at a time, and everything that can become of it.

use agent::core::{Event as CoreEvent, Failure, RequestId};
use protocol::permit::{AgentRequest, PermitRefusal, PluginResponse};
use protocol::time::Span;

use super::{Flight, PERMIT_PATIENCE};
use crate::event::Event;
use crate::faults::{Delivery, Link};
use crate::journal::Note;
use crate::options::Sabotage;
use crate::world::World;

impl World {
    pub(crate) fn send_permit(
        &mut self,
        vm: usize,
        agent_task: u64,
        id: RequestId,
        body: AgentRequest,
    ) {
        let number = self.number();
        let replica = self.serving_replica();
        let never_left = !self.schedulers[replica].serves();
        self.flights.insert(
            number,
            Flight {
                vm,
                agent_task,
                id,
                replica,
                never_left,
            },
        );
        if never_left {
            return self.after(Span::from_millis(1), Event::PermitBreaks(number));
        }
        self.after(PERMIT_PATIENCE, Event::PermitBreaks(number));
        let delivery = self.delivery(Link::Permit);
        if let Delivery::Twice(_, again) = delivery {
            self.after(again, Event::PermitArrives(number, Box::new(body.clone())));
        }
        match delivery.first() {
            Some(delay) => self.after(delay, Event::PermitArrives(number, Box::new(body))),
            None => {
                let early = self.rng.millis(1, 2_000);
                self.after(early, Event::PermitBreaks(number));
            }
        }
    }

    pub(crate) fn permit_arrives(&mut self, number: u64, body: AgentRequest) {
        // The server drops a request whose client has hung up (`scheduler/src/shell/driver.rs`):
        // the end of a connection travels right behind what was sent over it.
        let Some(replica) = self.flights.get(&number).map(|flight| flight.replica) else {
            return self.tally.count("permit after hang-up");
        };
        if !self.schedulers[replica].serves() {
            return self.after(Span::from_millis(1), Event::PermitBreaks(number));
        }
        self.scheduler_asked(replica, number, body);
    }

    /// Whether the task that sent a request is there.
    pub(crate) fn is_awaited(&mut self, number: u64) -> bool {
        let flight = self.flights.get(&number).copied();
        flight.is_some_and(|flight| self.agent_task(flight.vm, flight.agent_task).is_some())
    }

    /// The answer leaves the scheduler.
    pub(crate) fn send_answer(
        &mut self,
        number: u64,
        result: Result<PluginResponse, PermitRefusal>,
    ) {
        if let Some(delay) = self.delivery(Link::Permit).first() {
            self.after(delay, Event::PermitAnswers(number, result));
        }
    }

    pub(crate) fn permit_answers(
        &mut self,
        number: u64,
        mut result: Result<PluginResponse, PermitRefusal>,
    ) {
        let Some(flight) = self.flights.remove(&number) else {
            return;
        };
        if let (true, Ok(response)) = (self.cheats(Sabotage::GarblePermit), &mut result) {
            response.permit.mem.0 /= 2;
        }
        let permit = result.as_ref().ok().map(|response| response.permit);
        self.note(Note::PermitReaches {
            vm: flight.vm,
            permit,
        });
        let result = result.map_err(|refusal| match refusal.status() {
            400..=499 => Failure::NotApplied,
            _ => Failure::Unknown,
        });
        if self.agent_task(flight.vm, flight.agent_task).is_some() {
            if let Some(permit) = permit {
                self.checks.permitted(flight.vm, permit);
            }
            self.tell_agent_task(flight.vm, CoreEvent::PermitDone(flight.id, result));
        }
    }

    pub(crate) fn permit_breaks(&mut self, number: u64) {
        let Some(flight) = self.flights.remove(&number) else {
            return;
        };
        let failure = if flight.never_left {
            Failure::NotApplied
        } else {
            Failure::Unknown
        };
        if self.agent_task(flight.vm, flight.agent_task).is_some() {
            self.tell_agent_task(flight.vm, CoreEvent::PermitDone(flight.id, Err(failure)));
        }
    }
}
