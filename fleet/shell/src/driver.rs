//! The loop: looks at the fleet, passes worlds to the engines, carries out their actions.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use daemon_kit::clock::Clock;
use fleet_core::{Action, Engine, Event, Now, Outcome, Write};
use fleet_store::{FleetStore, LoadedEnvironment, Owner, Problem, Programs};
use protocol::core::Core as _;
use protocol::runner::control_socket;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::calls::carry_out;
use crate::look::{Address, Looked, Looker};

/// Between two looks at the objects.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Between two looks at the guests while nothing is rolled out.
const IDLE_LOOK_EVERY: Duration = Duration::from_secs(30);
/// Longest time for the objects, or for one write.
const API_LIMIT: Duration = Duration::from_secs(10);

/// What the driver uses.
#[derive(Clone)]
pub struct Params {
    /// Client of the API.
    pub client: kube::Client,
    /// Clock of the process.
    pub clock: Clock,
    /// State directory, with the runners in `vms` and the programs in `fleet/programs`.
    pub state_dir: PathBuf,
}

/// Namespace and name of an environment.
type Key = (String, String);

/// An environment with its engine.
struct Driven {
    engine: Engine,
    /// Objects as the engine's world holds them.
    loaded: LoadedEnvironment,
    addresses: BTreeMap<String, Address>,
}

/// End of a call: the environment, the id of the engine's action and its outcome. `run` tells a
/// call of an engine that is gone.
struct Called {
    key: Key,
    run: u64,
    id: u64,
    outcome: Outcome,
}

struct Driver {
    params: Params,
    store: FleetStore,
    programs: Programs,
    driven: BTreeMap<Key, (u64, Driven)>,
    calls: JoinSet<Called>,
    problems: Vec<Problem>,
    runs: u64,
    last_look: Option<Instant>,
}

/// Runs the rollouts of all environments until `token`. Calls in flight are dropped then: a turn is
/// in the objects, and the next run goes on with it.
pub async fn run(params: Params, token: CancellationToken) {
    let mut driver = Driver {
        store: FleetStore::new(params.client.clone()),
        programs: Programs::of_state_dir(&params.state_dir),
        params,
        driven: BTreeMap::new(),
        calls: JoinSet::new(),
        problems: Vec::new(),
        runs: 0,
        last_look: None,
    };
    let whole = async {
        loop {
            if let Err(error) = driver.round().await {
                tracing::warn!(error, "failed to look at the fleet");
            }
            driver.rest().await;
        }
    };
    tokio::select! {
        () = token.cancelled() => {}
        () = whole => {}
    }
}

impl Driver {
    fn now(&self) -> Now {
        Now {
            monotonic: self.params.clock.now(),
            wall: self.params.clock.wall(),
        }
    }

    /// Passes on what calls brought until the next look is due.
    async fn rest(&mut self) {
        let due = tokio::time::Instant::now() + LOOK_EVERY;
        loop {
            let called = tokio::select! {
                () = tokio::time::sleep_until(due) => return,
                Some(called) = self.calls.join_next() => called,
            };
            let Ok(called) = called else { continue };
            let key = called.key.clone();
            self.pass(called);
            self.act(&key).await;
        }
    }

    /// Passes the end of a call to its engine.
    fn pass(&mut self, called: Called) {
        let now = self.now();
        let Some((run, driven)) = self.driven.get_mut(&called.key) else {
            return;
        };
        if *run != called.run {
            return;
        }
        tracing::info!(environment = called.key.1, id = called.id, outcome = ?called.outcome, "call ended");
        let (id, outcome) = (called.id, called.outcome);
        driven.engine.handle(now, Event::Done { id, outcome });
    }

