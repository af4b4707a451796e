//! How far a node is from being comfortable, and why a VM did not get what it asked for.
//!
//! Per node and resource, after over-commit:
//!
//! ```text
//! logical   = what is reserved beyond the watermark
//! capacity  = what was asked for in vain lately, for want of room
//! accounted = what the pods that are leaving hold of either
//! ```
//!
//! VMs are migrated away while `logical + capacity > accounted`. A VM's wish counts until it is
//! met, given up, or not repeated for [`WISH_LASTS`]. It counts no more than the node could ever
//! give that VM: what no migration can make room for is no reason for one.
//!
//! The deployed plugin knows `logical − accounted` only, so that it frees nothing for those it
//! refused (docs/compatibility/scheduler.md §9.2 no. 8); [`Pressure::unmet`] is told which of the
//! two is wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use protocol::permit::NamespacedName;
use protocol::time::{Span, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};

use super::amount::{Both, share};
use super::decide::{Decision, Limit};
use super::ledger::Ledger;

/// How long a wish counts after it was last made. An agent repeats itself every 15 seconds at the
/// latest.
pub const WISH_LASTS: Span = Span::from_secs(20);

/// See the module's description.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize)]
pub struct Pressure {
    /// Use above the watermark.
    pub logical: Both<u128>,
    /// What was asked for in vain.
    pub capacity: Both<u128>,
    /// What migrations under way take of both.
    pub accounted: Both<u128>,
}

impl Pressure {
    /// What no migration under way takes care of yet. `counts_denied`: whether what was denied
    /// counts.
    #[must_use]
    pub fn unmet(&self, counts_denied: bool) -> Both<u128> {
        let sum = self.logical.zip(self.capacity);
        let sum = sum.map(|_, (logical, capacity)| {
            logical.saturating_add(if counts_denied { capacity } else { 0 })
        });
        sum.zip(self.accounted)
            .map(|_, (sum, accounted)| sum.saturating_sub(accounted))
    }
}

/// An increase that was not granted whole, the last one of its VM.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Refused {
    /// When it was decided.
    pub at: Timestamp,
    /// What was decided, with what limited each resource.
    pub decision: Box<Decision>,
    /// The capacity pressure it makes, while it counts.
    pub amount: Both<u128>,
    /// Until when it counts.
    pub until: Timestamp,
}

/// What VMs asked for in vain.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    by_vm: BTreeMap<NamespacedName, Refused>,
    /// Those that count, by node.
    by_node: BTreeMap<String, BTreeSet<NamespacedName>>,
    ends: BTreeSet<(Timestamp, NamespacedName)>,
    changed: BTreeSet<String>,
}

impl Wishes {
    /// A request was answered.
    pub fn decided(&mut self, now: Timestamp, ledger: &Ledger, decision: &Decision) {
        let is_limited = !decision.limits().is_empty();
        if !is_limited && self.by_vm.is_empty() {
            return;
        }
        self.gone(&decision.vm);
        if !is_limited {
            return;
        }
        let amount = amount_of(ledger, decision);
        let until = now + WISH_LASTS;
        let vm = decision.vm.clone();
        if amount.any(|amount| amount > 0) {
            self.changed.insert(decision.node.clone());
            let on_node = self.by_node.entry(decision.node.clone()).or_default();
            on_node.insert(vm.clone());
            self.ends.insert((until, vm.clone()));
        }
        let decision = Box::new(decision.clone());
        let refused = Refused {
            at: now,
            decision,
            amount,
            until,
        };
        self.by_vm.insert(vm, refused);
    }

    /// A VM is gone, or what it asked for is met.
    pub fn gone(&mut self, vm: &NamespacedName) {
        self.discount(vm);
        self.by_vm.remove(vm);
    }

    /// Stops counting a VM's wish; what limited it stays known.
    fn discount(&mut self, vm: &NamespacedName) {
        let Some(refused) = self.by_vm.get(vm) else {
            return;
        };
        self.ends.remove(&(refused.until, vm.clone()));
        let node = &refused.decision.node;
        if let Some(on_node) = self.by_node.get_mut(node)
            && on_node.remove(vm)
        {
            self.changed.insert(node.clone());
            if on_node.is_empty() {
                self.by_node.remove(node);
            }
        }
    }

    /// Time has passed.
    pub fn expire(&mut self, now: Timestamp) {
        while let Some((at, vm)) = self.ends.first().cloned()
            && at <= now
        {
            self.discount(&vm);
            self.ends.remove(&(at, vm));
        }
    }

    /// When the next wish stops counting.
    #[must_use]
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// Forgets everything.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Nodes whose capacity pressure changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.changed)
    }

    /// The wishes that count on a node.
    pub fn on(&self, node: &str) -> impl Iterator<Item = (&NamespacedName, Both<u128>)> {
        let vms = self.by_node.get(node).into_iter().flatten();
        vms.filter_map(|vm| Some((vm, self.by_vm.get(vm)?.amount)))
    }

    /// What the wish of a VM that counts on a node comes to.
    #[must_use]
    pub fn of(&self, vm: &NamespacedName, node: &str) -> Both<u128> {
        let is_there = self.by_node.get(node).is_some_and(|vms| vms.contains(vm));
        let refused = self.by_vm.get(vm).filter(|_| is_there);
        refused.map(|refused| refused.amount).unwrap_or_default()
    }

    /// The last increase of a VM that was not granted whole, unless one was since.
    #[must_use]
    pub fn refused(&self, vm: &NamespacedName) -> Option<&Refused> {
        self.by_vm.get(vm)
    }

    /// The first so many, for people.
    pub(super) fn dump(&self, most: usize) -> BTreeMap<String, Value> {
        let shown = self.by_vm.iter().take(most);
        let cut = |amount: u128| u64::try_from(amount).unwrap_or(u64::MAX);
        let show = |(vm, refused): (&NamespacedName, &Refused)| {
            let amount = self.of(vm, &refused.decision.node);
            let value = json!({"at": refused.at, "decision": refused.decision,
                "limits": refused.decision.limits(), "pressure": amount.map(|_, amount| cut(amount))});
            (vm.to_string(), value)
        };
        shown.map(show).collect()
    }

    pub(super) fn digest(&self, hasher: &mut impl Hasher) {
        for (node, vms) in &self.by_node {
            node.hash(hasher);
            for vm in vms {
                let refused = self.by_vm.get(vm);
                (vm, refused.map(|refused| (refused.amount, refused.until))).hash(hasher);
            }
        }
        self.changed.hash(hasher);
    }
}

/// The capacity pressure a decision makes.
fn amount_of(ledger: &Ledger, decision: &Decision) -> Both<u128> {
    let pod = ledger.pod_named(&decision.pod);
    let (Some(pod), Some(node)) = (pod, ledger.node(&decision.node)) else {
        return Both::default();
    };
    let milli = ledger.factors(&pod.view, &node.name);
    decision.verdicts.map(|resource, verdict| {
        if !verdict.outcome.limit().is_some_and(Limit::is_want_of_room) {
            return 0;
        }
        let has = share(verdict.permit, milli.get(resource));
        let wants = share(verdict.asked.min(verdict.most), milli.get(resource));
        let total = u128::from(node.total.get(resource));
        wants.min(total).saturating_sub(has)
    })
}

#[cfg(test)]
mod tests;
