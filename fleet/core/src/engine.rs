//! The engine of one environment. It plans from the newest world, one write at a time.
//!
//! After each finished write it changes its own copy of the world. A write that failed makes it
//! wait for the next world. So a decision never rests on a state from before its own last write.

mod action;
mod agenda;
mod cron;
mod finalizer;
mod gates;
mod grant;
mod hooks;
mod images;
mod lifecycle;
mod monitor;
mod moved;
mod order;
mod rollback;
mod stage;
mod standing;
mod timing;
mod turn;

use std::collections::BTreeMap;

use protocol::core::Core;
use protocol::fleet::{DeploymentStatus, Health};
use protocol::time::Timestamp;

use crate::steady::Steady;
use crate::world::{Deployment, World};
pub use action::{Action, Call, Event, Now, Outcome, Write};
use agenda::{Agenda, Guests, LOOK_EVERY};
pub use stage::watched;
pub(crate) use turn::MARGIN_SECONDS;
use turn::Memory;

/// Decides about one environment.
#[derive(Debug, Clone)]
pub struct Engine {
    epoch: u64,
    world: Option<World>,
    memory: BTreeMap<String, Memory>,
    writing: Option<(u64, Write)>,
    calls: BTreeMap<u64, (String, Call)>,
    next_id: u64,
    basis: u64,
    has_quit: bool,
    /// Outcomes of actions that the engine does not wait for.
    unknown_outcomes: u64,
    wake: Option<Timestamp>,
    /// Health of the guests that is shown.
    health: Health,
    steady: Steady,
    agenda: Agenda,
}

impl Engine {
    /// An engine that knows nothing. `epoch` is the number of its run, above those before.
    #[must_use]
    pub const fn new(epoch: u64) -> Self {
        Self {
            epoch,
            world: None,
            memory: BTreeMap::new(),
            writing: None,
            calls: BTreeMap::new(),
            next_id: 1,
            basis: 0,
            has_quit: false,
            unknown_outcomes: 0,
            wake: None,
            health: Health::Unknown,
            steady: Steady::new(),
            agenda: Agenda::new(),
        }
    }

    /// Number of finished writes. A world that was read before one of them is not used.
    #[must_use]
    pub const fn basis(&self) -> u64 {
        self.basis
    }

    /// Outcomes that belonged to no action in flight.
    #[must_use]
    pub const fn unknown_outcomes(&self) -> u64 {
        self.unknown_outcomes
    }

    /// The objects as this engine holds them.
    #[must_use]
    pub const fn world(&self) -> Option<&World> {
        self.world.as_ref()
    }

    fn take_world(&mut self, basis: u64, mut world: World, now: Now) {
        if basis != self.basis || self.writing.is_some() {
            return;
        }
        self.memory
            .retain(|name, _| world.guests.contains_key(name));
        for (name, guest) in &mut world.guests {
            let memory = self.memory.entry(name.clone()).or_default();
            memory.observe(guest, now.monotonic);
            guest.is_deferred = memory.is_deferred(now.monotonic);
        }
        let seen = lifecycle::health_of_guests(&world);
        let shown = world.environment.status.health;
        self.health = self.steady.observe(seen, shown, now.monotonic);
        self.agenda.refill(&world, now.monotonic);
        self.world = Some(world);
    }

    fn done(&mut self, id: u64, outcome: Outcome, now: Now) {
        if let Some((_, write)) = self.writing.take_if(|(writing, _)| *writing == id) {
            self.basis += 1;
            if let Write::Turn { guest, .. } | Write::End { guest, .. } = &write
                && let Some(memory) = self.memory.get_mut(guest)
            {
                memory.written(&outcome, now.monotonic);
            }
            match outcome {
                Outcome::Done => self.apply(write, now),
                _ => self.world = None,
            }
            return;
        }
        let Some((guest, call)) = self.calls.remove(&id) else {
            self.unknown_outcomes += 1;
            return;
        };
        if let Some(memory) = self.memory.get_mut(&guest) {
            memory.called(&call, outcome, now.monotonic);
        }
        self.agenda.changed(guest);
    }

    fn apply(&mut self, write: Write, now: Now) {
        let Some(world) = &mut self.world else {
            return;
        };
        let agenda = &mut self.agenda;
        match write {
            Write::Environment(status) => {
                let before = std::mem::replace(&mut world.environment.status, status.clone());
                agenda.environment_written(world, &before, &status, now.monotonic);
            }
            Write::Finalizer(is_there) => {
                world.environment.has_finalizer = is_there;
                agenda.refill(world, now.monotonic);
            }
            Write::Deployment { name, status } => {
                let of_name = world.deployments.iter_mut().find(|one| one.name == name);
                if let Some(deployment) = of_name {
                    let before = std::mem::replace(&mut deployment.status, status.clone());
                    agenda.deployment_written(world, &before, &status, now.monotonic);
                }
            }
            Write::Create { name, spec } => {
                world.deployments.push(Deployment {
                    name,
                    created: now.wall,
                    spec,
                    status: DeploymentStatus::default(),
                    answers: BTreeMap::new(),
                });
                agenda.refill(world, now.monotonic);
            }
            Write::Turn { guest: name, turn } => {
                if let Some(guest) = world.guests.get_mut(&name) {
                    guest.turn = Some(turn);
                    let memory = self.memory.entry(name.clone()).or_default();
                    memory.observe(guest, now.monotonic);
                    agenda.turn_written(name);
                }
            }
            Write::End {
                guest: name, part, ..
            } => {
                agenda.end_written(&name, part.last.result);
                if let Some(memory) = self.memory.get_mut(&name) {
                    memory.ended(part.last.result);
                }
                if let Some(guest) = world.guests.get_mut(&name) {
                    guest.last = Some(part);
                }
            }
        }
    }

