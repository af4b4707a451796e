//! Policies in the place of the core's own goal. The answers of a live version reach the core, as
//! events; those of a candidate are recorded, and nothing else gets one.
//!
//! ```text
//!   ScalingPolicies, namespaces --watch--> known policies --watch(latest)--> VM's driver
//!   VM's driver --samples, questions--> supervisor --JSON lines--> bellows-policy worker
//!               <--answers------------
//! ```
//!
//! Feeds, which a version may name, are read by a task for each VM that has such a version.
//!
//! Without the section `policies` in the agent's file none of this runs. Live versions and
//! candidates have a worker each, so that a candidate delays nobody. A worker starts with the first
//! VM that needs it.

mod feeds;
mod judge;
mod known;
mod metrics;
mod quota;
mod revisions;
mod sources;
mod vm;
mod worker;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use daemon_kit::clock::Clock;
use policy_contract::{Answer, Digest, Fault, History, Input, Recheck};
use prometheus_client::registry::Registry;
use protocol::journal::Milli;
use protocol::policy::Role;
use protocol::time::{Span, Timestamp};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::RunError;
use super::config::Policies as Settings;
use super::journal::JournalHandle;
use super::metrics::AgentMetrics;
use crate::core::tallies::Tallies;
use known::{Known, Policy, Versions};
use metrics::PolicyMetrics;
use quota::ShrinkQuota;
pub(super) use vm::{PolicyEvent, VmChoice, VmPolicy, create_event, next_event};

/// Messages to the supervisor that wait. 500 VMs send two each per period.
const REQUEST_BOUND: usize = 4096;
/// Time that a permit below its request counts as a shortage on the node.
const STARVED_FOR: Span = Span::from_secs(5);

/// Message to the worker's supervisor.
#[derive(Debug)]
enum Request {
    /// A VM has a policy, so the worker must run.
    Wanted,
    /// The VM is gone, or its past follows.
    Forget { generation: u64, vm: u32 },
    /// The whole past of a VM, for a worker without it.
    Fill {
        generation: u64,
        vm: u32,
        past: Box<History>,
    },
    /// New samples of a VM.
    Sample {
        generation: u64,
        vm: u32,
        at: f64,
        samples: BTreeMap<String, f64>,
    },
    /// A question to one policy.
    Ask(Box<Question>),
}

#[derive(Debug)]
struct Question {
    generation: u64,
    /// Unique within this process.
    n: u64,
    vm: u32,
    at: f64,
    policy: Arc<Policy>,
    input: Box<Input>,
    /// Checksum of the question as it is recorded.
    checksum: u32,
    /// Answer to the first question, where this is the second one.
    first: Option<(Recheck, Box<Answer>)>,
    reply: mpsc::Sender<Said>,
}

/// End of a question.
#[derive(Debug)]
struct Said {
    n: u64,
    end: End,
}

#[derive(Debug)]
enum End {
    Answer(Box<Answer>),
    Fault(Fault, String),
    /// The version is set aside, so it was not asked.
    Aside(Fault, String),
    /// The worker ended because of another question.
    Lost,
}

/// What all drivers and the supervisors share. Clones share it too.
#[derive(Debug, Clone)]
pub(super) struct PolicyRuntime(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    live: WorkerLink,
    shadow: WorkerLink,
    known: watch::Sender<Known>,
    settings: Settings,
    metrics: PolicyMetrics,
    sources: Option<PathBuf>,
    next_vm: AtomicU32,
    next_question: AtomicU64,
    nodes: Mutex<BTreeMap<u32, Option<(Timestamp, Milli)>>>,
    quota: Mutex<ShrinkQuota>,
    tallies: Mutex<Tallies>,
    clock: Clock,
}

/// The worker of one role, as the drivers see it.
#[derive(Debug)]
struct WorkerLink {
    requests: mpsc::Sender<Request>,
    /// Number of the running worker; 0 while none runs.
    generation: AtomicU64,
    state: Mutex<WorkerState>,
}

