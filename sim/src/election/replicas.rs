//! Start and end of one of two replicas.

use protocol::time::Span;
use scheduler::core::elect::{ElectRule, Elector, Leave};
use scheduler::core::{Core, Settings};

use super::{Election, HAND_OVER, HANDED_OVER, LEASE_LASTS, SETTLE, SHOW_OWN};
use crate::event::{Event, Incarnation};
use crate::journal::{Note, Part};
use crate::options::Sabotage;
use crate::world::World;

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
    pub(super) fn go_on_retiring(&mut self, replica: usize) {
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
}
