//! The state that pages show: read once for all pages, every few seconds while somebody looks.
//!
//! A page never waits for the instance unless nobody has looked for a while. If the instance stops
//! answering, pages go on showing the last state, with its time and the failure.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use daemon_kit::clock::Clock;
use daemon_kit::exit::Exit;
use hyper::http::Method;
use serde_json::Value;
use tokio::sync::{Notify, watch};

use super::snapshot::{SetState, Snapshot, VmSettings};
use crate::api::{Api, Kind};
use crate::cluster;
use crate::commands::policy::state::Agents;
use crate::context::Context;
use crate::decision::{Decisions, by_vm};
use crate::fail::{Fail, Outcome};
use crate::node_orders::{is_drained, name_of};
use crate::resize::Resize;
use crate::up::status::Status;
use crate::view::node;
use crate::view::vm::{self, VmView};

/// How often the state is read.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Time between two reads.
    period: Duration,
    /// Age from which a state is too old for a page. A page then waits for the next one.
    old: Duration,
}

/// Of the instance of this machine.
const MACHINE: Pace = Pace {
    period: Duration::from_secs(2),
    old: Duration::from_secs(6),
};
/// Of a cluster, where each read asks all agents.
const CLUSTER: Pace = Pace {
    period: Duration::from_secs(5),
    old: Duration::from_secs(12),
};
/// Longest wait of a page for a state.
const PATIENCE: Duration = Duration::from_secs(4);
/// Time without a page after which nothing is read.
const IDLE: Duration = Duration::from_secs(20);

/// The last state, and the task that reads it.
pub(super) struct Live {
    latest: watch::Receiver<Arc<Snapshot>>,
    interest: Arc<Interest>,
    pace: Pace,
}

#[derive(Default)]
struct Interest {
    last: Mutex<Option<Instant>>,
    wake: Notify,
    /// Time of the last order.
    ordered: Mutex<Option<Instant>>,
    order: Notify,
}

impl Interest {
    fn show(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.wake.notify_one();
    }

    fn ordered(&self) -> MutexGuard<'_, Option<Instant>> {
        self.ordered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_there(&self) -> bool {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() < IDLE)
    }
}

impl Live {
    pub(super) fn start(context: Context) -> Self {
        let interest = Arc::new(Interest::default());
        let (sender, latest) = watch::channel(Arc::new(Snapshot::default()));
        let pace = if context.asks_cluster() {
            CLUSTER
        } else {
            MACHINE
        };
        tokio::spawn(read_on((context, pace), interest.clone(), sender));
        Self {
            latest,
            interest,
            pace,
        }
    }

    /// Makes the next page wait for a state that has what an order did.
    pub(super) fn ordered(&self) {
        *self.interest.ordered() = Some(Instant::now());
        self.interest.order.notify_one();
    }

    /// A state that is a few seconds old at most, or the last one with what is wrong.
    pub(super) async fn snapshot(&self) -> Arc<Snapshot> {
        self.interest.show();
        let mut latest = self.latest.clone();
        let ordered = *self.interest.ordered();
        let is_new = |state: &Arc<Snapshot>| {
            let is_new = |at: Instant| Some(at) > ordered && at.elapsed() < self.pace.old;
            state.taken.is_some_and(is_new)
        };
        let found = async {
            let found = latest.wait_for(is_new).await;
            found.map(|found| found.clone())
        };
        if let Ok(Ok(found)) = tokio::time::timeout(PATIENCE, found).await {
            return found;
        }
        let last = self.latest.borrow().as_ref().clone();
        let problem = Fail::try_again(format!("no state came within {} s", PATIENCE.as_secs()));
        Arc::new(Snapshot {
            problem: Some(problem),
            ..last
        })
    }
}

async fn read_on(
    (context, pace): (Context, Pace),
    interest: Arc<Interest>,
    latest: watch::Sender<Arc<Snapshot>>,
) {
    let mut api = None;
    loop {
        interest.wake.notified().await;
        while interest.is_there() {
            let taken = Some(Instant::now());
            let state = match read(&context, &mut api).await {
                Ok(state) => state.complete(),
                Err(problem) => {
                    api = None;
                    let before = latest.borrow().as_ref().clone();
                    Snapshot {
                        problem: Some(problem),
                        ..before
                    }
                }
            };
            let state = Snapshot { taken, ..state };
            if latest.send(Arc::new(state)).is_err() {
                return;
            }
            let order = interest.order.notified();
            let _ = tokio::time::timeout(pace.period, order).await;
        }
    }
}

