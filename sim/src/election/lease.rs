//! Calls about the Lease, and what the replicas make of them.

use protocol::time::{Span, Timestamp};
use scheduler::core::elect::{LeaseState, LeaseWrite, Step};
use scheduler::core::event::Event as CoreEvent;
use scheduler::core::lease::LeaseSeen;

use super::{LeaseCall, LeaseResponse};
use crate::api::SCHEDULER_PATIENCE;
use crate::event::{Event, Incarnation, Sleeper};
use crate::faults::Link;
use crate::world::World;

/// A call about the Lease arrives within this time or never.
const LATEST: Span = Span::from_secs(4);

/// Calls at one instant.
const STEPS_AT_ONCE: usize = 16;

impl World {
    /// Takes part in the election, as far as it comes without an answer.
    pub(crate) fn drive_election(&mut self, replica: usize) {
        let of = self.incarnation(replica);
        for _ in 0..STEPS_AT_ONCE {
            self.go_on_retiring(replica);
            let now = self.now;
            let part = &mut self.schedulers[replica];
            let Some(election) = part.election.as_mut().filter(|_| part.epoch == of.epoch) else {
                return;
            };
            let call = match election.elector.poll(now) {
                Step::Read => LeaseCall::Read,
                Step::Write(write) => LeaseCall::Write(write),
                Step::Wait(until) => {
                    if election.elector.has_left() && election.leaves.is_some() {
                        continue;
                    }
                    // A replica that ends polls until it may.
                    let soon = election.retires.map(|_| now + Span::from_millis(100));
                    let until = soon.map_or(until, |soon| soon.min(until));
                    let until = (until < Timestamp(u64::MAX)).then_some(until);
                    return self.set_alarm(Sleeper::Election(replica, of.epoch), until);
                }
            };
            self.send_lease_call(of, call);
        }
        self.checks.fail(
            "n05_level_triggered_without_spinning",
            None,
            "the election never stops".into(),
        );
    }

    fn send_lease_call(&mut self, of: Incarnation, call: LeaseCall) {
        let id = self.number();
        if let Some(election) = self.schedulers[of.replica].election.as_mut() {
            election.flight = Some(id);
        }
        let end = Event::LeaseAnswers(of, id, LeaseResponse::Failed);
        self.after(SCHEDULER_PATIENCE, end);
        if let Some(delay) = self.delivery(Link::Api).first() {
            let delay = Span(delay.0.min(LATEST.0));
            self.after(delay, Event::LeaseArrives(of, id, call));
        }
    }

    /// The API server reads or writes the Lease, whether or not its caller is still there.
    pub(crate) fn lease_arrives(&mut self, of: Incarnation, id: u64, call: LeaseCall) {
        if self.fault_schedule.api_is_away(self.now) {
            return;
        }
        let answer = match call {
            LeaseCall::Read => LeaseResponse::Read(self.lease.clone()),
            LeaseCall::Write(write) => self.write_lease(write),
        };
        if let Some(delay) = self.delivery(Link::Api).first() {
            self.after(delay, Event::LeaseAnswers(of, id, answer));
        }
    }

    /// A write is conditional on the version that was seen.
    fn write_lease(&mut self, write: LeaseWrite) -> LeaseResponse {
        let version = self.lease.as_ref().map(|lease| lease.version);
        if write.base != version {
            return LeaseResponse::Failed;
        }
        let state = LeaseState {
            version: version.unwrap_or(0) + 1,
            ..write.state
        };
        self.lease = Some(state.clone());
        for replica in 0..self.schedulers.len() {
            let delay = self.delivery(Link::Watch).first();
            let at = self.now + delay.unwrap_or(Span::from_secs(1));
            let of = self.incarnation(replica);
            if let Some(election) = self.schedulers[replica].election.as_mut() {
                let at = at.max(election.told);
                election.told = at;
                self.put(at, Event::LeaseSeen(of, state.clone()));
            }
        }
        LeaseResponse::Written(state)
    }

    pub(crate) fn lease_answers(&mut self, of: Incarnation, id: u64, answer: LeaseResponse) {
        let now = self.now;
        if !self.lives(of) {
            return;
        }
        let election = self.schedulers[of.replica].election.as_mut();
        let Some(election) = election.filter(|election| election.flight == Some(id)) else {
            return;
        };
        election.flight = None;
        let told = match answer {
            LeaseResponse::Read(state) => election.elector.seen(now, state),
            LeaseResponse::Written(state) => election.elector.written(now, state),
            LeaseResponse::Failed => {
                election.elector.failed(now);
                None
            }
        };
        self.tell_lease(of.replica, told);
    }

    pub(crate) fn lease_seen(&mut self, of: Incarnation, state: LeaseState) {
        let now = self.now;
        if !self.lives(of) {
            return;
        }
        let election = self.schedulers[of.replica].election.as_mut();
        let told = election.and_then(|election| election.elector.seen(now, Some(state)));
        self.tell_lease(of.replica, told);
    }

    fn tell_lease(&mut self, replica: usize, told: Option<LeaseSeen>) {
        if let Some(seen) = told {
            self.tell_scheduler(replica, CoreEvent::Lease(seen));
        }
        self.drive_election(replica);
    }

    /// N45: of two replicas at most one acts. One that is ending begins nothing, whatever it still
    /// knows of the Lease.
    pub(crate) fn n45_one_leads(&mut self) {
        let now = self.now;
        let parts = self.schedulers.iter().filter(|part| part.serves());
        let cores = parts.filter_map(|part| part.core.as_ref());
        self.checks.made += 1;
        if cores.filter(|core| core.may_act(now)).count() > 1 {
            let text = format!("{:?}", self.lease);
            self.checks.fail("n45_one_leads", None, text);
        }
    }
}
