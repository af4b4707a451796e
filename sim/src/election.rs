//! The Lease that two replicas of the scheduler hold in turn, with the shipped election. What the
//! shells do between core and wire is repeated here: `leader-election/src/shell` and
//! `scheduler/src/shell/driver.rs`. A replica that receives SIGTERM hands over. A killed one does
//! not.

use protocol::time::{Span, Timestamp};
use scheduler::core::elect::{ElectRule, Elector, LeaseState, LeaseWrite, Leave, Step};
use scheduler::core::event::Event as CoreEvent;
use scheduler::core::lease::LeaseSeen;
use scheduler::core::{Core, Settings};

use crate::api::SCHEDULER_PATIENCE;
use crate::event::{Event, Incarnation, Sleeper};
use crate::faults::Link;
use crate::journal::{Note, Part};
use crate::options::Sabotage;
use crate::world::World;

/// How long a Lease is respected after a renewal (`--lease-seconds`).
pub(crate) const LEASE_LASTS: Span = Span::from_secs(8);
/// Longer than a call of the last leader can take: the patience with one, and how late it can land
/// (`scheduler/src/args.rs`).
pub(crate) const SETTLE: Span = Span::from_secs(2);
/// A call about the Lease arrives within this time or never.
const LATEST: Span = Span::from_secs(4);
/// How long a process that ends waits for its watches to show what it did
/// (`scheduler/src/shell/driver.rs`).
pub(crate) const SHOW_OWN: Span = Span::from_secs(1);
/// How long it waits for what is under way, and then for the Lease to be given up
/// (`scheduler/src/shell.rs`).
pub(crate) const HAND_OVER: Span = Span::from_secs(3);
/// Calls at one instant.
const STEPS_AT_ONCE: usize = 16;
/// What is counted when a leader is told to end.
pub(crate) const HANDED_OVER: &str = "scheduler told to end";

/// A call about the Lease.
#[derive(Debug, Clone)]
pub(crate) enum LeaseCall {
    Read,
    /// Makes or replaces it.
    Write(LeaseWrite),
}

/// How such a call ended.
#[derive(Debug, Clone)]
pub(crate) enum LeaseResponse {
    /// It was read; nothing: there is none.
    Read(Option<LeaseState>),
    /// It was written, and is this now.
    Written(LeaseState),
    /// It was refused, or nothing was heard.
    Failed,
}

/// A replica's part in the election.
pub(crate) struct Election {
    elector: Elector,
    /// When to wake up.
    pub(crate) alarm: Option<Timestamp>,
    /// The call under way.
    flight: Option<u64>,
    /// No state is told before one that was sent earlier.
    told: Timestamp,
    /// When it was told to end.
    retires: Option<Timestamp>,
    /// When it began to give the Lease up.
    leaves: Option<Timestamp>,
}

impl Election {
    /// Whether its process is ending.
    pub(crate) const fn retires(&self) -> bool {
        self.retires.is_some()
    }
}

impl World {
    /// A replica starts under a name that was never used.
    pub(crate) fn start_replica(&mut self, replica: usize, settings: Settings) {
        let epoch = self.schedulers[replica].epoch;
        let rule = ElectRule {
            identity: format!("scheduler-{replica}-{epoch}"),
            duration: LEASE_LASTS,
            settle: SETTLE,
        };
        let with_lease = !self.cheats(Sabotage::NoLease);
        let part = &mut self.schedulers[replica];
        part.core = Some(Core::new(Settings {
            lease: with_lease.then(|| rule.lease_rule()),
            caches_on_standby: true,
            ..settings
        }));
        part.alarm = None;
        part.election = Some(Election {
            elector: Elector::new(rule),
            alarm: None,
            flight: None,
            told: self.now,
            retires: None,
            leaves: None,
        });
        self.drive_scheduler(replica);
        self.drive_election(replica);
    }

    /// One of two replicas dies, or is told to end; where there is one, it dies.
    pub(crate) fn scheduler_trouble(&mut self, pause: Span) {
        if self.schedulers.len() == 1 {
            return self.crash(Part::Scheduler(0), pause);
        }
        let replica = self.rng.index(self.schedulers.len());
        match self.rng.below(3) {
            0 => self.crash(Part::Scheduler(replica), pause),
            _ => self.retire(self.incarnation(replica)),
        }
    }

    /// A replica's process is told to end: it begins nothing more, and gives the Lease up when what
    /// it began has ended.
    fn retire(&mut self, of: Incarnation) {
        let now = self.now;
        if !self.lives(of) {
            return;
        }
        let part = &mut self.schedulers[of.replica];
        let leads = part.core.as_ref().is_some_and(|core| core.may_act(now));
        let Some(election) = part
            .election
            .as_mut()
            .filter(|election| !election.retires())
        else {
            return;
        };
        election.retires = Some(now);
        if leads {
            self.tally.count(HANDED_OVER);
        }
        self.note(Note::Fault(HANDED_OVER, of.replica));
        self.drive_election(of.replica);
    }

    /// What a process that ends does next: waits for what is under way, gives the Lease up, is
    /// gone.
    fn go_on_retiring(&mut self, replica: usize) {
        let now = self.now;
        let part = &mut self.schedulers[replica];
        let (Some(core), Some(election)) = (part.core.as_ref(), part.election.as_mut()) else {
            return;
        };
        let Some(since) = election.retires else {
            return;
        };
        if let Some(leaves) = election.leaves {
            if election.elector.has_left() || now >= leaves + HAND_OVER {
                self.crash_scheduler(replica);
                let pause = self.rng.millis(100, 5_000);
                self.after(pause, Event::Start(Part::Scheduler(replica)));
            }
            return;
        }
        let leaves_marks = core.caches_on_standby() && core.is_ready();
        let marks = leaves_marks.then(|| core.version_marks()).flatten();
        let is_drained = core.is_drained();
        let waits_for_own = leaves_marks && marks.is_none() && now < since + SHOW_OWN;
        if (!is_drained || waits_for_own) && now < since + HAND_OVER {
            return;
        }
        let handover = marks.map(|marks| marks.to_string());
        election.elector.leave(Leave {
            is_drained,
            handover,
        });
        election.leaves = Some(now);
    }

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
                    // Whoever ends looks again and again whether it may.
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
