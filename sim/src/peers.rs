//! Machines without a cluster, on a virtual clock: gossip that loses messages, partitions, deaths.
//!
//! The core of `peers-core` is the shipped one. The gossip is a model of the library's: each
//! machine counts its heartbeats, and exchanges all that it has heard with some others. A machine
//! whose count stands still for [`DEAD_AFTER`] counts as dead.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use peers_core::{Action, Claim, Event, Inventory, Leader, MachineId, Peer, Plan, Role, Settings};
use protocol::core::Core as _;
use protocol::time::{Span, Timestamp};

use crate::rng::{MILLION, Rng, Stream};

mod ledger;
mod scenario;

use ledger::Ledger;

pub use scenario::{Measured, death, join, split};

/// Pace of the gossip, and of the model.
const STEP: Span = Span::from_millis(500);
/// Machines that each gossips with in a step.
const FANOUT: usize = 3;
/// The library's detector takes about eight usual pauses; with losses some more.
const DEAD_AFTER: Span = Span::from_secs(8);
/// The one set that the machines share.
const SET: &str = "web";
/// Members that it should have, for each machine.
const MEMBERS_EACH: u32 = 3;

/// What is made wrong, so that a check can be seen to fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// A leader is told at once that nothing runs anywhere.
    NoGather,
    /// Each machine expects itself alone.
    NoQuorum,
    /// Machines do not hear claims.
    DeafToClaims,
    /// The core is never polled after the first leader has died.
    Asleep,
    /// Machines start the members of each plan without a look at their own ledger.
    NoLedger,
}

/// What determines a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Everything follows from it.
    pub seed: u64,
    /// Number of machines.
    pub machines: usize,
    /// Chance that a message is lost, in a million.
    pub loss: u32,
    /// What is made wrong.
    pub sabotage: Option<Sabotage>,
}

/// What a machine tells others of itself.
#[derive(Debug, Clone, Default)]
struct Gossiped {
    peer: Peer,
    plan: Option<Plan>,
}

/// What a machine has heard of another.
#[derive(Debug, Clone)]
struct Heard {
    heartbeat: u64,
    since: Timestamp,
    state: Gossiped,
}

#[derive(Debug)]
struct Machine {
    id: MachineId,
    core: Leader,
    heartbeat: u64,
    own: Gossiped,
    heard: BTreeMap<usize, Heard>,
    /// Members that the set has here. One without room waits.
    count: u32,
    ledger: Ledger,
    /// It responds to a leader that gathers, but late.
    slow: bool,
    dead: bool,
    done: Option<(Claim, u32)>,
}

/// A response to a leader that gathers, on its way.
#[derive(Debug)]
struct Response {
    due: Timestamp,
    from: usize,
    to: usize,
    inventory: Inventory,
}

/// A plan, as a leader made it.
#[derive(Debug, Clone)]
struct Planned {
    at: Timestamp,
    by: usize,
}

/// Machines, their network, and what was checked.
#[derive(Debug)]
struct World {
    options: Options,
    rng: Rng,
    /// Decides what the machines' own VMs want.
    load: Rng,
    now: Timestamp,
    machines: Vec<Machine>,
    /// Group of each machine. Messages pass within a group.
    groups: Vec<usize>,
    responses: VecDeque<Response>,
    plans: Vec<Planned>,
    /// Members that one plan took from a machine while it made others elsewhere.
    moved: u32,
    /// The first machine that promised more than it has.
    overcommitted: Option<String>,
}

impl World {
    fn new(options: Options) -> Self {
        let mut world = Self {
            rng: Rng::new(options.seed, Stream::Fault),
            load: Rng::new(options.seed, Stream::Load),
            now: Timestamp(0) + Span::from_secs(1),
            machines: Vec::new(),
            groups: Vec::new(),
            responses: VecDeque::new(),
            plans: Vec::new(),
            moved: 0,
            overcommitted: None,
            options,
        };
        for _ in 0..options.machines {
            world.add();
        }
        world
    }

