//! Which VM gets which address of a pool.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use protocol::vm::IpAllocation;
use serde_json::{Value, json};

use super::config::{Overlay, Range};
use super::holder::Holder;

/// Address of a VM in a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// The VM already holds this address.
    Held(Ipv4Addr),
    /// This one, once `allocations` of the pool is merged with that.
    Take {
        /// The address that the VM gets.
        address: Ipv4Addr,
        /// Merge patch of `allocations`: one entry, from the offset of the address to its holder.
        change: Value,
    },
    /// No address of the range is free.
    Full,
}

/// Address for a VM: the one that it holds, or the lowest free one.
#[must_use]
pub fn claim(
    range: &Range,
    allocations: &BTreeMap<String, IpAllocation>,
    holder: &Holder,
) -> Claim {
    let address = |offset: u32| Ipv4Addr::from(range.base.saturating_add(offset));
    let taken: BTreeMap<u32, &IpAllocation> = allocations
        .iter()
        .filter_map(|(offset, by)| Some((offset.parse().ok()?, by)))
        .collect();
    if let Some((offset, by)) = taken.iter().find(|(_, by)| by.id == holder.id) {
        let address = address(*offset);
        return if by.podref.as_deref() == Some(&holder.uid) {
            Claim::Held(address)
        } else {
            let change = entry(*offset, holder);
            Claim::Take { address, change }
        };
    }
    let taken: BTreeSet<u32> = taken.into_keys().collect();
    match lowest_free(range, &taken) {
        Some(offset) => Claim::Take {
            address: address(offset),
            change: entry(offset, holder),
        },
        None => Claim::Full,
    }
}

/// The same of all pools of an overlay, in their order: the one in which it holds an address
/// already, or else the first with a free one. Which pool that is comes first.
#[must_use]
pub fn claim_any<'a>(
    overlay: &Overlay,
    pools: impl Iterator<Item = &'a BTreeMap<String, IpAllocation>>,
    holder: &Holder,
) -> (usize, Claim) {
    let mut free = None;
    for (index, (range, allocations)) in overlay.ranges.iter().zip(pools).enumerate() {
        let claim = claim(range, allocations, holder);
        if allocations.values().any(|by| by.id == holder.id) {
            return (index, claim);
        }
        if free.is_none() && claim != Claim::Full {
            free = Some((index, claim));
        }
    }
    free.unwrap_or((0, Claim::Full))
}

fn entry(offset: u32, holder: &Holder) -> Value {
    json!({ offset.to_string(): {"id": holder.id, "podref": holder.uid} })
}

/// The lowest free offset. An excluded range of any size takes one step.
fn lowest_free(range: &Range, taken: &BTreeSet<u32>) -> Option<u32> {
    let (mut candidate, last) = range.span;
    while candidate <= last {
        let left_out = range.exclude.iter();
        let inside = left_out.filter(|(from, to)| (*from..=*to).contains(&candidate));
        if let Some(end) = inside.map(|(_, to)| *to).max() {
            candidate = end.checked_add(1)?;
            continue;
        }
        let offset = candidate - range.base;
        if !taken.contains(&offset) {
            return Some(offset);
        }
        candidate = candidate.checked_add(1)?;
    }
    None
}

/// Change of `allocations` that releases the address of this VM; `None` if it holds none. An
/// address of a VM with the same name and another uid stays.
#[must_use]
pub fn release(allocations: &BTreeMap<String, IpAllocation>, holder: &Holder) -> Option<Value> {
    let mine = allocations.iter().filter(|(_, by)| {
        let other = by.podref.as_ref().is_some_and(|uid| *uid != holder.uid);
        by.id == holder.id && !other
    });
    let gone: serde_json::Map<String, Value> = mine
        .map(|(offset, _)| (offset.clone(), Value::Null))
        .collect();
    (!gone.is_empty()).then_some(Value::Object(gone))
}
