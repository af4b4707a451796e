//! Sharing of headroom among VMs that want more than a node has, and growth rates.
//!
//! Both are off unless the configuration turns them on. A grant is then at most
//!
//! ```text
//! min( the node's headroom                                     always
//!    , this VM's part of it, if others have unmet demands      sharing
//!    , the growth that its own and its node's rate allow )     rates
//! ```
//!
//! *Sharing* divides the headroom among the VMs whose last demand was not met. It serves one class
//! of pod priority after the other, and within a class the smallest VM first (max-min): no VM gets
//! more while a smaller one wants more. Sharing never shrinks a VM. It only decides which VM grows
//! next. A demand counts for a few seconds, longer than an agent waits before its next request.
//! *Rates* are token buckets. A bucket is stored as the time at which it will be full.
//!
//! Invariants: the sum of the parts is at most the headroom, and no class waits for a lower one
//! (`tests::divide_is_max_min`). [`policy_contract::divide`] holds the division itself.

use std::collections::BTreeMap;

use policy_contract::divide::{Claim, divide};
use protocol::permit::NamespacedName;
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;
use serde::Serialize;

use super::amount::{Both, GrantInput, Resource, share};
use super::decision::{Limit, PermitDecision};
use super::rules::Fairness;

/// How long an unmet demand counts against other VMs. Agents repeat a request after 2 seconds.
const DEMAND_LASTS: Span = Span::from_secs(5);

/// A VM that wants more of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Demand {
    /// The amount that the VM has.
    pub held: u64,
    /// The amount that the VM wants.
    pub asked: u64,
    /// The compute unit: grants are multiples of it.
    pub unit: u64,
    /// Over-commit factor, in thousandths.
    pub overcommit_milli: u32,
    /// Priority of the VM's pod. A larger one is served first.
    pub priority: i32,
}

impl Claim for Demand {
    fn held(&self) -> u64 {
        self.held
    }

    fn asked(&self) -> u64 {
        self.asked
    }

    fn unit(&self) -> u64 {
        self.unit
    }

    fn priority(&self) -> i32 {
        self.priority
    }

    /// The headroom that a growth takes, after over-commit.
    fn cost(&self, growth: u64) -> u128 {
        let after = share(self.held.saturating_add(growth), self.overcommit_milli);
        after.saturating_sub(share(self.held, self.overcommit_milli))
    }
}

/// An unmet demand, and when it stops counting.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
struct Waiting {
    demands: Both<Demand>,
    until: Timestamp,
}

/// The time at which a bucket is full, per resource.
type Full = Both<Timestamp>;

/// Recent unmet demands, and the token buckets.
#[derive(Debug, Clone, Default, Hash)]
pub struct Fair {
    waiting: BTreeMap<String, BTreeMap<NamespacedName, Waiting>>,
    vms: BTreeMap<NamespacedName, Full>,
    nodes: BTreeMap<String, Full>,
}

/// The VM and node of a decision.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// The time of the decision.
    pub now: Timestamp,
    /// Sharing and rates.
    pub rule: &'a Fairness,
    /// The pod's node.
    pub node: &'a str,
    /// The VM that requests a permit.
    pub vm: &'a NamespacedName,
    /// Priority of the VM's pod.
    pub priority: i32,
}

impl Fair {
    /// The most that a VM may grow by now, with the limit that says so. `None`: no bound.
    #[must_use]
    pub fn cap(
        &self,
        case: Case<'_>,
        resource: Resource,
        input: &GrantInput,
    ) -> Option<(u64, Limit)> {
        let rule = case.rule;
        if rule.is_off() {
            return None;
        }
        let rate = |rate: Resources, full: Option<&Full>| {
            let rate = Both::<u64>::from(rate).get(resource);
            let full = full.map_or(Timestamp(0), |full| full.get(resource));
            (rate > 0).then(|| (allowed(rate, rule, full, case.now), Limit::GrowthRate))
        };
        let caps = [
            rate(rule.vm_growth_per_second, self.vms.get(case.vm)),
            rate(rule.node_growth_per_second, self.nodes.get(case.node)),
            self.part(case, resource, input),
        ];
        caps.into_iter().flatten().min_by_key(|(cap, _)| *cap)
    }