    /// Moves of deployments come first, then ends and turns of guests that are known to be due, and
    /// then what a pass over all guests finds.
    fn next_write(&mut self, now: Now) -> Option<Write> {
        let world = self.world.as_ref()?;
        if world.environment.is_deleted && !world.environment.has_finalizer {
            return None;
        }
        if world.environment.spec.is_cron() {
            return self.next_of_cron(now);
        }
        if self.agenda.is_late(now.monotonic) {
            self.agenda.refill(world, now.monotonic);
        }
        if self.agenda.may_move {
            if let Some(write) = self.next_move(now) {
                return Some(write);
            }
            self.agenda.may_move = false;
        }
        let world = self.world.as_ref()?;
        let guests = Guests {
            world,
            memory: &self.memory,
            calls: &self.calls,
            now,
        };
        if let Some(write) = self.agenda.next_end(&guests) {
            return Some(write);
        }
        if let Some(write) = grant::next_known(world, &mut self.agenda.grants, now) {
            return Some(write);
        }
        if !self.agenda.is_pass_due(world.guests.len(), now.monotonic) {
            return None;
        }
        self.pass(now)
    }

    fn next_move(&self, now: Now) -> Option<Write> {
        let world = self.world.as_ref()?;
        finalizer::next(world).or_else(|| lifecycle::next(world, self.epoch, now))
    }

    /// Looks at all guests.
    fn pass(&mut self, now: Now) -> Option<Write> {
        if let Some(write) = self.next_move(now) {
            return Some(write);
        }
        let world = self.world.as_ref()?;
        let is_sick = self.steady.lasts(Health::Unhealthy, now.monotonic);
        let grants = &mut self.agenda.grants;
        let next = grant::next(world, &self.memory, grants, now)
            .or_else(|| monitor::next(world, is_sick, now))
            .or_else(|| lifecycle::progress(world))
            .or_else(|| lifecycle::environment_status(world, self.health, is_sick, now.wall));
        if next.is_none() {
            self.agenda.pass_ended(now.monotonic);
        }
        next
    }

    fn next_of_cron(&self, now: Now) -> Option<Write> {
        let world = self.world.as_ref()?;
        let is_sick = self.steady.lasts(Health::Unhealthy, now.monotonic);
        self.next_move(now)
            .or_else(|| cron::next(world, now.wall))
            .or_else(|| lifecycle::environment_status(world, self.health, is_sick, now.wall))
    }

    fn next_call(&mut self, now: Now) -> Option<(String, Call)> {
        let world = self.world.as_ref();
        let world = world.filter(|world| !world.environment.spec.is_cron())?;
        let guests = Guests {
            world,
            memory: &self.memory,
            calls: &self.calls,
            now,
        };
        let (name, call, ending) = self.agenda.next_call(&guests)?;
        if let Some(memory) = self.memory.get_mut(&name).filter(|_| ending.is_some()) {
            memory.ending = ending;
        }
        Some((name, call))
    }

    const fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }
}

impl Core for Engine {
    type Time = Now;
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Now, event: Event) {
        match event {
            Event::World { basis, world } => self.take_world(basis, *world, now),
            Event::Done { id, outcome } => self.done(id, outcome, now),
            Event::LeadLost => self.has_quit = true,
        }
    }

    fn poll_action(&mut self, now: Now) -> Option<Action> {
        self.wake = None;
        if self.has_quit {
            return None;
        }
        if self.writing.is_none()
            && let Some(write) = self.next_write(now)
        {
            let id = self.take_id();
            self.writing = Some((id, write.clone()));
            return Some(Action::Write { id, write });
        }
        if let Some((guest, call)) = self.next_call(now) {
            let id = self.take_id();
            self.calls.insert(id, (guest.clone(), call.clone()));
            return Some(Action::Call { id, guest, call });
        }
        let is_running = |one: &Deployment| !one.status.state.is_terminal();
        if self.world.as_ref()?.deployments.iter().any(is_running) {
            let guests = self.world.as_ref()?.guests.len();
            let pause = self.agenda.pause_left(guests, now.monotonic);
            self.wake = Some(now.monotonic + pause.unwrap_or(LOOK_EVERY));
        }
        None
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        self.wake
    }
}
