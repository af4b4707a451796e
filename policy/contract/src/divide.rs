//! Division of what is short: max-min among equals, one class of priority after the other.
//!
//! [`divide`] serves any claims, such as VMs on a node or sets in a cluster. [`share`] splits a
//! whole by weights, in whole numbers.
//!
//! Invariants: the sum of what is given is at most the total, the order of the claims changes no
//! claim's part beyond equal ones, and no class waits for a lower one.

use std::collections::BTreeMap;

/// Most single units per claim that are granted after the division. Units of different sizes leave
/// a remainder.
pub const LEFTOVERS: usize = 16;

/// A party that wants more than it has.
pub trait Claim {
    /// The amount that it has.
    fn held(&self) -> u64;
    /// The amount that it wants.
    fn asked(&self) -> u64;
    /// Smallest step. Growth is a multiple of it, or all that is asked.
    fn unit(&self) -> u64;
    /// A larger one is served first.
    fn priority(&self) -> i32;
    /// What a growth takes out of the total.
    fn cost(&self, growth: u64) -> u128;
}

/// A claim whose growth costs as much as it gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlainClaim {
    /// The amount that it wants, from 0.
    pub asked: u64,
    /// Amount of one step.
    pub unit: u64,
    /// A larger one is served first.
    pub priority: i32,
}

impl Claim for PlainClaim {
    fn held(&self) -> u64 {
        0
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

    fn cost(&self, growth: u64) -> u128 {
        u128::from(growth)
    }
}

/// Divides a total among claims. Returns the growth of each.
#[must_use]
pub fn divide<C: Claim>(mut free: u128, claims: &[C]) -> Vec<u64> {
    let mut growth = vec![0; claims.len()];
    let mut classes: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    for (index, claim) in claims.iter().enumerate() {
        classes.entry(claim.priority()).or_default().push(index);
    }
    for members in classes.values().rev() {
        free -= divide_class(free, claims, members, &mut growth);
        let is_met = |index: &usize| {
            let claim = &claims[*index];
            claim.held().saturating_add(growth[*index]) >= claim.asked()
        };
        if !members.iter().all(is_met) {
            break;
        }
    }
    growth
}

/// Growth of a claim to reach a level: whole units, or all that is asked.
fn growth_to<C: Claim>(claim: &C, level: u64) -> u64 {
    let goal = claim.asked().min(level);
    let growth = goal.saturating_sub(claim.held());
    let unit = claim.unit().max(1);
    if goal == claim.asked() {
        growth
    } else {
        growth / unit * unit
    }
}

/// Divides a total among one class of priority. Returns what it takes.
fn divide_class<C: Claim>(free: u128, claims: &[C], members: &[usize], growth: &mut [u64]) -> u128 {
    let cost = |level: u64| -> u128 {
        let costs = members.iter().map(|index| {
            let claim = &claims[*index];
            claim.cost(growth_to(claim, level))
        });
        costs.fold(0, u128::saturating_add)
    };
    // The highest level that all claims of the class can reach.
    let (mut low, mut high) = (0, highest(claims, members));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if cost(middle) <= free {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    for index in members {
        growth[*index] = growth_to(&claims[*index], low);
    }
    give_units(cost(low), free, claims, members, growth)
}

fn highest<C: Claim>(claims: &[C], members: &[usize]) -> u64 {
    let asked = members.iter().map(|index| claims[*index].asked());
    asked.max().unwrap_or(0)
}

/// Gives single units of the remainder to the smallest claim that one fits for. The remainder is
/// less than a unit for each claim. Returns what the class takes in sum.
fn give_units<C: Claim>(
    mut taken: u128,
    free: u128,
    claims: &[C],
    members: &[usize],
    growth: &mut [u64],
) -> u128 {
    for _ in 0..LEFTOVERS * members.len() {
        let step = |index: usize| {
            let claim = &claims[index];
            let left = claim.asked().saturating_sub(claim.held() + growth[index]);
            let more = growth[index] + left.min(claim.unit().max(1));
            (more, claim.cost(more) - claim.cost(growth[index]), left > 0)
        };
        let fits = members.iter().copied().filter(|index| {
            let (_, costs, wants) = step(*index);
            wants && taken + costs <= free
        });
        let Some(next) = fits.min_by_key(|index| claims[*index].held() + growth[*index]) else {
            break;
        };
        let (more, costs, _) = step(next);
        taken += costs;
        growth[next] = more;
    }
    taken
}

/// Splits a total by weights, in whole numbers by the largest remainder. Equal remainders go to
/// the first. Weights of 0 get nothing, and no weight at all leaves the total whole.
///
/// `of` is the sum that stands for the whole total. With a larger sum than that of the weights, a
/// part of the total stays with nobody.
#[must_use]
pub fn share(total: u64, of: u64, weights: &[u64]) -> Vec<u64> {
    let sum = weights
        .iter()
        .fold(0_u128, |sum, weight| sum + u128::from(*weight));
    let of = u128::from(of).max(sum);
    if of == 0 {
        return vec![0; weights.len()];
    }
    let total = u128::from(total);
    let exact = |weight: u64| total * u128::from(weight);
    let mut parts: Vec<u128> = weights.iter().map(|weight| exact(*weight) / of).collect();
    // Rounded to the nearest, so that one share of 7 % in 10 is one and not none.
    let goal = (total * sum * 2 + of) / (of * 2);
    let mut left = goal.saturating_sub(parts.iter().sum());
    let mut order: Vec<usize> = (0..weights.len())
        .filter(|index| weights[*index] > 0)
        .collect();
    order.sort_by_key(|index| std::cmp::Reverse(exact(weights[*index]) % of));
    for index in order {
        if left == 0 {
            break;
        }
        parts[index] += 1;
        left -= 1;
    }
    let small = |part: u128| u64::try_from(part).unwrap_or(u64::MAX);
    parts.into_iter().map(small).collect()
}

#[cfg(test)]
#[path = "divide_tests.rs"]
mod tests;