    /// Adds a machine that has heard of one other.
    fn add(&mut self) -> usize {
        let index = self.machines.len();
        let id: MachineId = format!("m{index:02}").into();
        let settings = Settings {
            expected: (self.options.sabotage == Some(Sabotage::NoQuorum)).then_some(1),
            ..Settings::default()
        };
        let seed = (index > 0).then(|| self.rng.index(index));
        let heard = Heard {
            heartbeat: 0,
            since: Timestamp(0),
            state: Gossiped::default(),
        };
        self.machines.push(Machine {
            // The response to its join says how many there are.
            core: Leader::new(self.now, id.clone(), 0, settings, self.options.machines),
            id,
            heartbeat: 0,
            own: Gossiped::default(),
            heard: seed.map(|seed| (seed, heard)).into_iter().collect(),
            count: 0,
            ledger: Ledger::default(),
            slow: false,
            dead: false,
            done: None,
        });
        self.groups.push(0);
        index
    }

    fn run_for(&mut self, span: Span) {
        let end = self.now + span;
        while self.now < end {
            self.step();
        }
    }

    fn step(&mut self) {
        self.now = self.now + STEP;
        for index in 0..self.machines.len() {
            if !self.machines[index].dead {
                self.machines[index].heartbeat += 1;
                self.gossip(index);
            }
        }
        self.deliver_responses();
        for index in 0..self.machines.len() {
            if !self.machines[index].dead {
                self.think(index);
                self.size(index);
            }
        }
    }

    /// Sizes the VMs of a machine by its own ledger, whatever it hears of the others.
    fn size(&mut self, index: usize) {
        let wanted = ledger::next_load(&mut self.load);
        let machine = &mut self.machines[index];
        if let Some(units) = wanted {
            machine.ledger.size(units);
        }
        if self.options.sabotage == Some(Sabotage::NoLedger) {
            machine.ledger.force_members(machine.count);
        } else {
            machine.ledger.start_members(machine.count);
        }
        if let Err(error) = machine.ledger.check() {
            let id = &machine.id;
            self.overcommitted
                .get_or_insert_with(|| format!("{id}: {error}"));
        }
    }

    fn passes(&mut self, from: usize, to: usize) -> bool {
        let lost = self.rng.below(MILLION.into()) < u64::from(self.options.loss);
        !lost && !self.machines[to].dead && self.groups[from] == self.groups[to]
    }

    fn gossip(&mut self, from: usize) {
        let known: Vec<usize> = self.machines[from].heard.keys().copied().collect();
        for _ in 0..FANOUT {
            if known.is_empty() {
                return;
            }
            let to = known[self.rng.index(known.len())];
            if self.passes(from, to) {
                self.hear(to, from);
                if self.passes(to, from) {
                    self.hear(from, to);
                }
            }
        }
    }

    /// Machine `to` hears all that `from` has heard.
    fn hear(&mut self, to: usize, from: usize) {
        let sender = &self.machines[from];
        let mut news = sender.heard.clone();
        let own = Heard {
            heartbeat: sender.heartbeat,
            since: self.now,
            state: sender.own.clone(),
        };
        news.insert(from, own);
        news.remove(&to);
        let heard = &mut self.machines[to].heard;
        for (index, mut fresh) in news {
            let is_newer = heard
                .get(&index)
                .is_none_or(|old| old.heartbeat < fresh.heartbeat);
            if is_newer {
                fresh.since = self.now;
                heard.insert(index, fresh);
            }
        }
    }

    fn deliver_responses(&mut self) {
        let now = self.now;
        let (due, later) = self
            .responses
            .drain(..)
            .partition(|response| response.due <= now);
        self.responses = later;
        let due: VecDeque<Response> = due;
        for Response {
            from,
            to,
            inventory,
            ..
        } in due
        {
            if self.passes(from, to) {
                let from = self.machines[from].id.clone();
                self.machines[to]
                    .core
                    .handle(now, Event::Gathered { from, inventory });
            }
        }
    }

    fn alive(&self, index: usize) -> BTreeMap<usize, &Heard> {
        let heard = self.machines[index].heard.iter();
        let fresh = |heard: &Heard| heard.heartbeat > 0 && self.now.since(heard.since) < DEAD_AFTER;
        heard
            .filter(|(_, heard)| fresh(heard))
            .map(|(index, heard)| (*index, heard))
            .collect()
    }

