//! Live migrations: who begins them, what is waited for, what is cleaned up, and who is left alone
//! for how long.
//!
//! ```text
//! pressure ──► choice ──► create ──► seen ──► Succeeded / Failed ──► cleaned up ──► the VM is left alone
//!    ▲                      │ ▲        │                                ▲             for a doubling pause
//!    └── looked at again ◄──┘ └─ 5 s ──┘ no progress: cancelled ────────┘
//! ```
//!
//! A VM is *leaving* its node from the choice on: while a migration of it is being made or is seen
//! and not over, whoever made it, and while its pod is the source of one. What it holds is
//! accounted for (`pressure`), so that nobody else is sent away for the same reason. The objects
//! are the truth: after a restart what is under way is seen in them. Pauses are kept in memory and
//! are forgotten with it.
//!
//! Invariants: nothing is begun unless the pressure is more than what is accounted for, and no more
//! than one VM beyond what it takes (`tests/migrations.rs`, exhaustively); a VM is never moved
//! twice within its pause (`tests::n25_…`); what is not ours is never deleted
//! (`tests::a_foreign_migration_…`).

mod agenda;
mod choose;
mod object;
mod objects;
mod rule;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use protocol::permit::NamespacedName;
use protocol::time::{Span, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};

use agenda::Agenda;
pub use choose::{Choice, PassedOver, Picked};
use choose::{Ground, choose};
pub use object::{MigrationPhase, MigrationView, NewMigration};
use objects::Known;
pub use rule::{MigrationMode, MigrationRule};

use super::amount::Both;
use super::event::{Action, CallId, MigrationOutcome};
use super::ledger::{Ledger, vm_key};
use super::permits::Bench;
use super::pressure::{Pressure, Wishes};
use super::view::{PodRole, PodView};

/// A node is looked at once in this time at most: a look goes through its pods.
const LOOK_GAP: Span = Span::from_secs(1);
/// A node that is still under pressure is looked at again after this: room may have come up
/// elsewhere.
const LOOK_AGAIN: Span = Span::from_secs(5);
/// A creation that has not shown, and a deletion that failed, are tried again after this. Dictated
/// by the deployed plugin.
const TRY_AGAIN: Span = Span::from_secs(5);
/// The same is said of the same node again after this long.
const TOLD_QUIET: Span = Span::from_secs(600);
/// Those passed over that are shown of one node.
const MAX_PASSED_SHOWN: usize = 16;

/// What is said of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeNote {
    /// More is reserved than the node has; by how much.
    OverBudget(Both<u128>),
    /// Pressure stays, whoever leaves; what is left.
    Unrelieved(Box<Choice>),
}

/// What can wake this part.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Timer {
    /// A node is to be looked at.
    Look(String),
    /// The migration of this pod has not been seen yet.
    Retry(String),
    /// This migration may be stuck, or is to be deleted again.
    Check(NamespacedName),
    /// A VM's pauses begin anew with its next migration.
    Forgive(NamespacedName),
}

/// A migration that was begun and is not seen yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
struct Begun {
    new: NewMigration,
    vm: NamespacedName,
    node: String,
    target: Option<String>,
    began: Timestamp,
    flight: Option<CallId>,
    /// Its pod has shown it.
    is_shown: bool,
}

/// How often a VM was moved lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
struct Past {
    attempts: u32,
    /// It is left alone until then.
    until: Timestamp,
}

/// What was found at a node last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize)]
struct Look {
    at: Timestamp,
    choice: Choice,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Call {
    Create(String),
    Delete(NamespacedName),
}

/// See the module's description.
#[derive(Debug, Clone, Default)]
pub(super) struct Migrate {
    rule: MigrationRule,
    is_listed: bool,
    known: BTreeMap<NamespacedName, Known>,
    /// The live ones of each VM.
    live: BTreeMap<NamespacedName, BTreeSet<NamespacedName>>,
    /// By the pod's uid.
    begun: BTreeMap<String, Begun>,
    past: BTreeMap<NamespacedName, Past>,
    looks: BTreeMap<String, Look>,
    told: BTreeMap<String, BTreeMap<&'static str, Timestamp>>,
    timers: Agenda<Timer>,
    calls: BTreeMap<CallId, Call>,
    last_call: CallId,
}

impl Migrate {
    pub(super) fn new(rule: MigrationRule) -> Self {
        Self {
            rule,
            ..Self::default()
        }
    }

