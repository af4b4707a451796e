//! The scheduler's core: what each node carries, who may have more of it, and where new pods go.
//!
//! Synchronous and deterministic: [`Core::handle`] takes what happened, [`Core::poll_action`] gives
//! what to do, [`Core::poll_deadline`] says when to come back. It owns no clock, socket, task or
//! random source; state is rebuilt from the objects after a restart and nothing of it is kept
//! elsewhere.
//!
//! ```text
//! Nodes, Pods, VMs (watch) ──► ledger ──► sums per node
//!                                │  ▲
//! permit request ──► decide ─────┘  │ holds     answers only what is durably written
//!        └──► write of the VM ──────┘
//! unbound pod ──► fit, score ──► bind hold ──► binding
//! denials, sums ──► pressure ──► choice ──► migration
//! kube-scheduler asks ──► filter, score, preempt; bind ──► bind hold ──► binding
//! ```
//!
//! Cold start: until each kind was listed once, permits are refused with 503 and nothing is placed.
//! Whatever is written by an earlier process must have ended before the lists are taken (see
//! `shell`). A replica in waiting may keep what its watches tell, and take over without lists from
//! a leader that says what it has to know ([`warm`]).
//!
//! Invariants (docs/compatibility/scheduler.md §6), all checked after every step of both tests in
//! `tests/interleavings.rs` (`n06_n08_never_overcommits_under_any_interleaving`,
//! `n13_n16_n26_long_runs_reach_every_kind_of_trouble`):
//! * I1: no node's granted sum grows past its total by a decision of ours;
//! * I2: a permit is durably written before it is answered;
//! * I3: a decrease frees room only when its write was observed;
//! * I4: use ≤ last permit ≤ what is counted, per VM, across restarts.

pub mod amount;
pub mod decide;
mod digest;
pub mod event;
pub mod extend;
mod extract;
pub mod fair;
#[cfg(test)]
mod fixtures;
pub mod ledger;
pub mod migrate;
pub mod overcommit;
mod permits;
mod placement;
pub mod pressure;
pub mod remarks;
mod requests;
pub mod score;
#[cfg(test)]
mod terms;
pub mod view;
pub mod warm;

pub use leader_election::core::{elect, lease};

use std::collections::{BTreeSet, VecDeque};

use protocol::permit::{NamespacedName, PermitRefusal};
use protocol::time::{Span, Timestamp};
use serde_json::json;

use event::{Action, Answer, BindOutcome, CallOutcome, Event, StateDump};
use extend::{Extender, Told};
use lease::{Lead, LeaseRule, Standing, Turn};
use ledger::{Ledger, Rules};
use migrate::{Migrate, MigrationRule};
use permits::{Bench, Permits};
pub use permits::{MAX_CONFLICTS, MAX_UNCLEAR, MAX_WAITING, Oddities, Timing};
pub use placement::NO_ROOM_MESSAGE;
use placement::Placement;
use pressure::{Pressure, Refused, Wishes};
use remarks::{Remark, Remarks};
use warm::{CATCH_UP, Kind, Marks, Newest, Reach, Warm};

/// Pods and VMs that a snapshot holds, each; building it takes the core's time.
pub const MAX_SHOWN: usize = 5000;

/// What the core is told once.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// How to count.
    pub rules: Rules,
    /// How long things may take.
    pub timing: Timing,
    /// When VMs are migrated.
    pub migration: MigrationRule,
    /// Whether it places pods itself (one-machine mode).
    pub places_pods: bool,
    /// The Lease that says when this replica leads; alone, it always does.
    pub lease: Option<LeaseRule>,
    /// Whether it lists and watches while another leads, so as to take over without lists from one
    /// that hands over.
    pub keeps_warm: bool,
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
    wishes: Wishes,
    migrate: Migrate,
    extender: Extender,
    remarks: Remarks,
    synced: Synced,
    lead: Option<Lead>,
    keeps_warm: bool,
    /// What watches tell goes here until it is the state of a term.
    warm: Option<Warm>,
    /// A term began with a hand-over: what has to be known for it, and until when that is waited
    /// for.
    awaited: Option<(Marks, Timestamp)>,
    /// What the next leader has to know.
    newest: Newest,
    out: VecDeque<Action>,
}

