//! The versions of a policy that a VM is asked about: one that decides, and one in its shadow.

use std::collections::BTreeMap;
use std::sync::Arc;

use protocol::journal::{Bound, BoundLimits};
use protocol::policy::{FeedSource, Role};
use protocol::time::{Span, Timestamp};

use super::super::known::Policy;
use super::super::{PolicyRuntime, Request};
use super::active::{Active, Open};
use crate::core::{Core, feeds};
use crate::shell::context::Context;
use crate::shell::state::wall_of;

/// Time after which the calendar time in questions follows a clock that was set.
const WALL_EVERY: Span = Span::from_secs(600);

#[derive(Default)]
pub(super) struct AskedVersions {
    /// In boxes, because a map has room for eleven.
    by_role: BTreeMap<Role, Box<Active>>,
    /// Calendar time of the clock's zero, microseconds since 1970.
    wall: u64,
    wall_at: Option<Timestamp>,
}

impl AskedVersions {
    /// Gives each role its version. A version that is there already keeps its past and its memory.
    pub(super) fn assign(
        &mut self,
        wanted: BTreeMap<Role, Arc<Policy>>,
        core: &Core,
        now: Timestamp,
        (runtime, vm): (&PolicyRuntime, u32),
    ) {
        let before = std::mem::take(&mut self.by_role);
        let without = before.keys().filter(|role| !wanted.contains_key(*role));
        for link in without.map(|role| runtime.link(*role)) {
            let generation = link.generation();
            link.send(Request::Forget { generation, vm });
        }
        let mut before: Vec<Box<Active>> = before.into_values().collect();
        for (role, policy) in wanted {
            let mut digests = before.iter().map(|active| active.policy.digest);
            let place = digests.position(|digest| digest == policy.digest);
            let known = place.map(|place| before.swap_remove(place));
            if known.as_ref().is_none_or(|active| active.role != role) {
                runtime.link(role).send(Request::Wanted);
            }
            let active = match known {
                Some(active) => active.into_role(role, policy),
                None => Active::new(role, policy, core, now),
            };
            self.by_role.insert(role, Box::new(active));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_role.is_empty()
    }

    pub(super) fn get(&self, role: Role) -> Option<&Active> {
        self.by_role.get(&role).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, role: Role) -> Option<&mut Active> {
        self.by_role.get_mut(&role).map(Box::as_mut)
    }

    /// All versions; the one that decides is first.
    pub(super) fn all(&self) -> impl Iterator<Item = &Active> {
        self.by_role.values().map(Box::as_ref)
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Active> {
        self.by_role.values_mut().map(Box::as_mut)
    }

    /// The version with this open question, which is closed.
    pub(super) fn close(&mut self, n: u64) -> Option<(&mut Active, Open)> {
        self.all_mut().find_map(|active| {
            let open = active.open.take_if(|open| open.n == n)?;
            Some((active, open))
        })
    }

    pub(super) fn wall(&self) -> u64 {
        self.wall
    }

    /// Begins the memory of new versions with this step, and follows a clock that was set.
    pub(super) fn begin(&mut self, now: Timestamp, core: &Core, ctx: &Context) {
        self.all_mut().for_each(|active| active.begin(now, core));
        if self.wall_at.is_none_or(|at| now.since(at) >= WALL_EVERY) {
            self.wall_at = Some(now);
            let zero = wall_of(&ctx.clock, Timestamp(0)).0;
            self.wall = u64::try_from(zero).unwrap_or_default();
        }
    }

    /// Feeds of all versions that may be read.
    pub(super) fn sources(&self, ports: &[u16]) -> Vec<FeedSource> {
        feeds::sources(self.all().map(|active| &active.policy.spec), ports)
    }

    /// Record of the versions. `every` is the period of the feeds.
    pub(super) fn bound(
        &self,
        labels: BTreeMap<String, String>,
        (every, sources): (Span, &[FeedSource]),
    ) -> Bound {
        let Some(first) = self.all().next() else {
            return Bound::default();
        };
        let limits = first.policy.limits;
        Bound {
            every: every.0,
            feeds: sources.to_vec(),
            labels,
            limits: BoundLimits {
                fallback_after_seconds: limits.fallback_after_seconds,
                max_units: limits.max_units,
                shrink_units_per_minute: limits.shrink_units_per_minute,
                vms_shrunk_at_once_percent: limits.vms_shrunk_at_once_percent,
            },
            name: Some(first.policy.name.clone()),
            roles: self.all().map(|one| (one.role, one.bound())).collect(),
            wall: self.wall,
            ..Bound::default()
        }
    }
}
