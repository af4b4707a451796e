//! The number of members: which one is made or deleted next.

use std::collections::{BTreeMap, BTreeSet};

use super::member::Member;

/// Next change of the count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Count {
    /// The members are as many as they should be, or one that goes is waited for.
    Same,
    /// The member with this ordinal goes.
    Delete(u32),
    /// A member with this ordinal comes.
    Create(u32),
}

/// The next change towards `replicas` members. `reserved` is the ordinal of a member that an
/// upgrade replaces, which counts as there. `taken` are ordinals whose names other VMs have.
pub(super) fn next(
    replicas: u32,
    members: &BTreeMap<u32, Member>,
    reserved: Option<u32>,
    taken: &BTreeSet<u32>,
) -> Count {
    let kept = kept(members, reserved);
    let count = u32::try_from(kept.len()).unwrap_or(u32::MAX);
    if count > replicas {
        let highest = kept.last().copied();
        return highest.map_or(Count::Same, Count::Delete);
    }
    let missing = usize::try_from(replicas - count).unwrap_or(usize::MAX);
    let free = (0..).filter(|ordinal| !kept.contains(ordinal) && !taken.contains(ordinal));
    // A member that goes keeps its ordinal for its successor.
    let mut next = free.take(missing);
    let free = next.find(|ordinal| !members.contains_key(ordinal));
    free.map_or(Count::Same, Count::Create)
}

/// Whether the member with this ordinal is beyond the desired number. The highest go first.
pub(super) fn is_surplus(ordinal: u32, replicas: u32, members: &BTreeMap<u32, Member>) -> bool {
    let below = kept(members, None).range(..ordinal).count();
    u32::try_from(below).unwrap_or(u32::MAX) >= replicas
}

/// Ordinals of members that stay.
fn kept(members: &BTreeMap<u32, Member>, reserved: Option<u32>) -> BTreeSet<u32> {
    let staying = members.values().filter(|member| !member.is_leaving());
    staying
        .map(|member| member.ordinal)
        .chain(reserved)
        .collect()
}
