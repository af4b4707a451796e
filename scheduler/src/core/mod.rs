//! The scheduler's core: what each node carries, who may have more of it, and where new pods go.
//!
//! Synchronous and deterministic: [`Core::handle`] takes what happened, [`Core::poll_action`] gives what to do,
//! [`Core::poll_deadline`] says when to come back. It owns no clock, socket, task or random source; state is rebuilt from
//! the objects after a restart and nothing of it is kept elsewhere.
//!
//! ```text
//! Nodes, Pods, VMs (watch) ──► ledger ──► sums per node
//!                                │  ▲
//! permit request ──► decide ─────┘  │ holds     answers only what is durably written
//!        └──► write of the VM ──────┘
//! unbound pod ──► fit, score ──► bind hold ──► binding
//! ```
//!
//! Cold start: until each kind was listed once, permits are refused with 503 and nothing is placed. Whatever is written
//! by an earlier process must have ended before the lists are taken (see `shell`).
//!
//! Invariants (spec/scheduler.md §6), all checked after every step of both tests in `tests/interleavings.rs`
//! (`n06_n08_never_overcommits_under_any_interleaving`, `n13_n16_n26_long_runs_reach_every_kind_of_trouble`):
//! * I1: no node's granted sum grows past its total by a decision of ours;
//! * I2: a permit is durably written before it is answered;
//! * I3: a decrease frees room only when its write was observed;
//! * I4: use ≤ last permit ≤ what is counted, per VM, across restarts.

pub mod amount;
pub mod decide;
pub mod event;
mod extract;
pub mod ledger;
mod permits;
mod placement;
pub mod score;
pub mod view;

use std::collections::{BTreeSet, VecDeque};

use protocol::permit::{NamespacedName, PermitRefusal};
use protocol::time::Timestamp;
use serde_json::json;

use event::{Action, Answer, Event, StateDump};
use ledger::{Ledger, Rules};
use permits::{Bench, Permits};
pub use permits::{MAX_CONFLICTS, MAX_UNCLEAR, MAX_WAITING, Oddities, Timing};
pub use placement::NO_ROOM_MESSAGE;
use placement::Placement;

/// Pods and VMs that a snapshot holds, each; building it takes the core's time.
pub const MAX_SHOWN: usize = 5000;

/// What the core is told once.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// How to count.
    pub rules: Rules,
    /// How long things may take.
    pub timing: Timing,
    /// Whether it places pods itself (one-machine mode).
    pub places_pods: bool,
}

/// Which lists have been taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Synced {
    nodes: bool,
    pods: bool,
    vms: bool,
}

/// See the module's description.
#[derive(Debug)]
pub struct Core {
    ledger: Ledger,
    permits: Permits,
    placement: Placement,
    synced: Synced,
    out: VecDeque<Action>,
}

