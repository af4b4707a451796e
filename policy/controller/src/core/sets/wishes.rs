//! Wishes for nodes: those of policies, and one where growth is denied on every node.

use std::collections::{BTreeMap, BTreeSet};

use protocol::policy::{CapacityWishSpec, WISH_OF_DENIED_GROWTH};
use protocol::time::{Span, Timestamp, WallTime};

use super::world::World;

/// Time for which growth must be denied on every node before more nodes are wanted. They are wanted
/// until it was not denied for as long.
pub const DENIED_FOR: Span = Span::from_secs(600);
/// Reason of the wish of the built-in rule.
const WHY_DENIED: &str = "growth_denied";

/// Change of one wish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WishChange {
    /// The wish is made, or its object is changed.
    Put(String, CapacityWishSpec),
    /// It is not wanted any more.
    Drop(String),
}

/// How long growth has been denied on every node, or has not.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Denied {
    since: Option<Timestamp>,
    is_denied: bool,
    is_wanted: bool,
}

impl Denied {
    /// Looks at the nodes. Returns the wish of the built-in rule.
    pub(super) fn look(&mut self, now: Timestamp, world: &World) -> Option<(u32, String)> {
        let denying: BTreeSet<&str> = world
            .pods
            .iter()
            .filter(|pod| pod.is_denied)
            .map(|pod| pod.node.as_str())
            .collect();
        let mut nodes = world.nodes.keys();
        let is_denied =
            !world.nodes.is_empty() && nodes.all(|node| denying.contains(node.as_str()));
        if self.since.is_none() || is_denied != self.is_denied {
            self.is_denied = is_denied;
            self.since = Some(now);
        }
        if self
            .since
            .is_some_and(|since| now.since(since) >= DENIED_FOR)
        {
            self.is_wanted = is_denied;
        }
        let nodes = u32::try_from(world.nodes.len()).unwrap_or(u32::MAX);
        self.is_wanted
            .then(|| (nodes.saturating_add(1), WHY_DENIED.to_owned()))
    }
}

/// Changes from the wishes that there are to those that are wanted. The time of a wish is that of
/// its number.
pub(super) fn changes(
    wanted: &BTreeMap<String, (u32, String)>,
    world: &World,
    wall: WallTime,
) -> Vec<WishChange> {
    let mut changes = Vec::new();
    for (name, (nodes, why)) in wanted {
        let known = world.wishes.get(name);
        if known.is_some_and(|known| known.nodes == *nodes && known.why == *why) {
            continue;
        }
        let known = known.filter(|known| known.nodes == *nodes);
        let spec = CapacityWishSpec {
            nodes: *nodes,
            why: why.clone(),
            since: known.map_or(wall, |known| known.since),
        };
        changes.push(WishChange::Put(name.clone(), spec));
    }
    let gone = world
        .wishes
        .keys()
        .filter(|name| !wanted.contains_key(*name));
    changes.extend(gone.cloned().map(WishChange::Drop));
    changes
}

/// Adds the wish of the built-in rule.
pub(super) fn add_denied(
    wanted: &mut BTreeMap<String, (u32, String)>,
    wish: Option<(u32, String)>,
) {
    if let Some(wish) = wish {
        wanted.insert(WISH_OF_DENIED_GROWTH.to_owned(), wish);
    }
}
