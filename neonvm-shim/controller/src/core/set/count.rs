//! The number of members: which one is made or deleted next.

use std::collections::{BTreeMap, BTreeSet};

use protocol::policy::{VmSet, VmSetStatus};

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

/// Ordinals of a set: which members it should have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ordinals<'a> {
    /// Desired number of members.
    pub(super) replicas: u32,
    /// Ordinals that members do not take.
    pub(super) left_out: &'a [u32],
}

impl<'a> Ordinals<'a> {
    pub(super) fn of(set: &VmSet, status: &'a VmSetStatus) -> Self {
        Self {
            replicas: set.spec.replicas,
            left_out: &status.left_out,
        }
    }

    /// The ordinals that members should have: the lowest.
    fn desired(self) -> BTreeSet<u32> {
        let count = usize::try_from(self.replicas).unwrap_or(usize::MAX);
        let free = (0..).filter(|ordinal| !self.left_out.contains(ordinal));
        free.take(count).collect()
    }

    /// Whether no member should have this ordinal. The highest go first.
    pub(super) fn has_surplus(self, ordinal: u32) -> bool {
        !self.desired().contains(&ordinal)
    }
}

/// The next change towards the desired ordinals. `reserved` is the ordinal of a member that an
/// upgrade replaces, which counts as there. `taken` are ordinals whose names other VMs have.
pub(super) fn next(
    ordinals: Ordinals<'_>,
    members: &BTreeMap<u32, Member>,
    reserved: Option<u32>,
    taken: &BTreeSet<u32>,
) -> Count {
    let desired = ordinals.desired();
    let kept = kept(members, reserved);
    if let Some(surplus) = kept.difference(&desired).max() {
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
    ordinals: Ordinals<'_>,
    members: &BTreeMap<u32, Member>,
    reserved: Option<u32>,
    taken: &BTreeSet<u32>,
) -> Vec<u32> {
    let kept = kept(members, reserved);
    let stored = ordinals.left_out.iter().copied();
    let all: BTreeSet<u32> = stored.chain(taken.iter().copied()).collect();
    let all: Vec<u32> = all.difference(&kept).copied().collect();
    let of = |left_out| Ordinals {
        left_out,
        ..ordinals
    };
    if kept.len() >= of(&all).desired().len() {
        return all;
    }
    let still: Vec<u32> = all
        .iter()
        .copied()
        .filter(|it| taken.contains(it))
        .collect();
    if kept.is_subset(&of(&still).desired()) {
        still
    } else {
        all
    }
}

/// Ordinals of members that stay.
fn kept(members: &BTreeMap<u32, Member>, reserved: Option<u32>) -> BTreeSet<u32> {
    let staying = members.values().filter(|member| !member.is_leaving());
    staying
        .map(|member| member.ordinal)
        .chain(reserved)
        .collect()
}
