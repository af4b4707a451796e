//! Which guest moves to a new runner next, and what follows from its migration?
//!
//! A runner cannot be replaced in place. A guest gets a new one by a migration to another pod.
//! [`Movers`] gets what was seen of all guests ([`World`]), and yields one order for each. What
//! must survive it is in the objects: [`next`] derives each step from them.
//!
//! * [`step`]: the next order of one guest.
//! * [`start`]: whether a guest may begin to move.
//! * [`change`]: whether a write changes one field.
//!
//! # Rules
//! * Without settings there is no action.
//! * The decision is written first, then the VM's field, then the migration. Its end is written
//!   before the migration is deleted, and only a migration that has ended is deleted, unless its
//!   time is over.
//! * The field goes back to a value that the VM's pod proves, never to one that a record claims.
//! * A runner that is bad in one guest comes to no other.

pub mod change;
mod memory;
pub mod start;
pub mod step;
mod world;

use std::collections::{BTreeMap, VecDeque};

use protocol::core::Core;
use protocol::time::{Span, Timestamp};

pub use memory::Memory;
pub use step::{Next, Order, next};
pub use world::{
    Fixed, Guest, Key, Migration, Settings, Wanted, World, is_same_runner, migration_name,
};

use crate::engine::{Now, Outcome};
use crate::permit::Gate;

/// After a look that failed.
const RETRY_AFTER: Span = Span::from_secs(30);

/// Something that happened.
#[derive(Debug)]
pub enum Event {
    /// What the driver read after [`Action::Look`].
    World(Box<World>),
    /// The look failed.
    LookFailed,
    /// End of an order.
    Done {
        /// Guest of the order.
        guest: Key,
        /// How it ended.
        outcome: Outcome,
    },
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Read the world.
    Look,
    /// Carry out an order.
    Order {
        /// Guest of the order.
        guest: Key,
        /// Step of its move to carry out.
        order: Order,
    },
}

/// The core of moves: plans passes, and has one order in flight for each guest.
#[derive(Debug)]
pub struct Movers {
    settings: Option<Settings>,
    /// Memory of the open moves, by the name of their migration.
    memories: BTreeMap<(Key, String), Memory>,
    /// Why guests that need another runner do not move.
    waiting: BTreeMap<Key, Gate>,
    orders: VecDeque<(Key, Order)>,
    in_flight: BTreeMap<Key, Order>,
    is_looking: bool,
    /// Whether the last look found an open move or a due order.
    is_busy: bool,
    next_look: Option<Timestamp>,
    pass_begun: Option<Timestamp>,
}

impl Movers {
    /// A core. Without settings it does nothing.
    #[must_use]
    pub const fn new(settings: Option<Settings>) -> Self {
        Self {
            settings,
            memories: BTreeMap::new(),
            waiting: BTreeMap::new(),
            orders: VecDeque::new(),
            in_flight: BTreeMap::new(),
            is_looking: false,
            is_busy: true,
            next_look: None,
            pass_begun: None,
        }
    }

    /// Why guests that need another runner do not move, as of the last look.
    #[must_use]
    pub const fn waiting(&self) -> &BTreeMap<Key, Gate> {
        &self.waiting
    }

    /// Whether the last look found no open move and no due order.
    #[must_use]
    pub const fn is_at_rest(&self) -> bool {
        !self.is_busy
    }

    fn plan(&mut self, now: Now, world: &World) {
        let Some(settings) = &self.settings else {
            return;
        };
        let mut budget = start::Budget::of(world, settings);
        let mut memories = BTreeMap::new();
        self.waiting.clear();
        for guest in &world.guests {
            let planned = match guest.open() {
                Some(open) => {
                    let name = (guest.key.clone(), open.migration.clone());
                    let known = self.memories.remove(&name).unwrap_or_default();
                    let memory = known.after(guest, now.monotonic);
                    let planned = next(guest, world, settings, &memory, now);
                    memories.insert(name, memory);
                    planned
                }
                None => start::start(guest, world, settings, &mut budget, now),
            };
            match planned {
                Next::Order(order) => self.orders.push_back((guest.key.clone(), order)),
                Next::Gate(gate) => {
                    self.waiting.insert(guest.key.clone(), gate);
                }
                Next::Wait => {}
            }
        }
        self.memories = memories;
        // A person waits for guests that are held for a moment only.
        let is_awaited = settings.ordered_at.is_some() && self.waiting.values().any(passes);
        self.is_busy = is_awaited || !self.orders.is_empty() || !self.memories.is_empty();
        let soon = now.monotonic + settings.look_every;
        let pass = self.pass_begun.map(|begun| begun + settings.pass_every);
        let rest = pass.filter(|_| !self.is_busy).unwrap_or(soon);
        self.next_look = Some(rest.max(soon));
    }
}

/// Whether a gate opens by itself, and soon.
const fn passes(gate: &Gate) -> bool {
    matches!(
        gate,
        Gate::Resizing | Gate::Migrating | Gate::PeerInFlight | Gate::Node | Gate::InFlight
    )
}

impl Core for Movers {
    type Time = Now;
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Now, event: Event) {
        match event {
            Event::World(world) => {
                if std::mem::take(&mut self.is_looking) {
                    self.plan(now, &world);
                }
            }
            Event::LookFailed => {
                self.is_looking = false;
                self.next_look = Some(now.monotonic + RETRY_AFTER);
            }
            Event::Done { guest, outcome } => {
                let order = self.in_flight.remove(&guest);
                if !matches!(outcome, Outcome::Done | Outcome::Conflict) {
                    self.next_look = Some(now.monotonic + RETRY_AFTER);
                }
                let mut memories = self.memories.iter_mut();
                if let Some((_, memory)) = memories.find(|((key, _), _)| *key == guest) {
                    match (order, outcome) {
                        (Some(Order::PutBack { .. }), Outcome::Refused(reason)) => {
                            memory.stays = Some(reason);
                        }
                        (_, Outcome::Refused(reason)) => memory.refused = Some(reason),
                        // It may be deleted before the next look.
                        (Some(Order::Migrate { .. }), Outcome::Done) => memory.was_seen = true,
                        _ => {}
                    }
                }
            }
        }
    }

    fn poll_action(&mut self, now: Now) -> Option<Action> {
        let settings = self.settings.as_ref()?;
        if let Some((guest, order)) = self.orders.pop_front() {
            self.in_flight.insert(guest.clone(), order.clone());
            return Some(Action::Order { guest, order });
        }
        let is_due = self.next_look.is_none_or(|next| now.monotonic >= next);
        if self.is_looking || !self.in_flight.is_empty() || !is_due {
            return None;
        }
        let is_over = |begun: Timestamp| now.monotonic.since(begun) >= settings.pass_every;
        if self.pass_begun.is_none_or(is_over) {
            self.pass_begun = Some(now.monotonic);
        }
        self.is_looking = true;
        Some(Action::Look)
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        self.settings.as_ref()?;
        let is_idle = !self.is_looking && self.in_flight.is_empty();
        is_idle.then_some(self.next_look).flatten()
    }
}
