//! The task of one environment: passes worlds to its engine and carries out what it decides. A slow
//! guest or write of one environment delays no other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use daemon_kit::StageLog;
use fleet_core::{Action, Call, Engine, Event, Now, Outcome, Write};
use fleet_store::{FleetStore, LoadedEnvironment, Owner};
use protocol::core::Core as _;
use protocol::parts::PartName;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::calls::{Kept, carry_out};
use crate::changes::{Change, Key, of_call, of_write};
use crate::events::Events;
use crate::look::{Address, Looked, Looker, Surroundings, Way};
use crate::nodes::{self, Agents};
use crate::pulse::{Pulse, Pulses};
use crate::records::Records;
use crate::services;
use crate::watch::Watch;

/// Between two looks at the guests while nothing is rolled out.
pub(crate) const IDLE_LOOK_EVERY: Duration = Duration::from_secs(30);
/// Longest time for one write.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// The objects of all environments at a time.
#[derive(Debug)]
pub(crate) struct Listing {
    /// Begin of the first list.
    pub(crate) begun: Instant,
    /// Finished writes of each engine before that.
    pub(crate) bases: BTreeMap<Key, u64>,
    pub(crate) environments: Vec<LoadedEnvironment>,
    pub(crate) surroundings: Surroundings,
}

/// What all environments share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) store: FleetStore,
    pub(crate) kept: Kept,
    pub(crate) pulses: Pulses,
    pub(crate) looker: Looker,
    pub(crate) stages: StageLog,
    pub(crate) records: Records,
}

/// An environment with its engine.
struct Driven {
    engine: Engine,
    /// Objects as the engine's world holds them.
    loaded: LoadedEnvironment,
    addresses: BTreeMap<String, Address>,
}

/// End of a call: the id of the engine's action and its outcome.
struct Called {
    id: u64,
    guest: String,
    call: Call,
    outcome: Outcome,
}

/// State of the task.
pub(crate) struct Lane {
    key: Key,
    shared: Shared,
    /// Finished writes of the engine, for the next listing.
    basis: Arc<AtomicU64>,
    driven: Option<Driven>,
    watch: Watch,
    calls: JoinSet<Called>,
    last_look: Option<Instant>,
    pulse: Pulse,
    events: Events,
}

impl Lane {
    pub(crate) fn new(key: Key, shared: Shared, basis: Arc<AtomicU64>) -> Self {
        Self {
            pulse: shared.pulses.task(),
            key,
            shared,
            basis,
            driven: None,
            watch: Watch::default(),
            calls: JoinSet::new(),
            last_look: None,
            events: Events::default(),
        }
    }

