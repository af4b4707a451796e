//! Who carries out moves of guests to new runners? The driver of [`fleet_core::runners`].
//!
//! * `notice`: what people read at a login while their guest is about to move.
//! * `look`: reads VMs, pods, migrations and instances.
//! * `orders`: writes of one order.
//! * `program`: which program a runner of this machine runs.
//!
//! # Rules
//! * A guest takes part only if its pod was found by the VM's uid, owner reference and label.
//! * A VM is written only if a dry run changes `spec.runnerImage` alone.
//! * Without settings no call is made.

mod look;
mod notice;
mod orders;
mod program;

use std::path::PathBuf;
use std::time::Duration;

use daemon_kit::clock::Clock;
use daemon_kit::journal::Journal;
use fleet_core::runners::{Action, Event, Key, Movers, Order, Settings, Wanted};
use fleet_core::{Now, Outcome};
use fleet_store::FleetStore;
use protocol::core::Core as _;
use protocol::fleet::{MoveResult, instance_name};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::changes::{ChangeKind, change, failure};
use crate::driver::Location;
use crate::images::ImageGate;
use crate::lease::Seen;
use crate::look::Looker;
use crate::metrics::Metrics;
use crate::node::Unconnected;
use crate::pulse::{Pulse, Pulses};
use crate::records::Records;
use crate::runners::{Pods, Runners};
use look::Known;
pub use program::{own_program, program_of};

/// Longest time for the writes of one order.
const ORDER_LIMIT: Duration = Duration::from_secs(10);
/// Longest sleep while the core has no deadline.
const IDLE: Duration = Duration::from_secs(60);

/// What moves of guests need.
#[derive(Clone)]
pub struct MoveParams {
    /// Client of the API.
    pub client: kube::Client,
    /// Clock of the process.
    pub clock: Clock,
    /// State directory with the runners of one machine in `vms`.
    pub state_dir: PathBuf,
    /// Where the guests are.
    pub location: Location,
    /// What people allow. `None`: guests are not moved.
    pub settings: Option<Settings>,
    /// The runner that guests should have.
    pub wanted: Option<Wanted>,
    /// Namespace whose VMs are moved. `None`: all.
    pub namespace: Option<String>,
    /// Metrics of rollouts.
    pub metrics: Metrics,
    /// Journal of rollouts. `None`: log lines alone.
    pub journal: Option<Journal>,
    /// Whether the task gets on.
    pub pulses: Pulses,
}

/// The driver of moves.
pub struct Mover {
    core: Movers,
    access: Access,
    wanted: Option<Wanted>,
    clock: Clock,
    records: Records,
    pulse: Pulse,
    /// Objects of the last look, by VM.
    known: Known,
}

/// Ways to objects and runners.
pub(crate) struct Access {
    pub(crate) store: FleetStore,
    pub(crate) looker: Looker,
    pub(crate) state_dir: PathBuf,
    pub(crate) namespace: Option<String>,
    pub(crate) settings: Settings,
}

impl Mover {
    /// A driver that has read nothing.
    #[must_use]
    pub fn new(params: MoveParams) -> Self {
        let runners = match params.location {
            Location::Machine => Runners::Sockets(params.state_dir.clone()),
            Location::Cluster { .. } => Runners::Pods(Pods::new(params.client.clone())),
        };
        Self {
            core: Movers::new(params.settings.clone()),
            access: Access {
                store: FleetStore::new(params.client.clone()),
                looker: Looker {
                    seen: Seen::default(),
                    asks_pages: true,
                    client: params.client,
                    begun: params.clock.now(),
                    clock: params.clock,
                    runners,
                    unconnected: Unconnected::default(),
                    images: ImageGate::default(),
                },
                state_dir: params.state_dir,
                namespace: params.namespace,
                settings: params.settings.unwrap_or_default(),
            },
            wanted: params.wanted,
            clock: params.clock,
            records: Records {
                journal: params.journal,
                clock: params.clock,
                metrics: params.metrics,
            },
            pulse: params.pulses.task(),
            known: Known::default(),
        }
    }

    /// Moves guests until `token`. What is begun is in the objects, and the next run goes on.
    pub async fn run(mut self, token: CancellationToken) {
        let whole = async {
            loop {
                self.step(&mut |_, _| {}).await;
                self.sleep().await;
            }
        };
        tokio::select! {
            () = token.cancelled() => {}
            () = whole => {}
        }
    }