    /// Forgets what the objects say; outcomes of what is under way are not waited for. Pauses stay:
    /// they are about time.
    pub(super) fn forget(&mut self) {
        *self = Self {
            past: std::mem::take(&mut self.past),
            last_call: self.last_call,
            ..Self::new(self.rule)
        };
        for (vm, past) in &self.past {
            let end = past.until + self.rule.pause(past.attempts);
            self.timers.set(end, Timer::Forgive(vm.clone()));
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        self.calls.is_empty()
    }

    /// Whether the watch has shown every migration that was begun.
    pub(super) fn has_seen_its_own(&self) -> bool {
        self.begun.is_empty()
    }

    pub(super) fn poll_deadline(&self) -> Option<Timestamp> {
        self.timers.next()
    }

    pub(super) fn digest(&self, hasher: &mut impl Hasher) {
        (&self.known, &self.begun, &self.past, &self.timers).hash(hasher);
        for call in self.calls.values() {
            call.hash(hasher);
        }
        for (node, look) in &self.looks {
            (node, look.at).hash(hasher);
        }
    }

    /// Whether anything is known of migrations.
    pub(super) const fn is_listed(&self) -> bool {
        self.is_listed
    }

    // ---- who is leaving ----

    /// Whether a pod is leaving its node.
    fn is_leaving(&self, pod: &PodView) -> bool {
        match pod.role {
            PodRole::Source => true,
            PodRole::Target => false,
            PodRole::Settled => {
                self.begun.contains_key(&pod.uid)
                    || vm_key(pod).is_some_and(|vm| self.live.contains_key(&vm))
            }
        }
    }

    /// The pressure on a node, and what of it is accounted for.
    pub(super) fn pressure(&self, ledger: &Ledger, wishes: &Wishes, node: &str) -> Pressure {
        let load = ledger.load(node);
        let watermark = ledger.node(node).map(|node| ledger.watermark(node));
        let logical = load
            .reserved
            .zip(watermark.unwrap_or_default())
            .map(|_, (reserved, mark)| reserved.saturating_sub(u128::from(mark)));
        let mut pressure = Pressure {
            logical,
            capacity: Both::default(),
            accounted: load.migrating,
        };
        let add = |sum: &mut Both<u128>, more: Both<u128>| {
            *sum = sum.zip(more).map(|_, (a, b)| a.saturating_add(b));
        };
        for (vm, wish) in wishes.on(node) {
            add(&mut pressure.capacity, wish);
            let mut pods = ledger.pods_of(vm).map(|entry| &entry.view);
            let is_here = |pod: &&PodView| pod.node.as_deref() == Some(node);
            if self.rule.counts_denied() && pods.any(|pod| is_here(&pod) && self.is_leaving(pod)) {
                add(&mut pressure.accounted, wish);
            }
        }
        for pod in self.leaving_unseen(ledger, node) {
            add(&mut pressure.accounted, ledger.share_on(pod, node));
        }
        pressure
    }

    /// Pods on a node that are leaving and do not show it yet.
    fn leaving_unseen<'a>(&'a self, ledger: &'a Ledger, node: &'a str) -> Vec<&'a PodView> {
        let begun = self.begun.keys().filter_map(|uid| ledger.pod(uid));
        let live = self.live.keys().flat_map(|vm| ledger.pods_of(vm));
        let mut pods: BTreeMap<&str, &PodView> = BTreeMap::new();
        for entry in begun.chain(live) {
            let view = &entry.view;
            let is_here = view.node.as_deref() == Some(node) && !view.terminal;
            if is_here && view.role == PodRole::Settled {
                pods.insert(&view.uid, view);
            }
        }
        pods.into_values().collect()
    }

