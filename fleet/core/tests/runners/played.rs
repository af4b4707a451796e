//! A cluster of a few guests: objects that outlive the core, and a controller of migrations.

use std::collections::BTreeMap;

use fleet_core::runners::{
    Action, Event, Guest, Key, Migration, Movers, Order, Settings, Wanted, World,
};
use fleet_core::{Now, Outcome};
use protocol::core::Core as _;
use protocol::fleet::RunnerMoveEnd;
use protocol::time::{Span, Timestamp, WallTime};

pub(crate) const OLD: &str = "r@sha256:0a";
pub(crate) const NEW: &str = "r@sha256:0b";
/// A Sunday at noon.
const BEGIN: i64 = 1_767_528_000_000_000;
/// Between two looks of the played clock.
const TICK: Span = Span::from_secs(3);

/// What a migration comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The guest is at its new pod and well.
    Moves,
    /// The guest stays where it is.
    Fails,
    /// The migration does not end.
    Hangs,
    /// The guest is at its new pod and does not answer.
    Silent,
    /// A person deletes the migration.
    Cancelled,
}

/// Objects and guests, and the core that is driven over them.
pub(crate) struct Cluster {
    pub(crate) settings: Settings,
    pub(crate) world: World,
    pub(crate) endings: BTreeMap<Key, Ending>,
    pub(crate) core: Movers,
    /// Orders that were carried out.
    pub(crate) done: Vec<(Key, Order)>,
    /// Each migration that was created, with its number of creations.
    pub(crate) created: BTreeMap<(Key, String), u32>,
    pub(crate) ends: Vec<(Key, RunnerMoveEnd)>,
    pub(crate) looks: Vec<Timestamp>,
    /// The core ends without memory after this number of orders, whose results it does not see.
    pub(crate) crashes: Vec<usize>,
    elapsed: Span,
}

pub(crate) fn guest(name: &str) -> Guest {
    Guest {
        key: ("default".to_owned(), name.to_owned()),
        uid: format!("uid-{name}"),
        node: "n".to_owned(),
        named: None,
        runs: Some(OLD.to_owned()),
        is_healthy: true,
        ..Guest::default()
    }
}

pub(crate) fn wanted() -> Wanted {
    Wanted {
        to: NEW.to_owned(),
        version: "1.1.0".to_owned(),
        is_critical: false,
    }
}

impl Cluster {
    pub(crate) fn new(settings: Settings, guests: Vec<Guest>) -> Self {
        Self {
            core: Movers::new(Some(settings.clone())),
            settings,
            world: World {
                wanted: Some(wanted()),
                guests,
            },
            endings: BTreeMap::new(),
            done: Vec::new(),
            created: BTreeMap::new(),
            ends: Vec::new(),
            looks: Vec::new(),
            crashes: Vec::new(),
            elapsed: Span::from_secs(0),
        }
    }

    /// Ordered by a person now, so that no window holds it.
    pub(crate) fn ordered(guests: Vec<Guest>) -> Self {
        let settings = Settings {
            ordered_at: Some(WallTime(BEGIN)),
            ..Settings::default()
        };
        Self::new(settings, guests)
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            monotonic: Timestamp(1_000_000) + self.elapsed,
            wall: WallTime(BEGIN + self.elapsed.0.cast_signed()),
        }
    }

    pub(crate) fn guest(&mut self, key: &Key) -> &mut Guest {
        let mut all = self.world.guests.iter_mut();
        all.find(|one| one.key == *key).expect("a guest")
    }

    /// Runs for a time.
    pub(crate) fn run(&mut self, seconds: u64) {
        let until = self.elapsed.0 + Span::from_secs(seconds).0;
        while self.elapsed.0 < until {
            self.step();
            self.play_controller();
            self.elapsed = Span(self.elapsed.0 + TICK.0);
        }
    }

    fn step(&mut self) {
        while let Some(action) = self.core.poll_action(self.now()) {
            match action {
                Action::Look => {
                    self.looks.push(self.now().monotonic);
                    let world = Box::new(self.world.clone());
                    self.core.handle(self.now(), Event::World(world));
                }
                Action::Order { guest, order } => {
                    let outcome = self.carry_out(&guest, &order);
                    self.done.push((guest.clone(), order));
                    if self.crashes.contains(&self.done.len()) {
                        self.core = Movers::new(Some(self.settings.clone()));
                        return;
                    }
                    self.core.handle(self.now(), Event::Done { guest, outcome });
                }
            }
        }
    }

    fn carry_out(&mut self, key: &Key, order: &Order) -> Outcome {
        let count = match order {
            Order::Migrate { migration } => {
                let name = (key.clone(), migration.clone());
                let count = self.created.entry(name).or_default();
                *count += 1;
                *count
            }
            _ => 0,
        };
        if let Order::End(end) = order {
            self.ends.push((key.clone(), end.clone()));
        }
        let guest = self.guest(key);
        match order {
            Order::Begin(turn) => guest.turn = Some(turn.clone()),
            Order::End(end) => guest.end = Some(end.clone()),
            Order::Name { from, to } => {
                assert_eq!(guest.named, *from, "the write is conditional");
                guest.named = Some(to.clone());
            }
            Order::PutBack { from, to } => {
                assert_eq!(guest.named.as_ref(), Some(from), "the write is conditional");
                guest.named.clone_from(to);
            }
            Order::Migrate { .. } => {
                assert_eq!(guest.migration, Migration::Absent, "created {count} times");
                guest.migration = Migration::Live;
            }
            Order::Delete { .. } => {
                guest.migration = Migration::Absent;
            }
        }
        Outcome::Done
    }

    fn play_controller(&mut self) {
        for guest in &mut self.world.guests {
            let ending = self
                .endings
                .get(&guest.key)
                .copied()
                .unwrap_or(Ending::Moves);
            if guest.migration != Migration::Live {
                continue;
            }
            match ending {
                Ending::Moves | Ending::Silent => {
                    guest.migration = Migration::Succeeded;
                    // The next pod has the image that the VM names then.
                    guest.runs = guest.named.clone().or_else(|| guest.runs.clone());
                    guest.is_healthy = ending == Ending::Moves;
                }
                Ending::Fails => guest.migration = Migration::Failed("no room".to_owned()),
                Ending::Cancelled => guest.migration = Migration::Absent,
                Ending::Hangs => {}
            }
        }
    }
}