/// What the components say, of one moment.
struct Summary {
    status: Option<Status>,
    agents: Agents,
    refused: Value,
    /// The oldest stands first.
    resizes: Vec<Resize>,
    /// Machines that know each other, or null.
    peers: Value,
    /// Parts of a cluster that do not answer.
    silent: Vec<(&'static str, Fail)>,
}

/// Answer of a part of a cluster. A page shows the other parts without it.
fn or_silent<T: Default>(
    part: &'static str,
    answer: Outcome<T>,
    silent: &mut Vec<(&'static str, Fail)>,
) -> T {
    answer.unwrap_or_else(|fail| {
        silent.push((part, fail));
        T::default()
    })
}

async fn summary(context: &Context, api: &Api) -> Outcome<Summary> {
    if context.asks_cluster() {
        let mut silent = Vec::new();
        let answer = cluster::agents(api, None).await;
        let mut agents = or_silent("Agents", answer, &mut silent);
        let decisions = by_vm(&agents);
        return Ok(Summary {
            status: None,
            agents: Agents::new(agents["policies"].take(), decisions),
            refused: cluster::scheduler(api).await["refused"].take(),
            resizes: Vec::new(),
            peers: Value::Null,
            silent,
        });
    }
    let mut told = context.admin(Method::GET, "/v1/summary", None).await?;
    let decisions: Decisions = serde_json::from_value(told["decisions"].take())
        .map_err(|error| Fail::bug(format!("the admin API answered no decisions: {error}")))?;
    Ok(Summary {
        status: serde_json::from_value(told["status"].take()).ok(),
        agents: Agents::new(told["policies"].take(), decisions),
        refused: told["refused"].take(),
        resizes: serde_json::from_value(told["resizes"].take()).unwrap_or_default(),
        peers: told["peers"].take(),
        silent: Vec::new(),
    })
}

async fn read(context: &Context, kept: &mut Option<Api>) -> Outcome<Snapshot> {
    let api = match kept {
        Some(api) => api.clone(),
        None => kept.insert(context.api().await?).clone(),
    };
    let now = Clock::new().wall();
    let policies = async { Ok::<_, Fail>(api.list(Kind::Policy, None).await) };
    let sets = async { Ok::<_, Fail>(api.list(Kind::VmSet, None).await) };
    let (objects, pods, nodes, policies, sets, mut summary) = tokio::try_join!(
        api.list(Kind::Vm, None),
        api.list(Kind::Pod, None),
        api.list(Kind::Node, None),
        policies,
        sets,
        summary(context, &api),
    )?;
    // A cluster may be without policies.
    let policies = match policies {
        Err(fail) if !context.asks_cluster() => return Err(fail),
        answer => or_silent("Policies", answer, &mut summary.silent),
    };
    let sets = match sets {
        Err(fail) if !context.asks_cluster() => return Err(fail),
        // A cluster without the kind has no sets.
        Err(fail) if fail.exit() == Exit::Dependency => Vec::new(),
        answer => or_silent("Sets", answer, &mut summary.silent),
    };
    let beside = vm::Beside {
        decisions: summary.agents.decisions.clone(),
        waiting: node::waiting(&pods),
        resizes: summary.resizes,
        now,
    };
    let vms = vm::views(&objects, &beside);
    let settings = vms.iter().map(VmView::key);
    let settings = settings.zip(objects.iter().map(VmSettings::of)).collect();
    let pods = node::pods(&pods, now);
    let drained = nodes.iter().filter(|node| is_drained(node));
    let drained = drained.map(|node| name_of(node).to_owned());
    let mut resizes = beside.resizes;
    resizes.reverse();
    Ok(Snapshot {
        at: now,
        status: summary.status,
        vms,
        settings,
        drained: drained.collect(),
        nodes: node::nodes(&nodes, &pods, now),
        agents: summary.agents,
        policies,
        sets: SetState::all(sets, &objects),
        refused: summary.refused,
        peers: summary.peers,
        silent: summary.silent,
        resizes,
        ..Snapshot::default()
    })
}