    /// What is on its way to each node and not counted there yet.
    fn arriving(&self, ledger: &Ledger) -> BTreeMap<String, Both<u128>> {
        let mut sums: BTreeMap<String, Both<u128>> = BTreeMap::new();
        let of_begun = self
            .begun
            .iter()
            .map(|(uid, begun)| (uid, &begun.vm, &begun.target));
        let of_known = self
            .known
            .values()
            .filter(|known| known.view.is_live())
            .filter_map(|known| known.chosen.as_ref())
            .map(|chosen| (&chosen.pod_uid, &chosen.vm, &chosen.target));
        for (uid, vm, target) in of_begun.chain(of_known) {
            let (Some(target), Some(pod)) = (target, ledger.pod(uid)) else {
                continue;
            };
            let mut pods = ledger.pods_of(vm).map(|entry| &entry.view);
            if pods.any(|pod| pod.role == PodRole::Target && pod.node.is_some()) {
                continue;
            }
            let from = pod.view.node.as_deref().unwrap_or_default();
            let share = ledger.share_on(&pod.view, from);
            let sum = sums.entry(target.clone()).or_default();
            *sum = sum.zip(share).map(|_, (a, b)| a.saturating_add(b));
        }
        sums
    }

    // ---- looking ----

    /// Looks at what changed and at what is due.
    pub(super) fn tick(&mut self, bench: &mut Bench<'_>) {
        let mut nodes = bench.ledger.take_unlooked();
        nodes.append(&mut bench.wishes.take_changed());
        while let Some(timer) = self.timers.due(bench.now) {
            match timer {
                Timer::Look(node) => {
                    nodes.insert(node);
                }
                Timer::Retry(uid) => self.retry(bench, &uid),
                Timer::Check(key) => self.check(bench, &key),
                Timer::Forgive(vm) => self.forgive(bench.now, &vm),
            }
        }
        for node in nodes {
            self.look(bench, &node);
            bench.ledger.show_again(&node);
        }
    }

    fn forgive(&mut self, now: Timestamp, vm: &NamespacedName) {
        let is_over = |past: &Past| past.until + self.rule.pause(past.attempts) <= now;
        if self.past.get(vm).is_some_and(is_over) {
            self.past.remove(vm);
        }
    }

    /// Looks at a node: says what is to be said, and begins what is to be begun.
    fn look(&mut self, bench: &mut Bench<'_>, name: &str) {
        let Some(node) = bench.ledger.node(name) else {
            self.looks.remove(name);
            self.told.remove(name);
            return;
        };
        let load = bench.ledger.load(name).reserved.zip(node.total);
        let over = load.map(|_, (load, total)| load.saturating_sub(u128::from(total)));
        // A node that has not said what it has is no node that has too little.
        if over.any(|over| over > 0) && node.problem.is_none() {
            self.tell(bench, name, NodeNote::OverBudget(over));
        }
        let pressure = self.pressure(bench.ledger, bench.wishes, name);
        let unmet = pressure.unmet(self.rule.counts_denied());
        if !unmet.any(|unmet| unmet > 0) {
            self.looks.remove(name);
            return;
        }
        let nodes = bench.ledger.nodes().filter(|node| node.problem.is_none());
        let is_alone = nodes.take(2).count() < 2;
        if self.rule.mode == MigrationMode::Off || !self.is_listed || is_alone {
            return;
        }
        self.relieve(bench, name, pressure, unmet);
    }