/// The parts that work at a [`Bench`].
struct Parts<'a> {
    permits: &'a mut Permits,
    placement: &'a mut Placement,
    extender: &'a mut Extender,
    migrate: &'a mut Migrate,
}

impl Core {
    /// A core that knows nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let keeps_warm = settings.keeps_warm && settings.lease.is_some();
        Self {
            ledger: Ledger::new(settings.rules),
            permits: Permits::new(settings.timing),
            placement: Placement::new(settings.places_pods),
            wishes: Wishes::default(),
            migrate: Migrate::new(settings.migration),
            extender: Extender::new(!settings.places_pods),
            remarks: Remarks::new(settings.places_pods),
            synced: Synced::default(),
            lead: settings.lease.map(Lead::new),
            keeps_warm,
            warm: keeps_warm.then(Warm::default),
            awaited: None,
            newest: Newest::default(),
            out: keeps_warm.then_some(Action::List).into_iter().collect(),
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
            Event::Asked(ticket, _) if !self.may_permit(now) => self.tell_not_ready(ticket),
            Event::Asked(ticket, ask) => {
                self.with(now, |parts, bench| parts.extender.asked(bench, ticket, ask));
            }
            Event::PodRead(id, seen) => {
                self.with(now, |parts, bench| parts.extender.pod_read(bench, id, seen));
            }
            Event::WriteDone(id, outcome) | Event::ReadDone(id, outcome) => {
                if let CallOutcome::Done(vm) = &outcome {
                    self.newest.state(Kind::VirtualMachines, vm.version);
                }
                self.with_permits(now, |permits, bench| permits.call_done(bench, id, outcome));
            }
            Event::BindDone(id, outcome) => {
                self.bind_done(now, id, &outcome);
            }
            Event::MigrationDone(id, outcome) => {
                self.with(now, |parts, bench| {
                    parts.migrate.call_done(bench, id, &outcome)
                });
            }
            Event::Reached(kind, reach) => self.reached(kind, reach),
            told => match &mut self.warm {
                Some(warm) => warm.observe(told),
                // Told by a watch from before this term's lists: they begin with what is true now.
                None if self.lead.as_ref().is_some_and(|lead| !lead.is_open()) => {}
                None => self.observe(now, told),
            },
        }
    }

    fn reached(&mut self, kind: Kind, reach: Option<Reach>) {
        match &mut self.warm {
            Some(warm) => warm.reach(kind, reach),
            None => self.newest.reach(kind, reach),
        }
    }

    /// Takes in what a watch tells.
    fn observe(&mut self, now: Timestamp, event: Event) {
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
            Event::MigrationsListed(views) => self.migrate.listed(now, &self.ledger, views),
            Event::MigrationApplied(view) => self.migrate.applied(now, &self.ledger, view),
            Event::MigrationDeleted(key, uid) => {
                self.migrate.gone(now, &self.ledger, &key, &uid);
            }
            Event::Permit(..)
            | Event::WriteDone(..)
            | Event::ReadDone(..)
            | Event::BindDone(..)
            | Event::MigrationDone(..)
            | Event::Asked(..)
            | Event::PodRead(..)
            | Event::Reached(..)
            | Event::Lease(..) => {}
        }
    }

    fn bind_done(&mut self, now: Timestamp, id: event::CallId, outcome: &BindOutcome) {
        self.with(now, |parts, bench| {
            if !parts.extender.bind_done(bench, id, outcome) {
                parts.placement.bind_done(bench, id, outcome);
            }
        });
    }

    fn tell_not_ready(&mut self, ticket: event::TicketId) {
        let told = Told::NotReady;
        self.out.push_back(Action::Tell { ticket, told });
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
            self.wishes.expire(now);
            self.with(now, |parts, bench| {
                parts.permits.tick(bench);
                parts.placement.tick(bench);
                parts.extender.tick(bench);
                parts.migrate.tick(bench);
            });
        }
        self.out.pop_front()
    }

    /// Begins and ends terms: without a valid lead nothing is known, so that nothing is begun.
    fn follow_lead(&mut self, now: Timestamp) {
        let Some(lead) = &mut self.lead else { return };
        match lead.turn(now) {
            Some(Turn::Opens) => {
                let marks = lead.note().and_then(|note| note.parse().ok());
                self.forget();
                match marks.filter(|_| self.warm.is_some()) {
                    Some(marks) => self.awaited = Some((marks, now + CATCH_UP)),
                    None => self.list_anew(None),
                }
            }
            Some(Turn::Lapses) => {
                self.forget();
                self.awaited = None;
                if self.keeps_warm && self.warm.is_none() {
                    self.list_anew(Some(Warm::default()));
                }
            }
            None => {}
        }
        self.catch_up(now);
    }

    /// Begins the work of a term that was handed over: with what is known if that is enough, with
    /// lists if it does not become enough in time.
    fn catch_up(&mut self, now: Timestamp) {
        let Some((marks, until)) = self.awaited else {
            return;
        };
        if let Some(warm) = self.warm.take_if(|warm| warm.covers(marks)) {
            self.awaited = None;
            let (lists, newest) = warm.into_lists(marks);
            self.newest = newest;
            lists.into_iter().for_each(|list| self.observe(now, list));
        } else if now >= until {
            self.awaited = None;
            self.list_anew(None);
        }
    }

    /// Has everything listed, for a time of waiting or for a term.
    fn list_anew(&mut self, warm: Option<Warm>) {
        self.warm = warm;
        self.newest = Newest::default();
        self.out.push_back(Action::List);
    }

    /// When to call [`Core::poll_action`] even if nothing happens.
    #[must_use]
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let lead = self.lead.as_ref().and_then(Lead::poll_deadline);
        let lead = lead.into_iter().chain(self.awaited.map(|(_, until)| until));
        let work = [
            self.permits.poll_deadline(),
            self.placement.poll_deadline(),
            // Before migrations are known, when a wish ends decides nothing.
            self.wishes
                .poll_deadline()
                .filter(|_| self.migrate.is_listed()),
            self.migrate.poll_deadline(),
            self.extender.poll_deadline(),
        ];
        let work = work.into_iter().flatten().filter(|_| self.is_ready());
        work.chain(lead).min()
    }

    /// What is known may be from before somebody else led. Calls that were not sent will not be.
    fn forget(&mut self) {
        self.ledger = Ledger::new(self.ledger.rules().clone());
        self.placement.forget();
        self.migrate.forget();
        self.wishes.forget();
        self.remarks.forget();
        self.synced = Synced::default();
        self.out.retain(|action| !action.is_call());
        for ticket in self.permits.forget() {
            self.not_ready(ticket);
        }
        for ticket in self.extender.forget() {
            self.tell_not_ready(ticket);
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
            Standing::Following if self.warm.as_ref().is_some_and(Warm::is_listed) => {
                Some("another replica leads, or none; all is listed for a hand-over")
            }
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
        self.permits.is_drained()
            && self.placement.is_drained()
            && self.extender.is_drained()
            && self.migrate.is_drained()
    }

    /// What the next leader has to know so as to need no lists; nothing while that cannot be said,
    /// as before this replica's own watches have shown all that it did.
    #[must_use]
    pub fn marks(&self) -> Option<Marks> {
        let mut pods = self.ledger.pods();
        let has_seen = self.is_ready()
            && self.is_drained()
            && self.migrate.has_seen_its_own()
            && pods.all(|pod| pod.bind_hold.is_none());
        self.newest.marks().filter(|_| has_seen)
    }

    /// Whether it lists and watches even while another leads.
    #[must_use]
    pub const fn keeps_warm(&self) -> bool {
        self.keeps_warm
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

    /// Whether [`Core::take_touched`] would return any.
    #[must_use]
    pub fn has_touched(&self) -> bool {
        self.ledger.has_touched()
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

    /// The pressure on a node.
    #[must_use]
    pub fn pressure(&self, node: &str) -> Pressure {
        self.migrate.pressure(&self.ledger, &self.wishes, node)
    }

    /// Why a VM did not get what it asked for last, if it did not.
    #[must_use]
    pub fn refused(&self, vm: &NamespacedName) -> Option<&Refused> {
        self.wishes.refused(vm)
    }

    /// How many pods there are of which this is to be said.
    #[must_use]
    pub fn remarked(&self, remark: Remark) -> usize {
        self.remarks.count(remark)
    }

    /// The whole state, for people; of pods and of VMs at most [`MAX_SHOWN`] each.
    #[must_use]
    pub fn snapshot(&self, now: Timestamp) -> StateDump {
        let ledger = &self.ledger;
        // Sums are wider than JSON's integers; what no machine can have is cut.
        let cut =
            |sum: amount::Both<u128>| sum.map(|_, sum| u64::try_from(sum).unwrap_or(u64::MAX));
        let show = |it: &Pressure| json!({"logical": cut(it.logical), "capacity": cut(it.capacity), "accounted": cut(it.accounted)});
        let nodes = ledger.nodes().map(|node| {
            let load = ledger.load(&node.name);
            let value = json!({"total": node.total, "watermark": ledger.watermark(node),
                "reserved": cut(load.reserved), "committed": cut(load.committed),
                "migrating": cut(load.migrating), "ignored": cut(load.ignored),
                "cordoned": node.cordoned, "unready": node.unready, "problem": node.problem,
                "pressure": show(&self.pressure(&node.name)), "relief": self.migrate.dump_node(&node.name)});
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
            extender: self.extender.dump(),
            permits: self.permits.dump(),
            refused: self.wishes.dump(MAX_SHOWN),
            migrations: self.migrate.dump(),
        }
    }

    fn with_permits(&mut self, now: Timestamp, f: impl FnOnce(&mut Permits, &mut Bench<'_>)) {
        self.with(now, |parts, bench| f(parts.permits, bench));
    }

    fn with(&mut self, now: Timestamp, f: impl FnOnce(Parts<'_>, &mut Bench<'_>)) {
        let mut bench = Bench {
            now,
            ledger: &mut self.ledger,
            wishes: &mut self.wishes,
            out: &mut self.out,
        };
        let parts = Parts {
            permits: &mut self.permits,
            placement: &mut self.placement,
            extender: &mut self.extender,
            migrate: &mut self.migrate,
        };
        f(parts, &mut bench);
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
            // A list may hold very many, and those were there before; they show in the state and in
            // the metric.
            if !is_listed {
                let (pod, uid) = (pod.key.clone(), pod.uid.clone());
                self.out.push_back(Action::Remark { pod, uid, remark });
            }
        }
        self.placement.pod_applied(&self.ledger, &pod);
        self.migrate.pod_applied(&pod);
        if pod.node.is_some() || pod.terminal {
            self.extender.pod_decided(&pod.uid);
        }
        self.ledger.pod_applied(pod);
    }

    fn pod_deleted(&mut self, uid: &str) {
        if let Some(entry) = self.ledger.pod(uid) {
            self.placement.pod_deleted(&entry.view);
        }
        self.extender.pod_decided(uid);
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
            self.wishes.gone(key);
            self.migrate.vm_gone(key);
        }
    }
}