    async fn round(&mut self) -> Result<(), String> {
        let bases: BTreeMap<Key, u64> = self
            .driven
            .iter()
            .map(|(key, (_, driven))| (key.clone(), driven.engine.basis()))
            .collect();
        let loaded = timeout(API_LIMIT, self.store.load()).await;
        let loaded = loaded.map_err(|_| "no lists of the objects in time".to_owned())?;
        let loaded = loaded.map_err(|error| daemon_kit::chain(&error))?;
        self.report(loaded.problems);
        let all = loaded.environments;
        let keys: Vec<Key> = all.iter().map(key_of).collect();
        self.driven.retain(|key, _| keys.contains(key));
        if all.is_empty() || !self.is_look_due(&all) {
            return Ok(());
        }
        let looker = Looker {
            client: self.params.client.clone(),
            clock: self.params.clock,
            state_dir: self.params.state_dir.clone(),
        };
        let vms = looker.vms().await?;
        let worlds = all.iter().map(|one| looker.world(one, &all, &vms));
        let worlds: Vec<Looked> = futures::future::join_all(worlds).await;
        for (loaded, looked) in all.into_iter().zip(worlds) {
            let key = key_of(&loaded);
            let basis = bases.get(&key).copied().unwrap_or_default();
            self.take(&key, basis, loaded, looked);
        }
        self.last_look = Some(Instant::now());
        for key in keys {
            self.act(&key).await;
        }
        Ok(())
    }

    fn is_look_due(&self, all: &[LoadedEnvironment]) -> bool {
        let mut deployments = all.iter().flat_map(|one| &one.deployments);
        let runs = deployments.any(|one| !one.status.state.is_terminal());
        let is_new = all
            .iter()
            .any(|one| !self.driven.contains_key(&key_of(one)));
        let is_late = self
            .last_look
            .is_none_or(|last| last.elapsed() >= IDLE_LOOK_EVERY);
        runs || is_new || is_late
    }

    /// Logs objects that were left out, once for each change.
    fn report(&mut self, problems: Vec<Problem>) {
        for problem in problems.iter().filter(|one| !self.problems.contains(one)) {
            let Problem { object, reason } = problem;
            tracing::warn!(object, reason, "left out an object of the fleet");
        }
        self.problems = problems;
    }

    fn take(&mut self, key: &Key, basis: u64, loaded: LoadedEnvironment, looked: Looked) {
        let now = self.now();
        let world = Box::new(looked.world);
        let event = Event::World { basis, world };
        if let Some((_, driven)) = self.driven.get_mut(key) {
            driven.loaded = loaded;
            driven.addresses = looked.addresses;
            driven.engine.handle(now, event);
            return;
        }
        self.runs += 1;
        let mut engine = Engine::new(epoch_of(&loaded, now));
        engine.handle(now, event);
        let driven = Driven {
            engine,
            loaded,
            addresses: looked.addresses,
        };
        self.driven.insert(key.clone(), (self.runs, driven));
    }

    /// Carries out writes until there is none, and begins calls.
    async fn act(&mut self, key: &Key) {
        loop {
            let now = self.now();
            let Some((run, driven)) = self.driven.get_mut(key) else {
                return;
            };
            let Some(action) = driven.engine.poll_action(now) else {
                return;
            };
            match action {
                Action::Write { id, write } => {
                    let owner = owner_of(driven, &write);
                    let written = self.store.write(&mut driven.loaded, &write, owner.as_ref());
                    let outcome = timeout(API_LIMIT, written).await.unwrap_or_else(|_| {
                        Outcome::Transient("the API did not answer in time".to_owned())
                    });
                    tracing::info!(environment = key.1, ?write, ?outcome, "wrote");
                    let now = Now {
                        monotonic: self.params.clock.now(),
                        wall: self.params.clock.wall(),
                    };
                    driven.engine.handle(now, Event::Done { id, outcome });
                }
                Action::Call { id, guest, call } => {
                    tracing::info!(environment = key.1, id, guest, ?call, "calling");
                    let (key, run) = (key.clone(), *run);
                    let Some(address) = driven.addresses.get(&guest) else {
                        let outcome = Outcome::Transient("its VM is gone".to_owned());
                        driven.engine.handle(now, Event::Done { id, outcome });
                        continue;
                    };
                    let socket = control_socket(&self.params.state_dir, &key.0, &address.pod);
                    let part = driven.loaded.environment.spec.part;
                    let programs = self.programs.clone();
                    self.calls.spawn(async move {
                        let outcome = carry_out(&socket, part, call, &programs).await;
                        Called {
                            key,
                            run,
                            id,
                            outcome,
                        }
                    });
                }
            }
        }
    }
}

fn key_of(loaded: &LoadedEnvironment) -> Key {
    (loaded.namespace.clone(), loaded.environment.name.clone())
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
