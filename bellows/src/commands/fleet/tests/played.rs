//! The real engine and store behind the commands, with guests that are played in memory.

use std::collections::BTreeMap;

use fleet_core::{
    Action, Call, Engine, Event, Guest, Now, Observed, Outcome, PartFacts, Returned, World, Write,
};
use fleet_store::{FleetStore, LoadedEnvironment, Owner, OwnerKind};
use protocol::core::Core as _;
use protocol::fleet::TurnSpec;
use protocol::parts::{PartPhase, PartSource, PartState};
use protocol::time::{Timestamp, WallTime};

/// Longest run, in seconds of the virtual clock.
const LONGEST: u64 = 5_000;
/// Begin of the virtual clock, seconds.
const BEGIN: u64 = 1_700_000_000;

/// A guest whose programs run in memory. A bad program ends a second after its start.
#[derive(Debug, Clone)]
struct Played {
    part: PartState,
    before: (String, String),
    staged: Option<TurnSpec>,
}

/// Guests, and the engine's orders so far.
pub(super) struct Fleet {
    store: FleetStore,
    guests: BTreeMap<String, Played>,
    bad: String,
    second: u64,
    /// Guests and programs of the trials, in order.
    pub(super) trials: Vec<(String, String)>,
}

impl Played {
    fn new() -> Self {
        let part = PartState {
            version: "0.9.0".to_owned(),
            sha256: "0".repeat(64),
            from: PartSource::Image,
            phase: PartPhase::Settled,
            left_s: 0,
            token: String::new(),
            reason: String::new(),
            starts: 1,
            resident_bytes: 1 << 20,
        };
        Self {
            before: (part.version.clone(), part.sha256.clone()),
            part,
            staged: None,
        }
    }

    fn take(&mut self, call: &Call) -> Outcome {
        match call {
            Call::Push(turn) => self.staged = Some(turn.clone()),
            Call::Try { token, .. } => {
                let Some(turn) = self.staged.take_if(|turn| turn.token == *token) else {
                    return Outcome::NothingStaged;
                };
                self.before = (self.part.version.clone(), self.part.sha256.clone());
                self.part.version = turn.version;
                self.part.sha256 = turn.sha256;
                self.part.token = turn.token;
                self.part.phase = PartPhase::Trial;
            }
            Call::Keep { .. } => self.part.phase = PartPhase::Settled,
            Call::Back { .. } => self.back("the host took it back"),
        }
        Outcome::Done
    }

    fn back(&mut self, reason: &str) {
        (self.part.version, self.part.sha256) = self.before.clone();
        self.part.phase = PartPhase::Back;
        reason.clone_into(&mut self.part.reason);
    }
}

impl Fleet {
    /// Guests of VMs of these names. Programs of version `bad` end at once.
    pub(super) fn new(client: kube::Client, vms: &[&str], bad: &str) -> Self {
        let guests = vms.iter().map(|name| (format!("vm-{name}"), Played::new()));
        Self {
            store: FleetStore::new(client),
            guests: guests.collect(),
            bad: bad.to_owned(),
            second: 0,
            trials: Vec::new(),
        }
    }

    /// Version that each guest runs.
    pub(super) fn versions(&self) -> Vec<&str> {
        let versions = self.guests.values().map(|one| one.part.version.as_str());
        versions.collect()
    }

    /// The world of an environment, as a driver would read it.
    pub(super) async fn world(&self, environment: &str) -> World {
        self.world_of(&self.load(environment).await)
    }

    async fn load(&self, environment: &str) -> LoadedEnvironment {
        let loaded = self.store.load().await.expect("the API answers");
        assert_eq!(loaded.problems, [], "all objects can be read");
        let mut all = loaded.environments.into_iter();
        all.find(|one| one.environment.name == environment)
            .expect("the environment is there")
    }

    fn world_of(&self, loaded: &LoadedEnvironment) -> World {
        let guest = |(name, played): (&String, &Played)| {
            let (turn, last) = loaded.turns.get(name).cloned().unwrap_or_default();
            let guest = Guest {
                node: name.clone(),
                is_enrolled: true,
                boot: "boot".to_owned(),
                observed: Observed::Seen(PartFacts {
                    state: played.part.clone(),
                    returned: Returned::Ended,
                }),
                turn,
                last,
                ..Guest::default()
            };
            (name.clone(), guest)
        };
        World {
            environment: loaded.environment.clone(),
            revisions: loaded.revisions.clone(),
            deployments: loaded.deployments.clone(),
            guests: self.guests.iter().map(guest).collect(),
            is_critical: false,
        }
    }

    /// Runs a new engine until every deployment has ended and it has nothing to do.
    pub(super) async fn run(&mut self, environment: &str) {
        let mut engine = Engine::new(self.second + 1);
        for _ in 0..LONGEST {
            self.second += 1;
            self.tick();
            let now = self.now();
            let basis = engine.basis();
            let mut loaded = self.load(environment).await;
            let world = Box::new(self.world_of(&loaded));
            let is_over = world
                .deployments
                .iter()
                .all(|one| one.status.state.is_terminal());
            engine.handle(now, Event::World { basis, world });
            let acted = self.act(&mut engine, &mut loaded, now).await;
            if is_over && !acted {
                return;
            }
        }
        panic!("the deployments do not end");
    }

    /// Lets time pass without a look.
    pub(super) fn wait(&mut self, seconds: u64) {
        self.second += seconds;
    }

    fn now(&self) -> Now {
        let wall = (BEGIN + self.second) * 1_000_000;
        Now {
            monotonic: Timestamp(self.second * 1_000_000),
            wall: WallTime(i64::try_from(wall).expect("a near time")),
        }
    }

    fn tick(&mut self) {
        for played in self.guests.values_mut() {
            let is_bad = played.part.version == self.bad;
            if is_bad && played.part.phase == PartPhase::Trial {
                played.back("the part ended with status 1");
            }
        }
    }

    /// Carries out the engine's actions. Returns whether there was one.
    async fn act(&mut self, engine: &mut Engine, loaded: &mut LoadedEnvironment, now: Now) -> bool {
        let mut acted = false;
        while let Some(action) = engine.poll_action(now) {
            acted = true;
            let (id, outcome) = match action {
                Action::Write { id, write } => {
                    let owner = owner_of(&write);
                    let written = self.store.write(loaded, &write, owner.as_ref());
                    (id, written.await)
                }
                Action::Call { id, guest, call } => (id, self.call(&guest, &call)),
            };
            engine.handle(now, Event::Done { id, outcome });
        }
        acted
    }

    fn call(&mut self, guest: &str, call: &Call) -> Outcome {
        let played = self.guests.get_mut(guest).expect("a guest of the fleet");
        let outcome = played.take(call);
        if matches!(call, Call::Try { .. }) && outcome == Outcome::Done {
            let version = played.part.version.clone();
            self.trials.push((guest.to_owned(), version));
        }
        outcome
    }
}

fn owner_of(write: &Write) -> Option<Owner> {
    let Write::Turn { guest, .. } = write else {
        return None;
    };
    Some(Owner {
        kind: OwnerKind::Vm,
        name: guest.trim_start_matches("vm-").to_owned(),
        uid: "0000".to_owned(),
    })
}
