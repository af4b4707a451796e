//! The loop: lists the objects of all environments, and passes them to a task of each.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use daemon_kit::StageLog;
use daemon_kit::clock::Clock;
use daemon_kit::journal::Journal;
use fleet_release::Scope;
use fleet_signatures::ImageKey;
use fleet_store::{FleetStore, LoadedEnvironment, Problem, Programs};
use protocol::fleet::FleetKind;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::calls::{Kept, Read};
use crate::changes::Key;
use crate::channels::Channels;
use crate::images::ImageGate;
use crate::lane::{IDLE_LOOK_EVERY, Lane, Listing, Shared, is_running, key_of};
use crate::lease::Seen;
use crate::look::Looker;
use crate::metrics::Metrics;
use crate::node::Unconnected;
use crate::pulse::{Pulse, Pulses};
use crate::records::Records;
use crate::runners::{Pods, Runners};
use crate::schedules::Schedules;
use crate::wanted::Wanted;

/// Between two looks at environments and deployments.
const ROUND_EVERY: Duration = Duration::from_millis(500);
/// Between two looks at the guests of a deployment that runs.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest time for the lists.
const API_LIMIT: Duration = Duration::from_secs(10);

/// Where the driver works.
#[derive(Debug, Clone)]
pub enum Location {
    /// Machine with one user. Runners have control sockets there.
    Machine,
    /// Cluster whose objects many people may write. Runners are in pods.
    Cluster {
        /// Whether releases may be signed by keys for trying.
        allow_dev: bool,
        /// Authorities in PEM that servers of channels are believed by, beside the system's.
        authorities: Vec<Vec<u8>>,
        /// Key by which images are signed. Without it images are not verified.
        image_key: Option<ImageKey>,
    },
}

impl Location {
    /// Where channels are read, and the authorities that their servers are believed by.
    pub(crate) fn believed(&self) -> (Scope, &[Vec<u8>]) {
        match self {
            Self::Machine => (Scope::Machine, &[]),
            Self::Cluster {
                allow_dev,
                authorities,
                ..
            } => {
                let allow_dev = *allow_dev;
                (Scope::Cluster { allow_dev }, authorities)
            }
        }
    }
}

/// What the driver uses.
#[derive(Clone)]
pub struct Params {
    /// Client of the API.
    pub client: kube::Client,
    /// Clock of the process.
    pub clock: Clock,
    /// State directory with the programs in `fleet/programs` and, on one machine, the runners in
    /// `vms`.
    pub state_dir: PathBuf,
    /// Where the driver works.
    pub location: Location,
    /// Stages of resizes, by which a judge compares their durations.
    pub stages: StageLog,
    /// Metrics of rollouts.
    pub metrics: Metrics,
    /// Journal of rollouts. `None`: log lines alone.
    pub journal: Option<Journal>,
    /// Whether the tasks get on.
    pub pulses: Pulses,
    /// Whether VMs get the schedules of updaters in their guests.
    pub schedules: bool,
}

/// The task of an environment.
struct Driven {
    listings: watch::Sender<Option<Arc<Listing>>>,
    basis: Arc<AtomicU64>,
}

struct Driver {
    shared: Shared,
    driven: BTreeMap<Key, Driven>,
    lanes: JoinSet<()>,
    schedules: Option<watch::Sender<Option<Arc<Listing>>>>,
    /// Whether the last look had environments.
    had_environments: bool,
    problems: Vec<Problem>,
    last_look: Option<Instant>,
    pulse: Pulse,
}

/// Runs the rollouts of all environments until `token`. Calls in flight are dropped then: a turn is
/// in the objects, and the next run goes on with it.
pub async fn run(params: Params, token: CancellationToken) {
    let wanted = Wanted::default();
    let mut channels = Channels::new(&params).fetching(wanted.clone());
    let (runners, image_key) = match params.location {
        Location::Machine => (Runners::Sockets(params.state_dir.clone()), None),
        Location::Cluster { image_key, .. } => {
            (Runners::Pods(Pods::new(params.client.clone())), image_key)
        }
    };
    let records = Records {
        journal: params.journal,
        clock: params.clock,
        metrics: params.metrics,
    };
    let mut driver = Driver {
        shared: Shared {
            store: FleetStore::new(params.client.clone()),
            kept: Kept {
                programs: Programs::of_state_dir(&params.state_dir),
                wanted,
                read: Read::default(),
            },
            pulses: params.pulses.clone(),
            looker: Looker {
                client: params.client,
                begun: params.clock.now(),
                clock: params.clock,
                runners,
                unconnected: Unconnected::default(),
                images: ImageGate::new(image_key),
                seen: Seen::default(),
                asks_pages: true,
            },
            stages: params.stages,
            records,
        },
        driven: BTreeMap::new(),
        lanes: JoinSet::new(),
        schedules: None,
        had_environments: false,
        problems: Vec::new(),
        last_look: None,
        pulse: params.pulses.task(),
    };
    if params.schedules {
        driver.keep_schedules();
    }
    let whole = async {
        loop {
            // It has no rest: a runtime whose threads are all blocked is seen by it.
            driver.pulse.beat();
            if let Err(error) = driver.round().await {
                tracing::warn!(error, "failed to look at the fleet");
            }
            tokio::time::sleep(ROUND_EVERY).await;
        }
    };
    tokio::select! {
        () = token.cancelled() => {}
        () = whole => {}
        () = channels.run() => {}
    }
}

