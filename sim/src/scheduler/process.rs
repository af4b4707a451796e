//! Processes of the scheduler's replicas, and which of them leads.

use clap::Parser as _;
use protocol::time::Span;
use scheduler::config::Config;
use scheduler::core::Core;

use super::SchedulerPart;
use crate::api::SCHEDULER_PATIENCE;
use crate::event::{Event, Incarnation};
use crate::journal::Part;
use crate::world::World;

/// Pause of a new scheduler before it lists, by the options of one machine.
fn takeover_wait() -> Span {
    let options = ["autoscale-scheduler", "--embedded-bind"];
    let args = scheduler::args::Args::try_parse_from(options);
    args.expect("they are an operator's").takeover_wait()
}

impl World {
    pub(crate) fn build_schedulers(&mut self) {
        self.schedulers
            .resize_with(self.options.replicas, SchedulerPart::default);
    }

    pub(crate) fn start_scheduler(&mut self, replica: usize) {
        let mut settings = Config::default().settings(true, true);
        settings.rules.fairness.sharing = self.shares_headroom();
        if self.schedulers.len() > 1 {
            return self.start_replica(replica, settings);
        }
        let part = &mut self.schedulers[replica];
        part.core = Some(Core::new(settings));
        part.alarm = None;
        self.open_streams(Part::Scheduler(replica), takeover_wait());
    }

    pub(crate) fn crash_scheduler(&mut self, replica: usize) {
        let part = &mut self.schedulers[replica];
        part.core = None;
        part.election = None;
        part.epoch += 1;
        let requests = std::mem::take(&mut part.requests);
        self.close_streams(Part::Scheduler(replica));
        // Its connections end with it.
        for (_, (flight, _)) in requests {
            let delay = self.rng.millis(1, 50);
            self.after(delay, Event::PermitBreaks(flight));
        }
    }

    /// The core that answers permits now, if any.
    pub(crate) fn leading_core(&self) -> Option<&Core> {
        let parts = self.schedulers.iter().filter(|part| part.serves());
        let mut cores = parts.filter_map(|part| part.core.as_ref());
        cores.find(|core| core.may_permit(self.now))
    }

    /// The scheduler that an agent sends a request to: the one that answers, as far as is known.
    pub(crate) fn serving_replica(&mut self) -> usize {
        if self.schedulers.len() == 1 {
            return 0;
        }
        let now = self.now;
        let leads =
            |part: &SchedulerPart| part.core.as_ref().is_some_and(|core| core.may_permit(now));
        // Who is ready is told by a watch of pods, which may be late.
        let is_late = self.rng.chance(self.rates.late);
        match self.schedulers.iter().position(leads).filter(|_| !is_late) {
            Some(replica) => replica,
            None => self.rng.index(self.schedulers.len()),
        }
    }

    /// The current process of a replica.
    pub(crate) fn incarnation(&self, replica: usize) -> Incarnation {
        let epoch = self.schedulers[replica].epoch;
        Incarnation { replica, epoch }
    }

    /// Whether this process of a replica still runs.
    pub(crate) fn lives(&self, of: Incarnation) -> bool {
        self.incarnation(of.replica) == of && self.schedulers[of.replica].core.is_some()
    }

    /// How long a call may take that begins now: no longer than the lead.
    pub(crate) fn patience_of(&self, replica: usize) -> Span {
        let core = self.schedulers[replica].core.as_ref();
        let bound = core.and_then(|core| core.call_bound(self.now));
        bound.map_or(SCHEDULER_PATIENCE, |bound| bound.min(SCHEDULER_PATIENCE))
    }
}