    /// Runs until nobody lists for it any more.
    pub(crate) async fn run(mut self, mut listings: watch::Receiver<Option<Arc<Listing>>>) {
        loop {
            self.pulse.rest();
            tokio::select! {
                changed = listings.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.pulse.beat();
                    let listing = listings.borrow_and_update().clone();
                    if let Some(listing) = listing {
                        self.look(&listing).await;
                    }
                }
                Some(called) = self.calls.join_next() => {
                    self.pulse.beat();
                    if let Ok(called) = called {
                        self.pass(called);
                    }
                    self.act().await;
                }
            }
        }
    }

    fn now(&self) -> Now {
        Now {
            monotonic: self.shared.looker.clock.now(),
            wall: self.shared.looker.clock.wall(),
        }
    }

    /// Looks at the guests if that is due, and acts.
    async fn look(&mut self, listing: &Listing) {
        let all = &listing.environments;
        let own = all.iter().find(|one| key_of(one) == self.key);
        let Some(own) = own.filter(|own| self.is_due(own, listing.begun)) else {
            return;
        };
        let basis = listing.bases.get(&self.key).copied().unwrap_or_default();
        // The listing is older than a write.
        if self
            .driven
            .as_ref()
            .is_some_and(|driven| driven.engine.basis() != basis)
        {
            return;
        }
        let looker = &self.shared.looker;
        let (surroundings, pulse) = (&listing.surroundings, &self.pulse);
        let looked = match own.environment.spec.part {
            PartName::Agent => nodes::world(looker, own, all, surroundings, pulse).await,
            PartName::Scheduler | PartName::Controller | PartName::Fleet => {
                services::world(looker, own, all).await
            }
            PartName::Monitor | PartName::Guestd => {
                looker.world(own, all, surroundings, pulse).await
            }
        };
        self.last_look = Some(listing.begun);
        self.take(basis, own.without_turns(), looked);
        self.act().await;
        self.tell_events().await;
        self.shared
            .records
            .metrics
            .passed(&self.key, listing.begun.elapsed());
    }

    /// Writes events about what the engine's world says. It has no world after a failed write.
    async fn tell_events(&mut self) {
        let now = self.now().wall;
        let Some(driven) = &self.driven else {
            return;
        };
        let (client, records) = (&self.shared.looker.client, &self.shared.records);
        if let Some(world) = driven.engine.world() {
            self.events
                .tell(client, records, &driven.loaded, world, now)
                .await;
        }
    }

    fn is_due(&self, own: &LoadedEnvironment, now: Instant) -> bool {
        let is_late = self
            .last_look
            .is_none_or(|last| now.duration_since(last) >= IDLE_LOOK_EVERY);
        is_late || is_running(own)
    }

    fn take(&mut self, basis: u64, loaded: LoadedEnvironment, mut looked: Looked) {
        let now = self.now();
        let stages = self.shared.stages.snapshot();
        self.watch.add(now, &mut looked, &stages);
        let world = Box::new(looked.world);
        let event = Event::World { basis, world };
        match &mut self.driven {
            Some(driven) => {
                driven.loaded = loaded;
                driven.addresses = looked.addresses;
                driven.engine.handle(now, event);
            }
            None => {
                let mut engine = Engine::new(epoch_of(&loaded, now));
                engine.handle(now, event);
                self.driven = Some(Driven {
                    engine,
                    loaded,
                    addresses: looked.addresses,
                });
            }
        }
    }

    /// Passes the end of a call to the engine.
    fn pass(&mut self, called: Called) {
        let now = self.now();
        let Called {
            id,
            guest,
            call,
            outcome,
        } = called;
        self.tell(&of_call(&self.key, &guest, &call, &outcome));
        if let Some(driven) = &mut self.driven {
            driven.engine.handle(now, Event::Done { id, outcome });
        }
    }

    fn tell(&self, change: &Change) {
        self.shared.records.tell(change);
    }

    /// Carries out writes until there is none, and begins calls.
    async fn act(&mut self) {
        loop {
            self.pulse.beat();
            while let Some(called) = self.calls.try_join_next() {
                if let Ok(called) = called {
                    self.pass(called);
                }
            }
            let now = self.now();
            let Some(driven) = &mut self.driven else {
                return;
            };
            let Some(action) = driven.engine.poll_action(now) else {
                return;
            };
            match action {
                Action::Write { id, write } => self.write(id, &write).await,
                Action::Call { id, guest, call } => self.call(id, guest, call),
            }
        }
    }

    async fn write(&mut self, id: u64, write: &Write) {
        let Some(driven) = &mut self.driven else {
            return;
        };
        let owner = owner_of(driven, write);
        let store = &self.shared.store;
        let written = store.write(&mut driven.loaded, write, owner.as_ref());
        let outcome = timeout(WRITE_LIMIT, written)
            .await
            .unwrap_or_else(|_| Outcome::Transient("the API did not answer in time".to_owned()));
        let changes = driven
            .engine
            .world()
            .map(|world| of_write(&self.key, world, write, &outcome));
        for change in changes.into_iter().flatten() {
            self.tell(&change);
        }
        let now = self.now();
        if let Some(driven) = &mut self.driven {
            driven.engine.handle(now, Event::Done { id, outcome });
            self.basis.store(driven.engine.basis(), Ordering::Release);
        }
    }

    fn call(&mut self, id: u64, guest: String, call: Call) {
        let now = self.now();
        let Some(driven) = &mut self.driven else {
            return;
        };
        let Some(address) = driven.addresses.get(&guest) else {
            let outcome = Outcome::Transient("its VM is gone".to_owned());
            driven.engine.handle(now, Event::Done { id, outcome });
            return;
        };
        let way = address.way.clone();
        let looker = self.shared.looker.clone();
        let part = driven.loaded.environment.spec.part;
        let kept = self.shared.kept.clone();
        let of_guest = driven.engine.world().and_then(|it| it.guests.get(&guest));
        let turn = of_guest.and_then(|guest| guest.turn.clone());
        if matches!(way, Way::Node { .. } | Way::Service) {
            let revisions = &driven.loaded.revisions;
            if let Some(why) = looker.images.refusal(&call, turn.as_ref(), revisions) {
                let outcome = Outcome::Transient(why);
                driven.engine.handle(now, Event::Done { id, outcome });
                return;
            }
        }
        let order = services::Order::new(&driven.loaded, turn.clone(), call.clone());
        self.calls.spawn(async move {
            let outcome = match way {
                Way::Runner(runner) => {
                    let way = (&looker.runners, &runner);
                    carry_out(way, part, call.clone(), &kept).await
                }
                Way::Node { namespace, node } => {
                    let agents = Agents::new(&looker.client, &namespace);
                    let now = looker.clock.wall();
                    nodes::carry_out(&agents, &node, turn.as_ref(), &call, now).await
                }
                Way::Service => {
                    services::carry_out(&looker.client, order, looker.clock.wall()).await
                }
            };
            Called {
                id,
                guest,
                call,
                outcome,
            }
        });
    }
}

pub(crate) fn key_of(loaded: &LoadedEnvironment) -> Key {
    (loaded.namespace.clone(), loaded.environment.name.clone())
}

/// Whether a deployment of the environment has not ended, or the environment is to go.
pub(crate) fn is_running(loaded: &LoadedEnvironment) -> bool {
    if loaded.environment.is_deleted {
        return true;
    }
    let mut deployments = loaded.deployments.iter();
    deployments.any(|one| !one.status.state.is_terminal())
}

/// Above the epochs of the runs before, and above those of records that were lost.
fn epoch_of(loaded: &LoadedEnvironment, now: Now) -> u64 {
    let lock = loaded.environment.status.lock.as_ref();
    let deployments = loaded.deployments.iter();
    let known = deployments.map(|one| one.status.epoch);
    let known = known.chain(lock.map(|lock| lock.epoch)).max();
    let seconds = u64::try_from(now.wall.0.div_euclid(1_000_000)).unwrap_or(0);
    known.map_or(seconds, |known| known.saturating_add(1).max(seconds))
}

fn owner_of(driven: &Driven, write: &Write) -> Option<Owner> {
    match write {
        Write::Turn { guest, .. } => {
            let address = driven.addresses.get(guest);
            address.map(|address| address.owner.clone())
        }
        _ => None,
    }
}