/// Requests to the supervisors, to be taken by them.
struct Queues {
    live: mpsc::Receiver<Request>,
    shadow: mpsc::Receiver<Request>,
}

/// State of the worker, for people.
#[derive(Debug, Default, Clone)]
struct WorkerState {
    engine: Option<String>,
    /// Why no worker runs.
    problem: Option<String>,
    restarts: u64,
    /// Policies that are not asked any more, with the reason.
    set_aside: BTreeMap<Digest, (Fault, String)>,
}

/// A version that is not asked any more, for people and for the gate.
fn set_aside_dump(links: [&WorkerLink; 2], versions: &Versions) -> Vec<Value> {
    let mut all = Vec::new();
    for (role, link) in [Role::Live, Role::Shadow].into_iter().zip(links) {
        for digest in versions.all().map(|version| version.digest) {
            if let Some((fault, text)) = link.set_aside(&digest) {
                all.push(json!({"digest": digest, "role": role, "fault": fault, "text": text}));
            }
        }
    }
    all
}

/// Parts that [`PolicyRuntime::start`] needs.
pub(super) struct Parts<'a> {
    pub settings: Settings,
    pub kube: kube::Client,
    pub metrics: AgentMetrics,
    pub registry: &'a mut Registry,
    pub journal: Option<JournalHandle>,
    pub clock: Clock,
    /// Folder of the journal.
    pub folder: Option<PathBuf>,
    /// The worker's program; `None` = it is looked for.
    pub program: Option<PathBuf>,
}

impl PolicyRuntime {
    /// Starts the watches and the supervisor.
    pub(super) fn start(
        parts: Parts<'_>,
        tasks: &mut JoinSet<Result<(), RunError>>,
        cancel: &CancellationToken,
    ) -> Self {
        let sources = parts
            .folder
            .as_ref()
            .map(|folder| folder.join(sources::FOLDER));
        let (runtime, queues) = Self::new(parts.settings, parts.registry, sources, parts.clock);
        let folder = parts.folder.filter(|_| parts.journal.is_some());
        *runtime.tallies() = Tallies::new(folder.is_some());
        known::spawn(&runtime, parts.kube, &parts.metrics, tasks, cancel);
        let judging = judge::run(
            runtime.clone(),
            folder,
            parts.program.clone(),
            cancel.clone(),
        );
        tasks.spawn(async move {
            judging.await;
            Ok(())
        });
        for (role, queue) in [(Role::Live, queues.live), (Role::Shadow, queues.shadow)] {
            let (journal, program) = (parts.journal.clone(), parts.program.clone());
            let supervisor =
                worker::Supervisor::new(runtime.clone(), role, queue, journal, program);
            let stop = cancel.clone();
            tasks.spawn(async move {
                supervisor.run(stop).await;
                Ok(())
            });
        }
        runtime
    }

    fn new(
        settings: Settings,
        registry: &mut Registry,
        sources: Option<PathBuf>,
        clock: Clock,
    ) -> (Self, Queues) {
        let (live, shadow) = (WorkerLink::new(), WorkerLink::new());
        let runtime = Self(Arc::new(Shared {
            live: live.0,
            shadow: shadow.0,
            known: watch::Sender::new(Known::default()),
            settings,
            metrics: PolicyMetrics::register(registry),
            tallies: Mutex::new(Tallies::new(false)),
            clock,
            sources,
            next_vm: AtomicU32::new(1),
            next_question: AtomicU64::new(1),
            nodes: Mutex::default(),
            quota: Mutex::default(),
        }));
        let queues = Queues {
            live: live.1,
            shadow: shadow.1,
        };
        (runtime, queues)
    }

    /// The worker that answers for a role.
    fn link(&self, role: Role) -> &WorkerLink {
        match role {
            Role::Live => &self.0.live,
            Role::Shadow => &self.0.shadow,
        }
    }

