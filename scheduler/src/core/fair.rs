//! Who gets what is left of a node when several VMs want more than there is, and how fast a VM or a
//! node may grow. All of it is off unless the configuration turns it on; then a grant is at most
//!
//! ```text
//! min( what the node has left                                      always
//!    , this VM's part of it, if others asked in vain lately        sharing
//!    , what its own and its node's growth per second leave )       rates
//! ```
//!
//! *Sharing* divides what is left among the VMs whose last wish was not met, one class of pod
//! priority after the other, and within a class from the smallest VM up (max-min): nobody is given
//! more while a smaller one wants more. Nothing is ever taken from a VM, so this only says who
//! grows next. A wish counts for a few seconds, longer than an agent waits before it asks again.
//! *Rates* are token buckets, kept as the time at which the bucket will be full again.
//!
//! Invariants: what is divided is never more than there is, and no class waits for a lower one
//! (`tests::divide_is_max_min`).

use std::collections::BTreeMap;

use protocol::permit::NamespacedName;
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;
use serde::{Deserialize, Serialize};

use super::amount::{Both, GrantInput, Resource, share};
use super::decide::{Decision, Limit};

/// How long a wish that was not met counts against others. Agents ask again after two seconds.
const WISH_LASTS: Span = Span::from_secs(5);
/// Single units handed out for each wish after the division: what units of different sizes leave
/// over.
const LEFTOVERS: usize = 16;

/// What is on. The default is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Fairness {
    /// Divide what is left among those that want more.
    pub sharing: bool,
    /// How much each VM may grow by in a second; a resource of zero may grow at will.
    pub vm_growth_per_second: Resources,
    /// How much all VMs of a node together may grow by in a second; a resource of zero may grow at
    /// will.
    pub node_growth_per_second: Resources,
    /// For how many seconds of that rate a VM or node that has not grown lately may grow at once;
    /// at least 1.
    pub burst_seconds: u32,
}

impl Fairness {
    /// Whether nothing is on.
    #[must_use]
    pub fn is_off(&self) -> bool {
        *self == Self::default()
    }
}

/// One VM that wants more of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Wish {
    /// What it has.
    pub held: u64,
    /// What it wants.
    pub asked: u64,
    /// In steps of this.
    pub unit: u64,
    /// Over-commit factor, thousandths.
    pub overcommit_milli: u32,
    /// Priority of its pod: larger is served first.
    pub priority: i32,
}

impl Wish {
    /// How much it grows by to reach a level: whole units, or all of its wish.
    fn growth(&self, level: u64) -> u64 {
        let goal = self.asked.min(level);
        let growth = goal.saturating_sub(self.held);
        if goal == self.asked {
            growth
        } else {
            growth / self.unit.max(1) * self.unit.max(1)
        }
    }

    /// What a growth takes of the node.
    fn cost(&self, growth: u64) -> u128 {
        let after = share(self.held.saturating_add(growth), self.overcommit_milli);
        after.saturating_sub(share(self.held, self.overcommit_milli))
    }
}

/// Divides what a node has left among wishes; how much each grows by.
#[must_use]
pub fn divide(mut free: u128, wishes: &[Wish]) -> Vec<u64> {
    let mut growth = vec![0; wishes.len()];
    let mut classes: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    for (index, wish) in wishes.iter().enumerate() {
        classes.entry(wish.priority).or_default().push(index);
    }
    for members in classes.values().rev() {
        free -= divide_class(free, wishes, members, &mut growth);
        let is_met = |index: &usize| wishes[*index].held + growth[*index] >= wishes[*index].asked;
        if !members.iter().all(is_met) {
            break;
        }
    }
    growth
}

