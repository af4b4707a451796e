//! Live migrations: when they begin, how they end, and the pause before a VM's next one.
//!
//! ```text
//! pressure ──► choice ──► create ──► observed ──► Succeeded / Failed ──► deleted ──► a pause for the VM,
//!    ▲                      │ ▲          │                                 ▲         each twice as long
//!    └── checked again ◄────┘ └── 5 s ───┘ no progress: cancelled ─────────┘
//! ```
//!
//! A VM is *leaving* its node from the choice on: while a migration of it is being created, while
//! one is observed and not over, and while its pod is the source of one. Migrations of other
//! clients count too. The resources of a leaving VM are accounted for (`pressure`), so that no
//! other VM leaves for the same reason. After a restart the objects show the migrations under way.
//! Pauses are in memory only.
//!
//! Invariants: no migration begins unless the pressure is above the accounted amount, and at most
//! one VM more than necessary leaves (`tests/migrations.rs`, exhaustively); no VM is moved twice
//! within its pause (`tests::pauses::n25_…`); no foreign migration is deleted
//! (`tests::lifecycle::what_is_over_is_cleaned_up_once_and_a_foreign_migration_never`).

pub mod choose;
mod create;
mod known;
mod leaving;
pub mod object;
mod objects;
mod rule;
mod timer_queue;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use protocol::permit::NamespacedName;
use protocol::time::{Span, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};

pub use choose::{Choice, PassedOver, Picked};
use choose::{ChoiceInputs, choose};
use known::Known;
pub use object::{MigrationPhase, MigrationView, NewMigration};
pub use rule::{MigrationMode, MigrationRule};
use timer_queue::TimerQueue;

use super::amount::Both;
use super::event::{Action, CallId, MigrationOutcome, NodeWarning};
use super::pod_requests::{PodRole, PodView};
use super::pressure::Pressure;
use super::step::StepContext;

/// Shortest time between two checks of a node. A check reads all of its pods.
const CHECK_GAP: Span = Span::from_secs(1);
/// Pause before a node under pressure is checked again. Another node may have headroom by then.
const CHECK_AGAIN: Span = Span::from_secs(5);
/// Pause before a creation that the watch has not shown, or a failed deletion, is repeated. The
/// deployed plugin dictates it.
const RETRY_PAUSE: Span = Span::from_secs(5);
/// Pause before the same warning about the same node is repeated.
const WARNING_QUIET: Span = Span::from_secs(600);
/// Most VMs that were passed over, in the state dump of one node.
const MAX_PASSED_SHOWN: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Timer {
    /// Check the node.
    CheckNode(String),
    /// Create the migration of the pod of this uid again, unless it was observed.
    Retry(String),
    /// Delete the migration if it is over or stuck.
    Check(NamespacedName),
    /// Start the VM's pauses from the shortest again.
    Forgive(NamespacedName),
}

/// A migration that this process began and has not observed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
struct Begun {
    new: NewMigration,
    vm: NamespacedName,
    node: String,
    target: Option<String>,
    began: Timestamp,
    flight: Option<CallId>,
    /// The pod is the source of a migration.
    is_shown: bool,
}

/// Recent migrations of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
struct Past {
    attempts: u32,
    /// End of the pause.
    until: Timestamp,
}

/// The last choice for a node.
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

#[derive(Debug, Clone, Default)]
pub(super) struct Migrate {
    rule: MigrationRule,
    is_listed: bool,
    known: BTreeMap<NamespacedName, Known>,
    /// Migrations that are not over, by VM.
    live: BTreeMap<NamespacedName, BTreeSet<NamespacedName>>,
    /// By the uid of the VM's pod.
    begun: BTreeMap<String, Begun>,
    past: BTreeMap<NamespacedName, Past>,
    looks: BTreeMap<String, Look>,
    /// When each kind of warning about a node was last reported.
    warned: BTreeMap<String, BTreeMap<&'static str, Timestamp>>,
    timers: TimerQueue<Timer>,
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

    /// Drops observed state. Outcomes of calls in flight will be ignored. Pauses stay.
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

    /// Whether the watch has shown every migration that this process began.
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

    /// Whether migrations have been listed.
    pub(super) const fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// Handles due timers and checks the nodes that changed.
    pub(super) fn tick(&mut self, context: &mut StepContext<'_>) {
        let mut nodes = context.ledger.take_unlooked();
        nodes.append(&mut context.denied_increases.take_changed());
        while let Some(timer) = self.timers.due(context.now) {
            match timer {
                Timer::CheckNode(node) => {
                    nodes.insert(node);
                }
                Timer::Retry(uid) => self.retry(context, &uid),
                Timer::Check(key) => self.check(context, &key),
                Timer::Forgive(vm) => self.forgive(context.now, &vm),
            }
        }
        for node in nodes {
            self.check_node(context, &node);
            context.ledger.show_again(&node);
        }
    }

    fn forgive(&mut self, now: Timestamp, vm: &NamespacedName) {
        let is_over = |past: &Past| past.until + self.rule.pause(past.attempts) <= now;
        if self.past.get(vm).is_some_and(is_over) {
            self.past.remove(vm);
        }
    }