    /// Moves guests until none moves and none may begin. Each order is passed to `say`.
    ///
    /// # Errors
    /// A look failed.
    pub async fn run_until_rest(
        &mut self,
        say: &mut (dyn FnMut(&Key, &str) + Send),
    ) -> Result<Vec<(Key, Standing)>, String> {
        loop {
            if let Some(error) = self.step(say).await {
                return Err(error);
            }
            if self.core.is_at_rest() {
                return Ok(self.standings());
            }
            self.sleep().await;
        }
    }

    /// Every guest that was seen, with how it stands.
    fn standings(&self) -> Vec<(Key, Standing)> {
        let waiting = self.core.waiting();
        let of = |(key, known): (&Key, &look::KnownGuest)| {
            let end = known.guest.end.as_ref();
            let standing = match (waiting.get(key), end) {
                (Some(_), Some(end)) if end.result == MoveResult::PendingRestart => {
                    Standing::PendingRestart(end.reason.clone())
                }
                (Some(gate), _) => Standing::Waits(gate.as_str().to_owned()),
                (None, Some(end)) if end.result == MoveResult::Bad => {
                    Standing::Bad(end.reason.clone())
                }
                (None, _) => Standing::Current,
            };
            (key.clone(), standing)
        };
        self.known.guests.iter().map(of).collect()
    }

    async fn sleep(&self) {
        self.pulse.rest();
        let until = self.core.poll_deadline();
        let until = until.map(|until| until.since(self.clock.now()).to_duration());
        tokio::time::sleep(until.unwrap_or(IDLE).min(IDLE)).await;
    }

    fn now(&self) -> Now {
        Now {
            monotonic: self.clock.now(),
            wall: self.clock.wall(),
        }
    }

    /// Carries out what is due. Returns the failure of a look.
    async fn step(&mut self, say: &mut (dyn FnMut(&Key, &str) + Send)) -> Option<String> {
        let mut failed = None;
        loop {
            let now = self.now();
            let Some(action) = self.core.poll_action(now) else {
                return failed;
            };
            self.pulse.beat();
            let event = match action {
                Action::Look => match self.access.look(self.wanted.as_ref(), &self.pulse).await {
                    Ok((world, known)) => {
                        self.known = known;
                        Event::World(Box::new(world))
                    }
                    Err(error) => {
                        tracing::warn!(error, "failed to look at the runners of guests");
                        failed = Some(error);
                        Event::LookFailed
                    }
                },
                Action::Order { guest, order } => {
                    let outcome = self.carry_out(&guest, &order).await;
                    say(&guest, &text(&order, &outcome));
                    Event::Done { guest, outcome }
                }
            };
            self.core.handle(self.now(), event);
        }
    }

    async fn carry_out(&self, key: &Key, order: &Order) -> Outcome {
        let Some(known) = self.known.guests.get(key) else {
            return Outcome::Conflict;
        };
        let sent = timeout(ORDER_LIMIT, self.access.carry_out(key, known, order)).await;
        let late = |_| Outcome::Transient("the API did not answer in time".to_owned());
        let outcome = sent.unwrap_or_else(late);
        let on = format!("{}/{}", key.0, instance_name(&key.1));
        let (to, why) = words(order);
        let mut changed = change(ChangeKind::Move, on, to, why);
        changed.failure = failure(&outcome);
        self.records.tell(&changed);
        outcome
    }
}

/// How a guest stands when no move is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It runs the wanted runner.
    Current,
    /// It gets the wanted runner with its next start, for this reason.
    PendingRestart(String),
    /// The runner is bad in it, for this reason.
    Bad(String),
    /// A gate of this name holds it.
    Waits(String),
}

/// What an order does, and why.
fn words(order: &Order) -> (String, String) {
    match order {
        Order::Begin(turn) => {
            let why = format!("attempt {}, migration {}", turn.attempt, turn.migration);
            (format!("begin {} {}", turn.version, turn.to), why)
        }
        Order::Name { to, .. } => (format!("runnerImage {to}"), "the move begins".to_owned()),
        Order::PutBack { to, .. } => {
            let to = to.as_deref().unwrap_or("unset");
            let why = "the move did not succeed".to_owned();
            (format!("runnerImage {to}"), why)
        }
        Order::Migrate { migration } => (format!("migrate {migration}"), String::new()),
        Order::Delete { migration } => (format!("delete {migration}"), String::new()),
        Order::End(end) => (format!("{:?}", end.result), end.reason.clone()),
    }
}

/// One line about an order and its outcome.
fn text(order: &Order, outcome: &Outcome) -> String {
    let (to, why) = words(order);
    let why = Some(why).filter(|why| !why.is_empty());
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    match failure(outcome) {
        None => format!("{to}{why}"),
        Some(failure) => format!("{to}{why}: failed: {failure}"),
    }
}