    /// Sends VMs away from a node that is under pressure.
    fn relieve(
        &mut self,
        bench: &mut Bench<'_>,
        name: &str,
        pressure: Pressure,
        unmet: Both<u128>,
    ) {
        let last = self.looks.get(name).map(|look| look.at + LOOK_GAP);
        if let Some(next) = last.filter(|next| *next > bench.now) {
            self.timers.no_later(next, Timer::Look(name.to_owned()));
            return;
        }
        let leaving = bench.ledger.pods_on(name).map(|entry| &entry.view);
        let leaving = leaving.filter(|pod| self.is_leaving(pod)).count();
        let ground = Ground {
            now: bench.now,
            ledger: bench.ledger,
            wishes: bench.wishes,
            rule: &self.rule,
            is_leaving: &|pod| self.is_leaving(pod),
            left_alone: &|vm| self.left_alone(vm),
            arriving: self.arriving(bench.ledger),
        };
        let mut choice = choose(ground, name, unmet, leaving);
        choice.passed.truncate(MAX_PASSED_SHOWN);
        for picked in &choice.picked {
            self.begin(bench, name, picked, pressure);
        }
        let is_left = choice.left.any(|left| left > 0);
        if is_left && !choice.at_bound {
            self.tell(bench, name, NodeNote::Unrelieved(Box::new(choice.clone())));
        }
        if is_left {
            let again = bench.now + LOOK_AGAIN;
            self.timers.no_later(again, Timer::Look(name.to_owned()));
        }
        let at = bench.now;
        self.looks.insert(name.to_owned(), Look { at, choice });
    }

    /// Until when a VM is left alone.
    fn left_alone(&self, vm: &NamespacedName) -> Timestamp {
        // Its pod may be a new one already, while the end of the move that made it was not told
        // yet.
        if self.begun.values().any(|begun| begun.vm == *vm) {
            return Timestamp(u64::MAX);
        }
        self.past.get(vm).map_or(Timestamp(0), |past| past.until)
    }

    /// Says something of a node, unless it was said lately.
    fn tell(&mut self, bench: &mut Bench<'_>, node: &str, note: NodeNote) {
        let kind = match note {
            NodeNote::OverBudget(_) => "over_budget",
            NodeNote::Unrelieved(_) => "unrelieved",
        };
        let told = self.told.entry(node.to_owned()).or_default();
        if told
            .get(kind)
            .is_some_and(|at| *at + TOLD_QUIET > bench.now)
        {
            return;
        }
        told.insert(kind, bench.now);
        let node = node.to_owned();
        bench.out.push_back(Action::NodeNote { node, note });
    }

    // ---- beginning ----

    fn begin(&mut self, bench: &mut Bench<'_>, node: &str, picked: &Picked, pressure: Pressure) {
        let begun = Begun {
            new: NewMigration::of(&picked.pod, &picked.vm),
            vm: picked.vm.clone(),
            node: node.to_owned(),
            target: picked.target.clone(),
            began: bench.now,
            flight: None,
            is_shown: false,
        };
        self.begun.insert(picked.pod_uid.clone(), begun);
        let vm = bench.ledger.vm(&picked.vm);
        bench.out.push_back(Action::MigrationTriggered {
            vm_uid: vm.map(|vm| vm.view.uid.clone()),
            node: node.to_owned(),
            pressure,
            picked: Box::new(picked.clone()),
        });
        self.create(bench, &picked.pod_uid);
    }

    fn create(&mut self, bench: &mut Bench<'_>, uid: &str) {
        let Some(begun) = self.begun.get_mut(uid) else {
            return;
        };
        self.last_call += 1;
        begun.flight = Some(self.last_call);
        self.calls
            .insert(self.last_call, Call::Create(uid.to_owned()));
        bench.out.push_back(Action::CreateMigration {
            id: self.last_call,
            migration: begun.new.clone(),
        });
    }

    /// A creation or a deletion ended.
    pub(super) fn call_done(
        &mut self,
        bench: &mut Bench<'_>,
        id: CallId,
        outcome: &MigrationOutcome,
    ) {
        match self.calls.remove(&id) {
            Some(Call::Create(uid)) => self.created(bench, &uid, outcome),
            Some(Call::Delete(key)) => self.deleted(bench.now, &key, outcome),
            None => {}
        }
    }

