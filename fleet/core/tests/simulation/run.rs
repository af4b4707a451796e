//! A rollout on a virtual clock: the shipped engine, guests that are played, and a store whose
//! objects others change too.
//!
//! Every call may be lost, late or repeated, worlds are dropped, the engine ends at any write, and
//! guests begin again. [`run`] checks what must hold after each event.

use std::collections::BTreeMap;

use fleet_core::permit::Gate;
use fleet_core::{Action, Call, Engine, Event, Now, Outcome, World};
use protocol::core::Core as _;
use protocol::time::{Span, Timestamp, WallTime};

use super::check::Checks;
use super::guest::PlayedGuest;
use super::rng::Rng;
use super::sabotage::FleetSabotage;
use super::store::Store;

/// Calendar time at the start, seconds.
const START: i64 = 1_700_000_000;
/// Seconds without faults at the end, in which everything must come to rest.
const CALM_SECONDS: u64 = 3000;

/// Features of the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Neither groups nor windows.
    Plain,
    /// Two groups, with canaries and bakes.
    Groups,
    /// Guests change in two windows only.
    Windows,
}

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub(super) struct FleetOptions {
    /// Seed of everything.
    pub(super) seed: u64,
    /// Number of the guests.
    pub(super) guests: u32,
    /// Features of the environment.
    pub(super) shape: Shape,
    /// Whether guests join and leave.
    pub(super) churns: bool,
    /// Seconds with faults.
    pub(super) seconds: u64,
    /// Chance of each fault, in a million.
    pub(super) faults_ppm: u32,
    /// Fault that a check must notice.
    pub(super) sabotage: Option<FleetSabotage>,
}

/// What a run came to.
#[derive(Debug, Clone, Default)]
pub(super) struct FleetOutcome {
    /// Guests that joined.
    pub(super) joined: u64,
    /// Turns that were given.
    pub(super) turns: u64,
    /// Environments that were deleted and made again.
    pub(super) made: u32,
    /// Times that labels of a guest changed.
    pub(super) relabelled: u64,
    /// Engines that ended.
    pub(super) crashes: u64,
    /// Deployments by their last state.
    pub(super) ends: BTreeMap<String, u32>,
}

struct Air {
    due: u64,
    id: u64,
    guest: String,
    call: Call,
}

struct Run {
    options: FleetOptions,
    rng: Rng,
    second: u64,
    engine: Engine,
    store: Store,
    guests: BTreeMap<String, PlayedGuest>,
    calls: Vec<Air>,
    outcomes: Vec<(u64, u64, Outcome)>,
    checks: Checks,
    outcome: FleetOutcome,
    runs: u64,
    /// Guests that joined.
    joined: u64,
    /// Second of the newest world.
    saw: u64,
    /// The API does not answer before.
    away_until: u64,
    /// Start of the engine, and of the agents that begin with it.
    begun: u64,
    /// An engine that gets the same events.
    shadow: Engine,
}

/// Runs one seed.
///
/// # Errors
/// The first thing that did not hold, with its time.
pub(super) fn run(options: FleetOptions) -> Result<FleetOutcome, String> {
    let rng = Rng::new(options.seed);
    let mut run = Run::new(options, rng);
    let of_time = |run: &Run, problem: String| {
        format!("seed {} at {} s: {problem}", run.options.seed, run.second)
    };
    for second in 0..options.seconds + CALM_SECONDS {
        run.second = second;
        run.step().map_err(|problem| of_time(&run, problem))?;
    }
    run.at_rest().map_err(|problem| of_time(&run, problem))?;
    run.outcome.ends = run.store.ends();
    run.outcome.made = run.store.made;
    Ok(run.outcome)
}

impl Run {
    fn new(options: FleetOptions, mut rng: Rng) -> Self {
        let store = Store::new(&mut rng, options.shape, options.sabotage);
        let guests = (0..options.guests).map(|number| {
            let node = format!("node-{}", number % 4);
            let guest = PlayedGuest::new(node, options.sabotage);
            (format!("vm-{number}"), guest)
        });
        let mut store = store;
        if options.churns && options.sabotage.is_none() && options.guests > 3 {
            store.poison = Some("vm-1".to_owned());
        }
        Self {
            options,
            second: 0,
            engine: Engine::new(1),
            store,
            guests: guests.collect(),
            calls: Vec::new(),
            outcomes: Vec::new(),
            checks: Checks::default(),
            outcome: FleetOutcome::default(),
            runs: 1,
            joined: 0,
            saw: 0,
            away_until: 0,
            begun: 0,
            shadow: Engine::new(1),
            rng,
        }
    }