    /// This VM's part of the headroom, if other VMs have unmet demands.
    fn part(&self, case: Case<'_>, resource: Resource, input: &GrantInput) -> Option<(u64, Limit)> {
        let waiting = self.waiting.get(case.node).filter(|_| case.rule.sharing)?;
        let others = waiting
            .iter()
            .filter(|(vm, wait)| *vm != case.vm && wait.until > case.now);
        let others = others.map(|(vm, wait)| (vm, wait.demands.get(resource)));
        let others: Vec<_> = others.filter(|(_, it)| it.asked > it.held).collect();
        // In the order of names, so that of two equal VMs each sees the unit go to the same one.
        let place = others.iter().filter(|(vm, _)| *vm < case.vm).count();
        let mut demands: Vec<Demand> = others.into_iter().map(|(_, demand)| demand).collect();
        if demands.is_empty() {
            return None;
        }
        let is_outranked = demands.iter().any(|demand| demand.priority > case.priority);
        let mine = Demand {
            held: input.held,
            asked: input.asked,
            unit: input.unit,
            overcommit_milli: input.overcommit_milli,
            priority: case.priority,
        };
        demands.insert(place, mine);
        let taken = input
            .others
            .saturating_add(share(input.held, input.overcommit_milli));
        let free = u128::from(input.total).saturating_sub(taken);
        let part = *divide(free, &demands).get(place)?;
        let limit = if is_outranked {
            Limit::Priority
        } else {
            Limit::FairShare
        };
        Some((part, limit))
    }

    /// Records a decision: charges its growth to the buckets, and keeps the unmet demand.
    pub fn decided(
        &mut self,
        case: Case<'_>,
        decision: &PermitDecision,
        unit: Resources,
        overcommit_milli: Both<u32>,
    ) {
        if case.rule.is_off() {
            return;
        }
        let grown = decision
            .verdicts
            .map(|_, verdict| verdict.permit.saturating_sub(verdict.held));
        let rule = case.rule;
        let now = case.now;
        if rule.vm_growth_per_second != Resources::default() {
            let full = self.vms.entry(case.vm.clone()).or_default();
            charge(full, rule.vm_growth_per_second, grown, now);
        }
        if rule.node_growth_per_second != Resources::default() {
            let full = self.nodes.entry(case.node.to_owned()).or_default();
            charge(full, rule.node_growth_per_second, grown, now);
        }
        let demands = decision.verdicts.map(|resource, verdict| {
            let waits = verdict.outcome.limit().is_some_and(Limit::is_want_of_room);
            Demand {
                held: verdict.permit,
                asked: if waits {
                    verdict.asked.min(verdict.most)
                } else {
                    verdict.permit
                },
                unit: Both::<u64>::from(unit).get(resource),
                overcommit_milli: overcommit_milli.get(resource),
                priority: case.priority,
            }
        });
        let waiting = self.waiting.entry(case.node.to_owned()).or_default();
        waiting.retain(|vm, wait| vm != case.vm && wait.until > now);
        if demands.any(|demand| demand.asked > demand.held) {
            let until = now + DEMAND_LASTS;
            waiting.insert(case.vm.clone(), Waiting { demands, until });
        }
        if waiting.is_empty() {
            self.waiting.remove(case.node);
        }
    }

    /// Drops the buckets and demands of a VM that is gone.
    pub fn gone(&mut self, vm: &NamespacedName) {
        self.vms.remove(vm);
        for waiting in self.waiting.values_mut() {
            waiting.remove(vm);
        }
    }
}

/// The growth that a bucket allows now.
fn allowed(rate: u64, rule: &Fairness, full: Timestamp, now: Timestamp) -> u64 {
    let burst = Span::from_secs(u64::from(rule.burst_seconds.max(1)));
    let left = (now + burst).since(full.max(now));
    let amount = u128::from(rate) * u128::from(left.0) / 1_000_000;
    u64::try_from(amount).unwrap_or(u64::MAX)
}

/// Takes a growth out of a bucket.
fn charge(full: &mut Full, rate: Resources, grown: Both<u64>, now: Timestamp) {
    let rate = Both::<u64>::from(rate);
    *full = full
        .zip(grown)
        .map(|resource, (full, grown)| match rate.get(resource) {
            0 => full,
            rate => {
                let takes = u128::from(grown) * 1_000_000 / u128::from(rate);
                full.max(now) + Span(u64::try_from(takes).unwrap_or(u64::MAX))
            }
        });
}

#[cfg(test)]
mod tests;