impl Core {
    /// A core that knows nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            ledger: Ledger::new(settings.rules),
            permits: Permits::new(settings.timing),
            placement: Placement::new(settings.places_pods),
            synced: Synced::default(),
            out: VecDeque::new(),
        }
    }

    /// Something happened.
    pub fn handle(&mut self, now: Timestamp, event: Event) {
        match event {
            Event::NodesListed(nodes) => self.nodes_listed(nodes),
            Event::NodeApplied(node) => self.ledger.node_applied(node),
            Event::NodeDeleted(name) => self.ledger.node_deleted(&name),
            Event::PodsListed(pods) => {
                let here: BTreeSet<String> = pods.iter().map(|pod| pod.uid.clone()).collect();
                let gone = self
                    .ledger
                    .pods()
                    .filter(|pod| !here.contains(&pod.view.uid));
                let gone: Vec<String> = gone.map(|pod| pod.view.uid.clone()).collect();
                gone.iter().for_each(|uid| self.pod_deleted(uid));
                pods.into_iter().for_each(|pod| self.pod_applied(pod));
                self.synced.pods = true;
            }
            Event::PodApplied(pod) => self.pod_applied(pod),
            Event::PodDeleted(uid) => self.pod_deleted(&uid),
            Event::VmsListed(vms) => {
                let here: BTreeSet<&String> = vms.iter().map(|vm| &vm.uid).collect();
                let gone = self.ledger.vms().filter(|vm| !here.contains(&vm.view.uid));
                let gone = gone.map(|vm| (vm.view.key.clone(), vm.view.uid.clone()));
                let gone: Vec<(NamespacedName, String)> = gone.collect();
                gone.iter().for_each(|(key, uid)| self.vm_deleted(key, uid));
                vms.into_iter().for_each(|vm| {
                    self.ledger.vm_observed(vm);
                });
                self.synced.vms = true;
            }
            Event::VmApplied(vm) => {
                self.ledger.vm_observed(vm);
            }
            Event::VmDeleted(key, uid) => self.vm_deleted(&key, &uid),
            Event::Permit(ticket, _) if !self.is_ready() => {
                let result = Err(PermitRefusal::NotReady);
                let answer = Answer {
                    ticket,
                    node: None,
                    result,
                    decision: None,
                    news: false,
                };
                self.out.push_back(Action::Answer(answer));
            }
            Event::Permit(ticket, request) => {
                self.with_permits(now, |permits, bench| {
                    permits.request(bench, ticket, request)
                });
            }
            Event::WriteDone(id, outcome) | Event::ReadDone(id, outcome) => {
                self.with_permits(now, |permits, bench| permits.call_done(bench, id, outcome));
            }
            Event::BindDone(id, outcome) => {
                let mut bench = Bench {
                    now,
                    ledger: &mut self.ledger,
                    out: &mut self.out,
                };
                self.placement.bind_done(&mut bench, id, &outcome);
            }
        }
    }

    /// The next thing to do, if any.
    pub fn poll_action(&mut self, now: Timestamp) -> Option<Action> {
        if self.out.is_empty() && self.is_ready() {
            self.with_permits(now, |permits, bench| permits.tick(bench));
            let mut bench = Bench {
                now,
                ledger: &mut self.ledger,
                out: &mut self.out,
            };
            self.placement.tick(&mut bench);
        }
        self.out.pop_front()
    }

    /// When to call [`Core::poll_action`] even if nothing happens.
    #[must_use]
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let deadlines = [self.permits.poll_deadline(), self.placement.poll_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Whether every kind was listed once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.synced.nodes && self.synced.pods && self.synced.vms
    }

    /// What is not listed yet, for people.
    #[must_use]
    pub fn waiting_for(&self) -> Vec<&'static str> {
        let Synced { nodes, pods, vms } = self.synced;
        let lists = [(nodes, "nodes"), (pods, "pods"), (vms, "virtualmachines")];
        lists
            .into_iter()
            .filter(|(done, _)| !done)
            .map(|(_, name)| name)
            .collect()
    }

    /// The sums; read-only.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Nodes whose figures changed since the last call.
    pub fn take_touched(&mut self) -> BTreeSet<String> {
        self.ledger.take_touched()
    }

    /// Counts of what should be rare.
    #[must_use]
    pub fn oddities(&self) -> Oddities {
        self.permits.oddities()
    }

    /// The whole state, for people; of pods and of VMs at most [`MAX_SHOWN`] each.
    #[must_use]
    pub fn snapshot(&self, now: Timestamp) -> StateDump {
        let ledger = &self.ledger;
        // Sums are wider than JSON's integers; what no machine can have is cut.
        let cut =
            |sum: amount::Both<u128>| sum.map(|_, sum| u64::try_from(sum).unwrap_or(u64::MAX));
        let nodes = ledger.nodes().map(|node| {
            let load = ledger.load(&node.name);
            let value = json!({"total": node.total, "watermark": ledger.watermark(node),
                "reserved": cut(load.reserved), "committed": cut(load.committed),
                "migrating": cut(load.migrating), "ignored": cut(load.ignored),
                "cordoned": node.cordoned, "problem": node.problem});
            (node.name.clone(), value)
        });
        let pods = ledger.pods().take(MAX_SHOWN).map(|entry| {
            let value = json!({"entry": entry, "counted": ledger.counted(&entry.view)});
            (entry.view.key.to_string(), value)
        });
        StateDump {
            now,
            ready: self.is_ready(),
            nodes: nodes.collect(),
            pods: pods.collect(),
            vms: ledger
                .vms()
                .take(MAX_SHOWN)
                .map(|vm| (vm.view.key.to_string(), json!(vm)))
                .collect(),
            pods_total: ledger.pods().len(),
            vms_total: ledger.vms().len(),
            placement: self.placement.dump(),
            permits: self.permits.dump(),
        }
    }

    fn with_permits(&mut self, now: Timestamp, f: impl FnOnce(&mut Permits, &mut Bench<'_>)) {
        let mut bench = Bench {
            now,
            ledger: &mut self.ledger,
            out: &mut self.out,
        };
        f(&mut self.permits, &mut bench);
    }

    fn nodes_listed(&mut self, nodes: Vec<view::NodeView>) {
        let here: BTreeSet<String> = nodes.iter().map(|node| node.name.clone()).collect();
        let gone = self
            .ledger
            .nodes()
            .filter(|node| !here.contains(&node.name));
        let gone: Vec<String> = gone.map(|node| node.name.clone()).collect();
        gone.iter().for_each(|name| self.ledger.node_deleted(name));
        nodes
            .into_iter()
            .for_each(|node| self.ledger.node_applied(node));
        self.synced.nodes = true;
    }

    fn pod_applied(&mut self, pod: view::PodView) {
        self.placement.pod_applied(&self.ledger, &pod);
        self.ledger.pod_applied(pod);
    }

    fn pod_deleted(&mut self, uid: &str) {
        if let Some(entry) = self.ledger.pod(uid) {
            self.placement.pod_deleted(&entry.view);
        }
        self.ledger.pod_deleted(uid);
    }

    fn vm_deleted(&mut self, key: &NamespacedName, uid: &str) {
        if self
            .ledger
            .vm(key)
            .is_some_and(|entry| entry.view.uid == uid)
        {
            self.ledger.vm_deleted(key, uid);
            self.permits.vm_gone(key);
        }
    }
}