    fn nodes(&self) -> MutexGuard<'_, BTreeMap<u32, Option<(Timestamp, Milli)>>> {
        self.0.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn quota(&self) -> MutexGuard<'_, ShrinkQuota> {
        self.0.quota.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of VMs on the node, and the units that other VMs than `vm` were refused of late.
    fn node_load(&self, vm: u32, now: Timestamp) -> (u32, Milli) {
        let nodes = self.nodes();
        let starved = nodes
            .iter()
            .filter(|(other, _)| **other != vm)
            .filter_map(|(_, shortage)| *shortage)
            .filter(|(at, _)| now.since(*at) < STARVED_FOR)
            .map(|(_, units)| units.0)
            .sum();
        let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        (count, Milli(starved))
    }

    /// The member `policies` of the agent's state.
    pub(super) fn dump(&self) -> Value {
        let known = self.0.known.borrow();
        let policies: Vec<Value> = known
            .policies
            .iter()
            .map(|(name, versions)| match versions {
                Ok(versions) => {
                    let problem = self.problem_of(versions);
                    json!({
                        "name": name,
                        "live": versions.live.as_ref().map(|policy| policy.digest),
                        "candidate": versions.candidate.as_ref().map(|policy| policy.digest),
                        "canaryPercent": versions.canary,
                        "loaded": problem.is_none(),
                        "problem": problem,
                        "setAside": set_aside_dump([&self.0.live, &self.0.shadow], versions),
                    })
                }
                Err(problem) => json!({"name": name, "loaded": false, "problem": problem}),
            })
            .collect();
        json!({
            "known": policies,
            "tallies": self.reports(),
            "workers": {
                "live": self.0.live.dump(),
                "shadow": self.0.shadow.dump(),
            },
        })
    }

    /// Why a version of a policy is not asked.
    fn problem_of(&self, versions: &Versions) -> Option<String> {
        // In canary each version decides about some VMs, and is in shadow for the others.
        let links = [&self.0.live, &self.0.shadow];
        let aside = versions.all().find_map(|version| {
            let digest = version.digest;
            let (fault, text) = links.iter().find_map(|link| link.set_aside(&digest))?;
            Some(format!("{}: {}: {text}", digest.short(), fault.word()))
        });
        let missing = versions.missing.map(|digest| {
            let digest = digest.short();
            format!("version {digest} should decide, and its source is not found")
        });
        let ports = &self.0.settings.feed_ports;
        let mut feeds = versions.all().flat_map(|version| &version.spec.feeds);
        let refused = feeds.find(|feed| !ports.contains(&feed.port)).map(|feed| {
            let (name, port) = (&feed.name, feed.port);
            format!("feed {name}: port {port} is not in policies.feedPorts of the agent's file")
        });
        aside.or(missing).or(refused)
    }
}

impl WorkerLink {
    fn new() -> (Self, mpsc::Receiver<Request>) {
        let (requests, queue) = mpsc::channel(REQUEST_BOUND);
        let link = Self {
            requests,
            generation: AtomicU64::new(0),
            state: Mutex::default(),
        };
        (link, queue)
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Sends a message to the supervisor. Returns whether it was taken.
    fn send(&self, request: Request) -> bool {
        self.requests.try_send(request).is_ok()
    }

    fn state(&self) -> MutexGuard<'_, WorkerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the questions to a version. The first reason stays.
    fn put_aside(&self, digest: Digest, fault: Fault, text: String) {
        let mut state = self.state();
        state.set_aside.entry(digest).or_insert((fault, text));
    }

    /// Forgets about versions that no policy has.
    fn keep_aside(&self, is_used: impl Fn(&Digest) -> bool) {
        self.state().set_aside.retain(|digest, _| is_used(digest));
    }

    fn set_aside(&self, digest: &Digest) -> Option<(Fault, String)> {
        self.state().set_aside.get(digest).cloned()
    }

    fn dump(&self) -> Value {
        let state = self.state().clone();
        json!({
            "runs": self.generation() != 0,
            "engine": state.engine,
            "restarts": state.restarts,
            "problem": state.problem,
        })
    }
}
