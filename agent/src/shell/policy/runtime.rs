//! What all drivers and the workers' supervisors share: the known policies, the link to the worker
//! of each role, and the VMs of the node.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use daemon_kit::clock::Clock;
use policy_contract::{Digest, Fault};
use prometheus_client::registry::Registry;
use protocol::journal::Milli;
use protocol::policy::Role;
use protocol::time::{Span, Timestamp};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::known::{Known, Versions};
use super::metrics::PolicyMetrics;
use super::quota::ShrinkQuota;
use super::request::Request;
use crate::core::tallies::Tallies;
use crate::shell::config::Policies as Settings;

/// Messages to the supervisor that wait. 500 VMs send two each per period.
const REQUEST_BOUND: usize = 4096;
/// Time that a permit below its request counts as a shortage on the node.
pub(super) const STARVED_FOR: Span = Span::from_secs(5);

/// What all drivers and the supervisors share. Clones share it too.
#[derive(Debug, Clone)]
pub(in crate::shell) struct PolicyRuntime(pub(super) Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    pub live: WorkerLink,
    pub shadow: WorkerLink,
    pub known: watch::Sender<Known>,
    pub settings: Settings,
    pub metrics: PolicyMetrics,
    pub sources: Option<PathBuf>,
    /// Held while sources are stored.
    pub storing: Mutex<()>,
    pub next_vm: AtomicU32,
    pub next_question: AtomicU64,
    pub nodes: Mutex<BTreeMap<u32, Option<(Timestamp, Milli)>>>,
    pub quota: Mutex<ShrinkQuota>,
    pub tallies: Mutex<Tallies>,
    pub clock: Clock,
}

/// The worker of one role, as the drivers see it.
#[derive(Debug)]
pub(super) struct WorkerLink {
    pub requests: mpsc::Sender<Request>,
    /// Number of the running worker; 0 while none runs.
    pub generation: AtomicU64,
    pub state: Mutex<WorkerState>,
}

/// Requests to the supervisors, to be taken by them.
pub(super) struct Queues {
    pub live: mpsc::Receiver<Request>,
    pub shadow: mpsc::Receiver<Request>,
}

/// State of the worker, for people.
#[derive(Debug, Default, Clone)]
pub(super) struct WorkerState {
    pub engine: Option<String>,
    /// Why no worker runs.
    pub problem: Option<String>,
    pub restarts: u64,
    /// Policies that are not asked any more, with the reason.
    pub set_aside: BTreeMap<Digest, (Fault, String)>,
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

/// Limits of a policy that are cut. All its versions have the same limits.
fn cut_limits(versions: &Versions) -> Vec<String> {
    let mut all = versions.all();
    all.next()
        .map(|one| one.cut_limits.clone())
        .unwrap_or_default()
}

impl PolicyRuntime {
    /// Limits of the policy `name` that are cut.
    pub(super) fn cut_limits_of(&self, name: &str) -> Vec<String> {
        let known = self.0.known.borrow();
        match known.policies.get(name) {
            Some(Ok(versions)) => cut_limits(versions),
            Some(Err(_)) | None => Vec::new(),
        }
    }

    pub(super) fn new(
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
            storing: Mutex::default(),
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
    pub(super) fn link(&self, role: Role) -> &WorkerLink {
        match role {
            Role::Live => &self.0.live,
            Role::Shadow => &self.0.shadow,
        }
    }

    pub(super) fn nodes(&self) -> MutexGuard<'_, BTreeMap<u32, Option<(Timestamp, Milli)>>> {
        self.0.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn quota(&self) -> MutexGuard<'_, ShrinkQuota> {
        self.0.quota.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of VMs on the node, and the units that other VMs than `vm` were refused of late.
    pub(super) fn node_load(&self, vm: u32, now: Timestamp) -> (u32, Milli) {
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
    pub(in crate::shell) fn dump(&self) -> Value {
        // The reports borrow the known policies too. A second borrow by the same thread waits for
        // ever once a change waits for the first.
        let tallies = self.reports();
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
                        "cutLimits": cut_limits(versions),
                        "setAside": set_aside_dump([&self.0.live, &self.0.shadow], versions),
                    })
                }
                Err(problem) => json!({"name": name, "loaded": false, "problem": problem}),
            })
            .collect();
        json!({
            "known": policies,
            "tallies": tallies,
            "workers": {
                "live": self.0.live.dump(),
                "shadow": self.0.shadow.dump(),
            },
        })
    }

    /// Why a version of a policy is not asked.
    pub(super) fn problem_of(&self, versions: &Versions) -> Option<String> {
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
        let worker = || self.worker_problem();
        aside.or(missing).or(refused).or_else(worker)
    }

    /// Why a worker that a VM needs does not run.
    pub(super) fn worker_problem(&self) -> Option<String> {
        let links = [&self.0.live, &self.0.shadow];
        links.iter().find_map(|link| link.state().problem.clone())
    }
}

impl WorkerLink {
    pub(super) fn new() -> (Self, mpsc::Receiver<Request>) {
        let (requests, queue) = mpsc::channel(REQUEST_BOUND);
        let link = Self {
            requests,
            generation: AtomicU64::new(0),
            state: Mutex::default(),
        };
        (link, queue)
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Sends a message to the supervisor. Returns whether it was taken.
    pub(super) fn send(&self, request: Request) -> bool {
        self.requests.try_send(request).is_ok()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, WorkerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the questions to a version. The first reason stays.
    pub(super) fn put_aside(&self, digest: Digest, fault: Fault, text: String) {
        let mut state = self.state();
        state.set_aside.entry(digest).or_insert((fault, text));
    }

    /// Forgets about versions that no policy has.
    pub(super) fn keep_aside(&self, is_used: impl Fn(&Digest) -> bool) {
        self.state().set_aside.retain(|digest, _| is_used(digest));
    }

    pub(super) fn set_aside(&self, digest: &Digest) -> Option<(Fault, String)> {
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