    const fn now(&self) -> Now {
        let micros = self.second * 1_000_000;
        Now {
            monotonic: Timestamp(micros),
            wall: WallTime(START * 1_000_000 + micros.cast_signed()),
        }
    }

    fn is_calm(&self) -> bool {
        self.second >= self.options.seconds
    }

    fn fault(&mut self) -> bool {
        !self.is_calm() && self.rng.chance(self.options.faults_ppm)
    }

    fn step(&mut self) -> Result<(), String> {
        for guest in self.guests.values_mut() {
            guest.tick(self.second);
        }
        self.trouble();
        if !self.is_calm() && self.second >= self.away_until {
            let guests: Vec<String> = self.guests.keys().cloned().collect();
            let wall = self.now().wall;
            self.store.people(&mut self.rng, wall, &guests);
        }
        self.deliver();
        if !self.fault() && self.second >= self.away_until {
            let basis = self.engine.basis();
            let world = Box::new(self.store.world(
                &self.guests,
                self.second,
                self.second - self.begun,
            ));
            let now = self.now();
            self.checks.saw(&world);
            self.saw = self.second;
            self.shadow_takes(now, basis, &world);
            self.engine.handle(now, Event::World { basis, world });
        }
        self.act()?;
        self.checks.after(&self.store, &self.guests, self.second)
    }

    /// Guests that begin again, resizes, and an engine that ends.
    fn trouble(&mut self) {
        let names: Vec<String> = self.guests.keys().cloned().collect();
        let name = &names[self.rng.index(names.len())];
        let (restarts, resizes, is_cut) = (self.fault(), self.fault(), self.fault());
        let crashes = self.fault();
        let second = self.second;
        let until = second + self.rng.between(1, 90);
        let held_by = HELD_BY[self.rng.index(HELD_BY.len())];
        let node = format!("node-{}", self.rng.below(4));
        let lies = self.options.churns && self.fault() && self.rng.chance(200_000);
        let leaves = self.options.churns && self.fault();
        if self.fault() && self.rng.chance(200_000) {
            let most = if self.rng.chance(100_000) { 3600 } else { 60 };
            let away = second + self.rng.between(1, most);
            self.away_until = away.min(self.options.seconds);
        }
        if let Some(guest) = self.guests.get_mut(name) {
            if restarts {
                guest.restart(second);
            }
            if resizes {
                guest.held_by = held_by;
                guest.held_since = second;
                guest.held_until = until;
                if held_by == Gate::Migrating {
                    guest.node = node;
                }
            }
            if lies {
                guest.lies_until = until;
                guest.has_lied = true;
            }
            if leaves {
                guest.matches = !guest.matches;
                self.outcome.relabelled += 1;
            }
            if is_cut {
                guest.cut_until = until;
            }
        }
        if self.options.churns && self.fault() {
            self.churn(&name.clone());
        }
        if crashes {
            self.crash();
        }
    }

    /// A guest leaves, and another one joins.
    fn churn(&mut self, leaves: &str) {
        self.guests.remove(leaves);
        self.store.remove(leaves);
        self.joined += 1;
        let node = format!("node-{}", self.joined % 4);
        let mut guest = PlayedGuest::new(node, self.options.sabotage);
        guest.booted = Some(self.second);
        let number = u64::from(self.options.guests) + self.joined;
        self.guests.insert(format!("vm-{number}"), guest);
        self.outcome.joined = self.joined;
    }

    fn crash(&mut self) {
        self.runs += 1;
        self.outcome.crashes += 1;
        self.begun = self.second;
        self.engine = Engine::new(self.runs);
        self.shadow = Engine::new(self.runs);
        // Calls in the air still arrive; no engine waits for their outcomes.
        self.outcomes.clear();
        for call in &mut self.calls {
            call.id = 0;
        }
    }

