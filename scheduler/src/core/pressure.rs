//! Pressure on a node, and the increases that it denied.
//!
//! Per node and resource, after over-commit:
//!
//! ```text
//! logical   = the amount reserved beyond the watermark
//! capacity  = recent increases denied for want of headroom
//! accounted = the part of both that leaving pods hold
//! ```
//!
//! VMs are migrated away while `logical + capacity > accounted`. A denied increase counts until it
//! is granted, given up, or not repeated for [`DENIAL_LASTS`]. It counts at most at the amount that
//! the node could ever give the VM, because no migration can provide more.
//!
//! The deployed plugin uses `logical − accounted` only. It makes no headroom for the VMs that it
//! refused (docs/compatibility/scheduler.md §9.2 no. 8). The argument of [`Pressure::unmet`]
//! selects one of the two.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use protocol::permit::NamespacedName;
use protocol::time::{Span, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};

use super::amount::{Both, share};
use super::decision::{Limit, PermitDecision};
use super::ledger::Ledger;

/// How long a denied increase counts after its last request. An agent repeats a request within 15
/// seconds.
pub const DENIAL_LASTS: Span = Span::from_secs(20);

/// The pressure on one node, after over-commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize)]
pub struct Pressure {
    /// The amount reserved beyond the watermark.
    pub logical: Both<u128>,
    /// Recent increases denied for want of headroom.
    pub capacity: Both<u128>,
    /// The part of both that migrations under way relieve.
    pub accounted: Both<u128>,
}

impl Pressure {
    /// The pressure that no migration under way relieves. `counts_denied`: whether denied increases
    /// count.
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

/// The last increase of a VM that was not granted in full.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeniedIncrease {
    /// The time of the decision.
    pub at: Timestamp,
    /// The decision, with the limit of each resource.
    pub decision: Box<PermitDecision>,
    /// Its capacity pressure, after over-commit.
    pub amount: Both<u128>,
    /// When its pressure stops counting.
    pub until: Timestamp,
}

/// The last denied increase of each VM.
#[derive(Debug, Clone, Default)]
pub struct DeniedIncreases {
    by_vm: BTreeMap<NamespacedName, DeniedIncrease>,
    /// VMs whose denied increase counts, by node.
    by_node: BTreeMap<String, BTreeSet<NamespacedName>>,
    ends: BTreeSet<(Timestamp, NamespacedName)>,
    changed: BTreeSet<String>,
}

impl DeniedIncreases {
    /// Records a decision. One without a limit ends the denied increase of its VM.
    pub fn decided(&mut self, now: Timestamp, ledger: &Ledger, decision: &PermitDecision) {
        let is_limited = !decision.limits().is_empty();
        if !is_limited && self.by_vm.is_empty() {
            return;
        }
        self.gone(&decision.vm);
        if !is_limited {
            return;
        }
        let amount = amount_of(ledger, decision);
        let until = now + DENIAL_LASTS;
        let vm = decision.vm.clone();
        if amount.any(|amount| amount > 0) {
            self.changed.insert(decision.node.clone());
            let on_node = self.by_node.entry(decision.node.clone()).or_default();
            on_node.insert(vm.clone());
            self.ends.insert((until, vm.clone()));
        }
        let decision = Box::new(decision.clone());
        let denied = DeniedIncrease {
            at: now,
            decision,
            amount,
            until,
        };
        self.by_vm.insert(vm, denied);
    }

    /// Drops the denied increase of a VM that is gone or was granted in full.
    pub fn gone(&mut self, vm: &NamespacedName) {
        self.discount(vm);
        self.by_vm.remove(vm);
    }

    /// Stops counting a VM's denied increase, and keeps its decision.
    fn discount(&mut self, vm: &NamespacedName) {
        let Some(denied) = self.by_vm.get(vm) else {
            return;
        };
        self.ends.remove(&(denied.until, vm.clone()));
        let node = &denied.decision.node;
        if let Some(on_node) = self.by_node.get_mut(node)
            && on_node.remove(vm)
        {
            self.changed.insert(node.clone());
            if on_node.is_empty() {
                self.by_node.remove(node);
            }
        }
    }

    /// Stops counting the increases that were not repeated.
    pub fn expire(&mut self, now: Timestamp) {
        while let Some((at, vm)) = self.ends.first().cloned()
            && at <= now
        {
            self.discount(&vm);
            self.ends.remove(&(at, vm));
        }
    }

    /// When the next denied increase stops counting.
    #[must_use]
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// Drops all state.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Names of the nodes whose capacity pressure changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.changed)
    }

    /// The denied increases that count on a node, with their capacity pressure.
    pub fn on(&self, node: &str) -> impl Iterator<Item = (&NamespacedName, Both<u128>)> {
        let vms = self.by_node.get(node).into_iter().flatten();
        vms.filter_map(|vm| Some((vm, self.by_vm.get(vm)?.amount)))
    }

    /// The capacity pressure of a VM on a node. Zero if no denied increase of it counts there.
    #[must_use]
    pub fn amount_on(&self, vm: &NamespacedName, node: &str) -> Both<u128> {
        let is_there = self.by_node.get(node).is_some_and(|vms| vms.contains(vm));
        let denied = self.by_vm.get(vm).filter(|_| is_there);
        denied.map(|denied| denied.amount).unwrap_or_default()
    }

    /// The last increase of a VM that was not granted in full. `None` once one was.
    #[must_use]
    pub fn of_vm(&self, vm: &NamespacedName) -> Option<&DeniedIncrease> {
        self.by_vm.get(vm)
    }

    /// At most `most` entries as JSON, in the order of the names.
    pub(super) fn dump(&self, most: usize) -> BTreeMap<String, Value> {
        let shown = self.by_vm.iter().take(most);
        let cut = |amount: u128| u64::try_from(amount).unwrap_or(u64::MAX);
        let show = |(vm, denied): (&NamespacedName, &DeniedIncrease)| {
            let amount = self.amount_on(vm, &denied.decision.node);
            let value = json!({"at": denied.at, "decision": denied.decision,
                "limits": denied.decision.limits(), "pressure": amount.map(|_, amount| cut(amount))});
            (vm.to_string(), value)
        };
        shown.map(show).collect()
    }

    pub(super) fn digest(&self, hasher: &mut impl Hasher) {
        for (node, vms) in &self.by_node {
            node.hash(hasher);
            for vm in vms {
                let denied = self.by_vm.get(vm);
                (vm, denied.map(|denied| (denied.amount, denied.until))).hash(hasher);
            }
        }
        self.changed.hash(hasher);
    }
}

/// The capacity pressure of a decision.
fn amount_of(ledger: &Ledger, decision: &PermitDecision) -> Both<u128> {
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