/// Whether a deployment may begin at once.
fn is_started(one: &LoadedEnvironment) -> bool {
    let mut deployments = one.deployments.iter();
    one.environment.status.lock.is_none() && deployments.any(|one| !one.status.state.is_terminal())
}

/// What the API answers, if it does so in time.
async fn in_time<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    let answer = timeout(API_LIMIT, call).await;
    let answer = answer.map_err(|_| "no lists of the objects in time".to_owned())?;
    answer.map_err(|error| daemon_kit::chain(&error))
}

impl Driver {
    async fn round(&mut self) -> Result<(), String> {
        while self.lanes.try_join_next().is_some() {}
        let begun = Instant::now();
        let bases = self.driven.iter();
        let bases = bases.map(|(key, one)| (key.clone(), one.basis.load(Ordering::Acquire)));
        let bases: BTreeMap<Key, u64> = bases.collect();
        let store = self.shared.store.clone();
        let mut loaded = in_time(store.load_environments()).await?;
        self.shared.records.metrics.show(&loaded.environments);
        let is_due = self.is_look_due(&loaded.environments, begun);
        self.keep_lanes(&loaded.environments);
        if is_due && !loaded.environments.is_empty() {
            self.drop_listing();
            in_time(store.load_instances(&mut loaded)).await?;
        }
        self.report(loaded.problems, is_due);
        let environments = loaded.environments;
        // The look after the last environment is gone takes schedules away.
        let has_work = !environments.is_empty() || self.had_environments;
        if !has_work || !is_due {
            return Ok(());
        }
        let surroundings = self.shared.looker.surroundings().await?;
        self.last_look = Some(begun);
        self.had_environments = !environments.is_empty();
        let listing = Arc::new(Listing {
            begun,
            bases,
            environments,
            surroundings,
        });
        for listings in self
            .driven
            .values()
            .map(|one| &one.listings)
            .chain(&self.schedules)
        {
            // One without a receiver is replaced by the next round.
            let _ = listings.send(Some(Arc::clone(&listing)));
        }
        Ok(())
    }

    /// Two listings at a time would take twice the memory.
    fn drop_listing(&self) {
        let driven = self.driven.values().map(|one| &one.listings);
        for listings in driven.chain(&self.schedules) {
            listings.send_replace(None);
        }
    }

    fn keep_schedules(&mut self) {
        let (listings, receiver) = watch::channel(None);
        let schedules = Schedules::new(&self.shared);
        self.lanes.spawn(schedules.run(receiver));
        self.schedules = Some(listings);
    }

    /// Begins a task for each new environment, and ends those of environments that are gone.
    fn keep_lanes(&mut self, environments: &[LoadedEnvironment]) {
        let keys: Vec<Key> = environments.iter().map(key_of).collect();
        self.driven
            .retain(|key, one| keys.contains(key) && !one.listings.is_closed());
        for key in keys {
            if self.driven.contains_key(&key) {
                continue;
            }
            let basis = Arc::new(AtomicU64::new(0));
            let (listings, receiver) = watch::channel(None);
            let lane = Lane::new(key.clone(), self.shared.clone(), Arc::clone(&basis));
            self.lanes.spawn(lane.run(receiver));
            self.driven.insert(key, Driven { listings, basis });
        }
    }

    fn is_look_due(&self, all: &[LoadedEnvironment], now: Instant) -> bool {
        let is_new = |one: &LoadedEnvironment| !self.driven.contains_key(&key_of(one));
        let is_after = |pause| {
            self.last_look
                .is_none_or(|last| now.duration_since(last) >= pause)
        };
        is_after(IDLE_LOOK_EVERY)
            || all.iter().any(|one| is_new(one) || is_started(one))
            || (is_after(LOOK_EVERY) && all.iter().any(is_running))
    }

    /// Logs objects that were left out, once for each change.
    fn report(&mut self, mut problems: Vec<Problem>, has_instances: bool) {
        if !has_instances {
            let of_instance = |one: &Problem| one.object.starts_with(FleetKind::Instance.as_str());
            problems.extend(self.problems.drain(..).filter(of_instance));
        }
        for problem in problems.iter().filter(|one| !self.problems.contains(one)) {
            let Problem { object, reason } = problem;
            tracing::warn!(object, reason, "left out an object of the fleet");
        }
        self.problems = problems;
    }
}