/// Divides among one class; what that takes.
fn divide_class(free: u128, wishes: &[Wish], members: &[usize], growth: &mut [u64]) -> u128 {
    let cost = |level: u64| -> u128 {
        let costs = members
            .iter()
            .map(|index| wishes[*index].cost(wishes[*index].growth(level)));
        costs.fold(0, u128::saturating_add)
    };
    // The highest level that everybody can be raised to.
    let (mut low, mut high) = (
        0,
        members
            .iter()
            .map(|index| wishes[*index].asked)
            .max()
            .unwrap_or(0),
    );
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if cost(middle) <= free {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    let mut taken = cost(low);
    for index in members {
        growth[*index] = wishes[*index].growth(low);
    }
    // What is less than a unit for each still is one for some: always the smallest that a unit fits
    // for.
    for _ in 0..LEFTOVERS * members.len() {
        let step = |index: usize| {
            let wish = &wishes[index];
            let left = wish.asked.saturating_sub(wish.held + growth[index]);
            let more = growth[index] + left.min(wish.unit.max(1));
            (more, wish.cost(more) - wish.cost(growth[index]), left > 0)
        };
        let fits = members.iter().copied().filter(|index| {
            let (_, costs, wants) = step(*index);
            wants && taken + costs <= free
        });
        let Some(next) = fits.min_by_key(|index| wishes[*index].held + growth[*index]) else {
            break;
        };
        let (more, costs, _) = step(next);
        taken += costs;
        growth[next] = more;
    }
    taken
}

/// A wish that was not met, and until when it counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
struct Waiting {
    wishes: Both<Wish>,
    until: Timestamp,
}

/// When a bucket is full again, for each resource.
type Full = Both<Timestamp>;

/// The wishes that were not met lately, and the buckets.
#[derive(Debug, Clone, Default, Hash)]
pub struct Fair {
    waiting: BTreeMap<String, BTreeMap<NamespacedName, Waiting>>,
    vms: BTreeMap<NamespacedName, Full>,
    nodes: BTreeMap<String, Full>,
}

/// A decision's ground, as far as fairness goes.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// Now.
    pub now: Timestamp,
    /// What is on.
    pub rule: &'a Fairness,
    /// The node.
    pub node: &'a str,
    /// The VM.
    pub vm: &'a NamespacedName,
    /// Priority of its pod.
    pub priority: i32,
}

impl Fair {
    /// The most a VM may grow by now, and what says so; nothing where nothing does.
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

    /// This VM's part of what is left, if others wait for some of it.
    fn part(&self, case: Case<'_>, resource: Resource, input: &GrantInput) -> Option<(u64, Limit)> {
        let waiting = self.waiting.get(case.node).filter(|_| case.rule.sharing)?;
        let others = waiting
            .iter()
            .filter(|(vm, wait)| *vm != case.vm && wait.until > case.now);
        let others = others.map(|(_, wait)| wait.wishes.get(resource));
        let mut wishes: Vec<Wish> = others.filter(|wish| wish.asked > wish.held).collect();
        if wishes.is_empty() {
            return None;
        }
        let is_outranked = wishes.iter().any(|wish| wish.priority > case.priority);
        let mine = Wish {
            held: input.held,
            asked: input.asked,
            unit: input.unit,
            overcommit_milli: input.overcommit_milli,
            priority: case.priority,
        };
        wishes.push(mine);
        let taken = input
            .others
            .saturating_add(share(input.held, input.overcommit_milli));
        let free = u128::from(input.total).saturating_sub(taken);
        let part = divide(free, &wishes).pop()?;
        let limit = if is_outranked {
            Limit::Priority
        } else {
            Limit::FairShare
        };
        Some((part, limit))
    }

    /// A decision was answered: what it grew by is charged, what it wanted beyond that waits.
    pub fn decided(
        &mut self,
        case: Case<'_>,
        decision: &Decision,
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
        let wishes = decision.verdicts.map(|resource, verdict| {
            let waits = verdict.outcome.limit().is_some_and(Limit::is_want_of_room);
            Wish {
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
        if wishes.any(|wish| wish.asked > wish.held) {
            let until = now + WISH_LASTS;
            waiting.insert(case.vm.clone(), Waiting { wishes, until });
        }
        if waiting.is_empty() {
            self.waiting.remove(case.node);
        }
    }

    /// A VM is gone, or nothing is known of it any more.
    pub fn gone(&mut self, vm: &NamespacedName) {
        self.vms.remove(vm);
        for waiting in self.waiting.values_mut() {
            waiting.remove(vm);
        }
    }
}

/// What a bucket lets grow now.
fn allowed(rate: u64, rule: &Fairness, full: Timestamp, now: Timestamp) -> u64 {
    let burst = Span::from_secs(u64::from(rule.burst_seconds.max(1)));
    let left = (now + burst).since(full.max(now));
    let amount = u128::from(rate) * u128::from(left.0) / 1_000_000;
    u64::try_from(amount).unwrap_or(u64::MAX)
}

/// Takes what was grown by out of a bucket.
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