    fn think(&mut self, index: usize) {
        let deaf = self.options.sabotage == Some(Sabotage::DeafToClaims);
        let anyone_died = self.machines.iter().any(|machine| machine.dead);
        if self.options.sabotage == Some(Sabotage::Asleep) && anyone_died {
            return;
        }
        let peers = self.alive(index).into_iter().map(|(other, heard)| {
            let mut peer = heard.state.peer.clone();
            if deaf {
                peer.claim = None;
            }
            (self.machines[other].id.clone(), peer)
        });
        let peers: BTreeMap<MachineId, Peer> = peers.collect();
        let wanted = MEMBERS_EACH * u32::try_from(self.options.machines).unwrap_or(0);
        let machine = &mut self.machines[index];
        machine.own.peer.inventory = machine.inventory();
        let here = machine.own.peer.inventory.clone();
        machine.core.handle(self.now, Event::Here(here));
        machine
            .core
            .handle(self.now, Event::Wanted([(SET.to_owned(), wanted)].into()));
        machine.core.handle(self.now, Event::Members(peers));
        while let Some(action) = self.machines[index].core.poll_action(self.now) {
            self.act(index, action);
        }
        self.follow(index);
    }

    fn act(&mut self, index: usize, action: Action) {
        match action {
            Action::Publish(claim) => self.machines[index].own.peer.claim = claim,
            Action::Gather(id) => {
                let to = self.machines.iter().position(|machine| machine.id == id);
                if let Some(to) = to
                    && self.passes(index, to)
                {
                    self.respond(to, index);
                }
            }
            Action::Plan(plan) => {
                self.count_moves(&plan);
                self.plans.push(Planned {
                    at: self.now,
                    by: index,
                });
                self.machines[index].own.plan = Some(plan);
            }
        }
    }

    fn respond(&mut self, from: usize, to: usize) {
        let asleep = if self.machines[from].slow {
            Span::from_secs(20)
        } else {
            STEP
        };
        let mut inventory = self.machines[from].inventory();
        if self.options.sabotage == Some(Sabotage::NoGather) {
            inventory.counts.insert(SET.to_owned(), 0);
        }
        self.responses.push_back(Response {
            due: self.now + asleep,
            from,
            to,
            inventory,
        });
    }

    /// Counts members that a plan takes here and makes there.
    fn count_moves(&mut self, plan: &Plan) {
        let (mut grown, mut shrunk) = (0, 0);
        for machine in &self.machines {
            if let Some(planned) = plan
                .counts
                .get(&machine.id)
                .and_then(|counts| counts.get(SET))
            {
                grown += planned.saturating_sub(machine.count);
                shrunk += machine.count.saturating_sub(*planned);
            }
        }
        self.moved += grown.min(shrunk);
    }

    /// Carries out the plan of the claim in force.
    fn follow(&mut self, index: usize) {
        let Some(claim) = self.machines[index].core.in_force() else {
            return;
        };
        let holder = self
            .machines
            .iter()
            .position(|machine| machine.id == claim.holder);
        let plan = match holder {
            Some(holder) if holder == index => self.machines[index].own.plan.clone(),
            Some(holder) => self.machines[index]
                .heard
                .get(&holder)
                .and_then(|heard| heard.state.plan.clone()),
            None => None,
        };
        let Some(plan) = plan.filter(|plan| plan.claim.epoch == claim.epoch) else {
            return;
        };
        let machine = &mut self.machines[index];
        let planned = plan
            .counts
            .get(&machine.id)
            .and_then(|counts| counts.get(SET));
        if let Some(count) = planned.copied()
            && machine.done != Some((claim.clone(), count))
        {
            machine.count = count;
            machine.done = Some((claim, count));
        }
    }

    /// Machines that lead or gather.
    fn leaders(&self) -> Vec<usize> {
        let leads = |index: &usize| {
            let machine = &self.machines[*index];
            !machine.dead && matches!(machine.core.role(self.now), Role::Leads | Role::Gathers)
        };
        (0..self.machines.len()).filter(leads).collect()
    }

    /// Claims whose plans the living machines carry out.
    fn orders(&self) -> BTreeSet<Option<Claim>> {
        let living = self.machines.iter().filter(|machine| !machine.dead);
        living.map(|machine| machine.core.in_force()).collect()
    }

    fn total(&self) -> u32 {
        let living = self.machines.iter().filter(|machine| !machine.dead);
        living.map(|machine| machine.count).sum()
    }
}

impl Machine {
    fn inventory(&self) -> Inventory {
        Inventory {
            units_free: self.ledger.free(),
            counts: [(SET.to_owned(), self.count)].into(),
        }
    }
}

#[cfg(test)]
mod tests;
