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
pub mod elect;
pub mod event;
mod extract;
pub mod fair;
pub mod lease;
pub mod ledger;
mod permits;
mod placement;
pub mod remarks;
pub mod score;
pub mod view;

use std::collections::{BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};

use protocol::permit::{NamespacedName, PermitRefusal};
use protocol::time::{Span, Timestamp};
use serde_json::json;

use event::{Action, Answer, BindOutcome, Event, StateDump};
use lease::{Lead, LeaseRule, Standing, Turn};
use ledger::{Ledger, Rules};
use permits::{Bench, Permits};
pub use permits::{MAX_CONFLICTS, MAX_UNCLEAR, MAX_WAITING, Oddities, Timing};
pub use placement::NO_ROOM_MESSAGE;
use placement::Placement;
use remarks::{Remark, Remarks};

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
    /// The Lease that says when this replica leads; alone, it always does.
    pub lease: Option<LeaseRule>,
}

/// Which lists have been taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
struct Synced {
    nodes: bool,
    pods: bool,
    vms: bool,
}

/// See the module's description.
#[derive(Debug, Clone)]
pub struct Core {
    ledger: Ledger,
    permits: Permits,
    placement: Placement,
    remarks: Remarks,
    synced: Synced,
    lead: Option<Lead>,
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
            remarks: Remarks::new(settings.places_pods),
            synced: Synced::default(),
            lead: settings.lease.map(Lead::new),
            out: VecDeque::new(),
        }
    }

    /// Something happened.
    pub fn handle(&mut self, now: Timestamp, event: Event) {
        match event {
            Event::Lease(seen) => {
                if let Some(lead) = &mut self.lead {
                    lead.seen(now, &seen);
                }
            }
            Event::Permit(ticket, _) if !self.may_permit(now) => self.not_ready(ticket),
            Event::Permit(ticket, request) => {
                self.with_permits(now, |permits, bench| {
                    permits.request(bench, ticket, request)
                });
            }
            Event::WriteDone(id, outcome) | Event::ReadDone(id, outcome) => {
                self.with_permits(now, |permits, bench| permits.call_done(bench, id, outcome));
            }
            Event::BindDone(id, outcome) => self.bind_done(now, id, &outcome),
            // Told by a watch from before this term's lists: they begin with what is true now.
            _ if self.lead.as_ref().is_some_and(|lead| !lead.is_open()) => {}
            told => self.observe(told),
        }
    }

    /// Takes in what a watch tells.
    fn observe(&mut self, event: Event) {
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
                pods.into_iter().for_each(|pod| self.pod_applied(pod, true));
                self.synced.pods = true;
            }
            Event::PodApplied(pod) => self.pod_applied(pod, false),
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
            Event::Permit(..)
            | Event::WriteDone(..)
            | Event::ReadDone(..)
            | Event::BindDone(..)
            | Event::Lease(..) => {}
        }
    }

    fn bind_done(&mut self, now: Timestamp, id: event::CallId, outcome: &BindOutcome) {
        let mut bench = Bench {
            now,
            ledger: &mut self.ledger,
            out: &mut self.out,
        };
        self.placement.bind_done(&mut bench, id, outcome);
    }

    fn not_ready(&mut self, ticket: event::TicketId) {
        self.out.push_back(Action::Answer(Answer {
            ticket,
            node: None,
            result: Err(PermitRefusal::NotReady),
            decision: None,
            news: false,
        }));
    }

    /// The next thing to do, if any.
    pub fn poll_action(&mut self, now: Timestamp) -> Option<Action> {
        self.follow_lead(now);
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

    /// Begins and ends terms: without a valid lead nothing is known, so that nothing is begun.
    fn follow_lead(&mut self, now: Timestamp) {
        let Some(lead) = &mut self.lead else { return };
        let turn = lead.turn(now);
        if turn.is_some() {
            self.forget();
        }
        if turn == Some(Turn::Opens) {
            self.out.push_back(Action::List);
        }
    }

    /// When to call [`Core::poll_action`] even if nothing happens.
    #[must_use]
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let lead = self.lead.as_ref().and_then(Lead::poll_deadline);
        let work = [self.permits.poll_deadline(), self.placement.poll_deadline()];
        let work = work.into_iter().flatten().filter(|_| self.is_ready());
        work.chain(lead).min()
    }

    /// What is known may be from before somebody else led. Calls that were not sent will not be.
    fn forget(&mut self) {
        self.ledger = Ledger::new(self.ledger.rules().clone());
        self.placement.forget();
        self.remarks.forget();
        self.synced = Synced::default();
        self.out.retain(|action| !action.is_call());
        for ticket in self.permits.forget() {
            self.not_ready(ticket);
        }
    }

    /// Whether calls may be begun now.
    #[must_use]
    pub fn may_act(&self, now: Timestamp) -> bool {
        let lead = self.lead.as_ref();
        lead.is_none_or(|lead| matches!(lead.standing(now), Standing::Leading { .. }))
    }

    /// Whether permits are answered now.
    #[must_use]
    pub fn may_permit(&self, now: Timestamp) -> bool {
        self.is_ready() && self.may_act(now)
    }

    /// Where this replica stands, if it is one of several.
    #[must_use]
    pub fn standing(&self, now: Timestamp) -> Option<Standing> {
        self.lead.as_ref().map(|lead| lead.standing(now))
    }

    /// How long a call that begins now may take; without a Lease there is no such bound.
    #[must_use]
    pub fn call_bound(&self, now: Timestamp) -> Option<Span> {
        match self.standing(now)? {
            Standing::Leading { left } => Some(left),
            Standing::Following | Standing::Settling { .. } => Some(Span(0)),
        }
    }

    /// Whether every kind was listed once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.synced.nodes && self.synced.pods && self.synced.vms
    }

    /// Why this replica does not lead now, if so, for people.
    #[must_use]
    pub fn standby(&self, now: Timestamp) -> Option<&'static str> {
        match self.standing(now)? {
            Standing::Following => Some("another replica leads, or none"),
            Standing::Settling { .. } => {
                Some("taking over: what the last leader sent may yet land")
            }
            Standing::Leading { .. } => None,
        }
    }

    /// Whether nothing that was begun is under way or of unclear fate.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.permits.is_drained() && self.placement.is_drained()
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

    /// How many pods there are of which this is to be said.
    #[must_use]
    pub fn remarked(&self, remark: Remark) -> usize {
        self.remarks.count(remark)
    }

    /// Feeds all that decides over what it does from now on to a hasher: of two cores with the same rules, the same digest
    /// means the same behaviour. Mere counts are left out. For model checking.
    pub fn digest(&self, hasher: &mut impl Hasher) {
        self.ledger.digest(hasher);
        self.permits.digest(hasher);
        self.placement.digest(hasher);
        (self.synced, &self.lead, self.out.len()).hash(hasher);
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
            let remarks = self.remarks.of(&entry.view.uid);
            let counted = ledger.counted(&entry.view);
            let value = json!({"entry": entry, "counted": counted, "remarks": remarks});
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

    fn pod_applied(&mut self, pod: view::PodView, is_listed: bool) {
        for remark in self.remarks.pod_applied(&self.ledger, &pod, is_listed) {
            // A list may hold very many, and those were there before; they show in the state and in the metric.
            if !is_listed {
                let (pod, uid) = (pod.key.clone(), pod.uid.clone());
                self.out.push_back(Action::Remark { pod, uid, remark });
            }
        }
        self.placement.pod_applied(&self.ledger, &pod);
        self.ledger.pod_applied(pod);
    }

    fn pod_deleted(&mut self, uid: &str) {
        if let Some(entry) = self.ledger.pod(uid) {
            self.placement.pod_deleted(&entry.view);
        }
        self.remarks.pod_deleted(uid);
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
