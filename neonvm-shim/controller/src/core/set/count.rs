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

/// The ordinals that members should have: the lowest that are not left out.
pub(super) fn desired(replicas: u32, left_out: &[u32]) -> BTreeSet<u32> {
    let count = usize::try_from(replicas).unwrap_or(usize::MAX);
    let free = (0..).filter(|ordinal| !left_out.contains(ordinal));
    free.take(count).collect()
}

/// The next change towards the desired ordinals; the highest go first. `reserved` is the ordinal of
/// a member that an upgrade replaces, which counts as there. `taken` are ordinals whose names other
/// VMs have.
pub(super) fn next(
    desired: &BTreeSet<u32>,
    members: &BTreeMap<u32, Member>,
    reserved: Option<u32>,
    taken: &BTreeSet<u32>,
) -> Count {
    let kept = kept(members, reserved);
    if let Some(surplus) = kept.difference(desired).max() {
        return Count::Delete(*surplus);
    }
    let free = desired.difference(&kept).copied();
    // A member that goes keeps its ordinal for its successor.
    let mut next =
        free.filter(|ordinal| !taken.contains(ordinal) && !members.contains_key(ordinal));
    next.next().map_or(Count::Same, Count::Create)
}

/// Ordinals that members do not take: those of `stored` and `taken`. One of `stored` whose name may
/// be free again is tried again for a missing member, if no member becomes one too many by that.
pub(super) fn left_out(
    replicas: u32,
    stored: &[u32],
    members: &BTreeMap<u32, Member>,
    reserved: Option<u32>,
    taken: &BTreeSet<u32>,
) -> Vec<u32> {
    let kept = kept(members, reserved);
    let still: Vec<u32> = taken.difference(&kept).copied().collect();
    let is_missing = kept.len() < usize::try_from(replicas).unwrap_or(usize::MAX);
    if is_missing && kept.is_subset(&desired(replicas, &still)) {
        return still;
    }
    let all: BTreeSet<u32> = stored.iter().chain(taken).copied().collect();
    all.difference(&kept).copied().collect()
}

/// Ordinals of members that stay.
fn kept(members: &BTreeMap<u32, Member>, reserved: Option<u32>) -> BTreeSet<u32> {
    let staying = members.values().filter(|member| !member.is_leaving());
    staying
        .map(|member| member.ordinal)
        .chain(reserved)
        .collect()
}