    fn deliver(&mut self) {
        let second = self.second;
        let due: Vec<Air>;
        (due, self.calls) = std::mem::take(&mut self.calls)
            .into_iter()
            .partition(|call| call.due <= second);
        for Air {
            id, guest, call, ..
        } in due
        {
            let played = self.guests.get_mut(&guest);
            let outcome = played.map_or_else(
                || Outcome::Transient("it is gone".to_owned()),
                |played| played.take(&call, second),
            );
            if self.fault() {
                let due = second + self.rng.between(1, 40);
                self.calls.push(Air {
                    due,
                    id: 0,
                    guest,
                    call,
                });
            }
            let outcome = if self.fault() {
                Outcome::Transient("the answer was lost".to_owned())
            } else {
                outcome
            };
            if id != 0 {
                self.outcomes
                    .push((second + self.rng.below(2), id, outcome));
            }
        }
        let now = self.now();
        let ready: Vec<(u64, u64, Outcome)>;
        (ready, self.outcomes) = std::mem::take(&mut self.outcomes)
            .into_iter()
            .partition(|(due, ..)| *due <= second);
        for (_, id, outcome) in ready {
            self.ended(now, id, outcome);
        }
    }

    fn act(&mut self) -> Result<(), String> {
        let now = self.now();
        while let Some(action) = self.engine.poll_action(now) {
            self.shadow_acts(now, &action)?;
            match action {
                Action::Write { id, write } => {
                    if self.fault() || self.second < self.away_until {
                        let outcome = Outcome::Transient("the store is away".to_owned());
                        self.ended(now, id, outcome);
                        continue;
                    }
                    self.checks.before_write(&self.store, &write)?;
                    let outcome = self.store.write(write, now.wall);
                    self.outcome.turns = self.store.turns;
                    if self.fault() {
                        self.crash();
                        return Ok(());
                    }
                    self.ended(now, id, outcome);
                }
                Action::Call { id, guest, call } => {
                    if let (Call::Try { .. }, Some(played)) = (&call, self.guests.get(&guest)) {
                        self.checks.before_try(
                            &self.store,
                            played,
                            &guest,
                            (self.saw, self.second),
                        )?;
                    }
                    let delay = if self.fault() {
                        self.rng.between(1, 60)
                    } else {
                        0
                    };
                    let due = self.second + delay + 1;
                    if self.options.sabotage == Some(FleetSabotage::LowerEpochs) {
                        self.calls.push(Air {
                            due: due + LATE_SECONDS,
                            id: 0,
                            guest: guest.clone(),
                            call: call.clone(),
                        });
                    }
                    let repeats = self.options.sabotage == Some(FleetSabotage::ForgottenTokens);
                    for id in std::iter::once(id).chain(repeats.then_some(0)) {
                        self.calls.push(Air {
                            due,
                            id,
                            guest: guest.clone(),
                            call: call.clone(),
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// Both engines get the end of an action.
    fn ended(&mut self, now: Now, id: u64, outcome: Outcome) {
        let of_shadow = outcome.clone();
        self.engine.handle(now, Event::Done { id, outcome });
        let outcome = of_shadow;
        self.shadow.handle(now, Event::Done { id, outcome });
    }

    /// A second engine costs as much as the first one.
    fn has_shadow(&self) -> bool {
        self.options.seed.is_multiple_of(4)
    }

    fn shadow_takes(&mut self, now: Now, basis: u64, world: &World) {
        if !self.has_shadow() {
            return;
        }
        let mut world = Box::new(world.clone());
        if self.options.sabotage == Some(FleetSabotage::OtherWorlds) {
            world.guests.pop_first();
        }
        self.shadow.handle(now, Event::World { basis, world });
    }

    /// The second engine decides the same.
    fn shadow_acts(&mut self, now: Now, action: &Action) -> Result<(), String> {
        if !self.has_shadow() {
            return Ok(());
        }
        let other = self.shadow.poll_action(now);
        if other.as_ref() == Some(action) {
            return Ok(());
        }
        Err(format!(
            "F18: the same events bring {action:?} and {other:?}"
        ))
    }

    fn at_rest(&self) -> Result<(), String> {
        self.checks.at_rest(&self.store, &self.guests)
    }
}

/// Gates that hold a VM for a while.
const HELD_BY: [Gate; 5] = [
    Gate::Resizing,
    Gate::Migrating,
    Gate::Pressure,
    Gate::PeerInFlight,
    Gate::Skew,
];

/// Delay of the repeated calls that bring lower epochs, seconds.
const LATE_SECONDS: u64 = 200;
/// Length of a trial in the simulation, seconds.
pub(super) const TRIAL_SECONDS: u64 = 20;
/// Longest time for which a guest may run a program that nobody keeps.
pub(super) const TRIAL_LIMIT: Span = Span::from_secs(TRIAL_SECONDS + 40);