    /// Checks a node: reports warnings and begins migrations.
    fn check_node(&mut self, context: &mut StepContext<'_>, name: &str) {
        let Some(node) = context.ledger.node(name) else {
            self.looks.remove(name);
            self.warned.remove(name);
            return;
        };
        let load = context.ledger.load(name).reserved.zip(node.total);
        let over = load.map(|_, (load, total)| load.saturating_sub(u128::from(total)));
        // A node without a total is not over its budget.
        if over.any(|over| over > 0) && node.problem.is_none() {
            self.warn(context, name, NodeWarning::OverBudget(over));
        }
        let pressure = self.pressure(context.ledger, context.denied_increases, name);
        let unmet = pressure.unmet(self.rule.counts_denied());
        if !unmet.any(|unmet| unmet > 0) {
            self.looks.remove(name);
            return;
        }
        let nodes = context.ledger.nodes().filter(|node| node.problem.is_none());
        let is_alone = nodes.take(2).count() < 2;
        if self.rule.mode == MigrationMode::Off || !self.is_listed || is_alone {
            return;
        }
        self.relieve(context, name, pressure, unmet);
    }

    /// Migrates VMs away from a node under pressure.
    fn relieve(
        &mut self,
        context: &mut StepContext<'_>,
        name: &str,
        pressure: Pressure,
        unmet: Both<u128>,
    ) {
        let last = self.looks.get(name).map(|look| look.at + CHECK_GAP);
        if let Some(next) = last.filter(|next| *next > context.now) {
            self.timers
                .no_later(next, Timer::CheckNode(name.to_owned()));
            return;
        }
        let leaving = context.ledger.pods_on(name).map(|entry| &entry.view);
        let leaving = leaving.filter(|pod| self.is_leaving(pod)).count();
        let inputs = ChoiceInputs {
            now: context.now,
            ledger: context.ledger,
            denied_increases: context.denied_increases,
            rule: &self.rule,
            is_leaving: &|pod| self.is_leaving(pod),
            left_alone: &|vm| self.left_alone(vm),
            arriving: self.arriving(context.ledger),
        };
        let mut choice = choose(inputs, name, unmet, leaving);
        choice.passed.truncate(MAX_PASSED_SHOWN);
        for picked in &choice.picked {
            self.begin(context, name, picked, pressure);
        }
        let is_left = choice.left.any(|left| left > 0);
        if is_left && !choice.at_bound {
            self.warn(
                context,
                name,
                NodeWarning::Unrelieved(Box::new(choice.clone())),
            );
        }
        if is_left {
            let again = context.now + CHECK_AGAIN;
            self.timers
                .no_later(again, Timer::CheckNode(name.to_owned()));
        }
        let at = context.now;
        self.looks.insert(name.to_owned(), Look { at, choice });
    }

    /// End of a VM's pause. Zero if it has none.
    fn left_alone(&self, vm: &NamespacedName) -> Timestamp {
        // The VM may have a new pod before the watch shows the end of the migration to it.
        if self.begun.values().any(|begun| begun.vm == *vm) {
            return Timestamp(u64::MAX);
        }
        self.past.get(vm).map_or(Timestamp(0), |past| past.until)
    }

    /// Reports a warning about a node, unless it was reported lately.
    fn warn(&mut self, context: &mut StepContext<'_>, node: &str, warning: NodeWarning) {
        let kind = match warning {
            NodeWarning::OverBudget(_) => "over_budget",
            NodeWarning::Unrelieved(_) => "unrelieved",
        };
        let reported = self.warned.entry(node.to_owned()).or_default();
        if reported
            .get(kind)
            .is_some_and(|at| *at + WARNING_QUIET > context.now)
        {
            return;
        }
        reported.insert(kind, context.now);
        let node = node.to_owned();
        context.out.push_back(Action::WarnOnNode { node, warning });
    }

    pub(super) fn call_done(
        &mut self,
        context: &mut StepContext<'_>,
        id: CallId,
        outcome: &MigrationOutcome,
    ) {
        match self.calls.remove(&id) {
            Some(Call::Create(uid)) => self.created(context, &uid, outcome),
            Some(Call::Delete(key)) => self.deleted(context.now, &key, outcome),
            None => {}
        }
    }

    fn check_node_soon(&mut self, now: Timestamp, node: &str) {
        self.timers.no_later(now, Timer::CheckNode(node.to_owned()));
    }

    /// Starts the pause of a VM after a migration that ended in any way.
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

    /// Notes that a pod is the source of a migration. The migration is not over then. It may end
    /// before the watch shows it, and its VM must get a pause.
    pub(super) fn pod_applied(&mut self, pod: &PodView) {
        if pod.role == PodRole::Source
            && let Some(begun) = self.begun.get_mut(&pod.uid)
        {
            begun.is_shown = true;
        }
    }

    pub(super) fn vm_gone(&mut self, vm: &NamespacedName) {
        self.past.remove(vm);
        self.begun.retain(|_, begun| begun.vm != *vm);
    }

    /// The last choice for a node, as JSON.
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