    fn created(&mut self, bench: &mut Bench<'_>, uid: &str, outcome: &MigrationOutcome) {
        let Some(begun) = self.begun.get_mut(uid) else {
            return;
        };
        begun.flight = None;
        if let MigrationOutcome::Refused(_) = outcome {
            return self.abandon(bench.now, uid);
        }
        // Made, there already, or unclear: what is true will be seen.
        let again = bench.now + TRY_AGAIN;
        self.timers.set(again, Timer::Retry(uid.to_owned()));
    }

    /// A migration that was begun has not been seen.
    fn retry(&mut self, bench: &mut Bench<'_>, uid: &str) {
        let Some(begun) = self.begun.get(uid).filter(|begun| begun.flight.is_none()) else {
            return;
        };
        let pod = bench.ledger.pod(uid).map(|pod| &pod.view);
        let is_source = pod.is_some_and(|pod| pod.role == PodRole::Source);
        let is_gone = pod.is_none_or(|pod| pod.terminal);
        let stuck = self.rule.stuck_after();
        let is_late = stuck.is_some_and(|stuck| begun.began + stuck <= bench.now);
        if (is_late && !is_source) || (is_gone && stuck.is_none()) {
            return self.abandon(bench.now, uid);
        }
        // Its pod has shown it, or is gone with it: the watch of migrations is behind.
        if is_source || is_gone || (begun.is_shown && stuck.is_some()) {
            let again = bench.now + TRY_AGAIN;
            return self.timers.set(again, Timer::Retry(uid.to_owned()));
        }
        self.create(bench, uid);
    }

    /// Gives up what was begun and never seen.
    fn abandon(&mut self, now: Timestamp, uid: &str) {
        if let Some(begun) = self.begun.remove(uid) {
            self.look_soon(now, &begun.node);
            self.pause(now, &begun.vm);
        }
    }

    fn look_soon(&mut self, now: Timestamp, node: &str) {
        self.timers.no_later(now, Timer::Look(node.to_owned()));
    }

    /// A migration of a VM ended, however: the VM is left alone for a while.
    fn pause(&mut self, now: Timestamp, vm: &NamespacedName) {
        let attempts = self.past.get(vm).map_or(0, |past| past.attempts);
        let attempts = attempts.saturating_add(1);
        let pause = self.rule.pause(attempts);
        if pause == Span(0) {
            return;
        }
        let until = now + pause;
        self.past.insert(vm.clone(), Past { attempts, until });
        self.timers.set(until + pause, Timer::Forgive(vm.clone()));
    }

    /// A pod appeared or changed. That is not the end of what was begun: it may be over before the
    /// watch of migrations has told that it was there, and the VM is to be left alone then.
    pub(super) fn pod_applied(&mut self, pod: &PodView) {
        if pod.role == PodRole::Source
            && let Some(begun) = self.begun.get_mut(&pod.uid)
        {
            begun.is_shown = true;
        }
    }

    /// A VM is gone.
    pub(super) fn vm_gone(&mut self, vm: &NamespacedName) {
        self.past.remove(vm);
        self.begun.retain(|_, begun| begun.vm != *vm);
    }

    /// What was found at a node last, for people.
    pub(super) fn dump_node(&self, node: &str) -> Value {
        self.looks.get(node).map_or(Value::Null, |look| json!(look))
    }

    pub(super) fn dump(&self) -> Value {
        let by_name = |key: &NamespacedName| key.to_string();
        let known = self.known.iter().map(|(key, it)| (by_name(key), json!(it)));
        let past = self.past.iter().map(|(vm, it)| (by_name(vm), json!(it)));
        json!({"rule": self.rule, "listed": self.is_listed,
            "begun": self.begun.values().collect::<Vec<_>>(),
            "known": known.collect::<BTreeMap<_, _>>(), "left_alone": past.collect::<BTreeMap<_, _>>()})
    }
}

#[cfg(test)]
mod rig;
#[cfg(test)]
mod tests;
