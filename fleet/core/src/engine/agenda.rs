//! What the engine has to look at again. Most events concern one guest, and a pass over all guests
//! is long.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use protocol::fleet::{DeploymentStatus, EnvironmentStatus, TurnResult};
use protocol::time::{Span, Timestamp};

use super::action::{Call, Now, Write};
use super::turn::{self, Decision, Ending, Memory};
use crate::world::{Guest, World};

/// Between two looks while a deployment runs.
pub(super) const LOOK_EVERY: Span = Span::from_secs(1);
/// Guests up to which each change is followed by a pass.
const FEW_GUESTS: usize = 20;
/// Pause after a pass over more guests, for each of them, microseconds.
const PAUSE_FOR_GUEST: u64 = 50;

/// A guest that may have a turn, and the number of its attempt.
pub(super) type Grant = (String, u32);

/// What may have changed since it was last looked at.
#[derive(Debug, Clone)]
pub(super) struct Agenda {
    /// Guests in a turn whose next step is to be decided.
    changed: BTreeSet<String>,
    /// Guests whose turn ends.
    ends: BTreeSet<String>,
    /// Guests that get an order.
    orders: BTreeSet<String>,
    /// Guests of the last pass that may have a turn.
    pub(super) grants: VecDeque<Grant>,
    /// Whether a deployment or the lock may move.
    pub(super) may_move: bool,
    /// Whether a pass over all guests may find something.
    is_stale: bool,
    /// End of the last pass that found nothing more.
    passed: Option<Timestamp>,
    refilled: Option<Timestamp>,
}

impl Agenda {
    pub(super) const fn new() -> Self {
        Self {
            changed: BTreeSet::new(),
            ends: BTreeSet::new(),
            orders: BTreeSet::new(),
            grants: VecDeque::new(),
            may_move: false,
            is_stale: false,
            passed: None,
            refilled: None,
        }
    }

    /// Looks at everything again.
    pub(super) fn refill(&mut self, world: &World, now: Timestamp) {
        let in_flight = world.guests.iter().filter(|(_, one)| one.is_in_flight());
        *self = Self {
            changed: in_flight.map(|(name, _)| name.clone()).collect(),
            may_move: true,
            is_stale: true,
            passed: self.passed,
            refilled: Some(now),
            ..Self::new()
        };
    }

    /// Whether time alone may have changed something.
    pub(super) fn is_late(&self, now: Timestamp) -> bool {
        self.refilled.is_none_or(|at| now.since(at) >= LOOK_EVERY)
    }

    /// Whether a pass over all guests is due.
    pub(super) fn is_pass_due(&self, guests: usize, now: Timestamp) -> bool {
        self.is_stale && self.pause_left(guests, now).is_none()
    }

    /// Time until a pass that is called for. `None`: none is, or it is due.
    pub(super) fn pause_left(&self, guests: usize, now: Timestamp) -> Option<Span> {
        if guests <= FEW_GUESTS || !self.is_stale {
            return None;
        }
        let pause = u64::try_from(guests).unwrap_or(u64::MAX);
        let pause = pause.saturating_mul(PAUSE_FOR_GUEST).min(LOOK_EVERY.0);
        let left = pause.checked_sub(now.since(self.passed?).0)?;
        (left > 0).then_some(Span(left))
    }

    /// A pass over all guests has found nothing more.
    pub(super) const fn pass_ended(&mut self, now: Timestamp) {
        self.is_stale = false;
        self.passed = Some(now);
    }

    /// Something happened to a guest in a turn.
    pub(super) fn changed(&mut self, guest: String) {
        self.changed.insert(guest);
    }

    pub(super) fn turn_written(&mut self, guest: String) {
        self.is_stale = true;
        self.changed.insert(guest);
    }

    pub(super) fn end_written(&mut self, guest: &str, result: TurnResult) {
        self.is_stale = true;
        self.ends.remove(guest);
        self.orders.remove(guest);
        if result == TurnResult::Bad {
            self.may_move = true;
            self.grants.clear();
        }
    }

    /// Only the figures of a deployment follow from those of guests: they call for no other look.
    pub(super) fn deployment_written(
        &mut self,
        world: &World,
        before: &DeploymentStatus,
        after: &DeploymentStatus,
        now: Timestamp,
    ) {
        let figures_of_after = DeploymentStatus {
            progress: after.progress,
            groups: after.groups.clone(),
            ..before.clone()
        };
        let states = |status: &DeploymentStatus| -> Vec<_> {
            status.groups.iter().map(|one| one.state).collect()
        };
        if figures_of_after != *after || states(before) != states(after) {
            self.refill(world, now);
        }
    }

    pub(super) fn environment_written(
        &mut self,
        world: &World,
        before: &EnvironmentStatus,
        after: &EnvironmentStatus,
        now: Timestamp,
    ) {
        if before.lock != after.lock {
            self.refill(world, now);
        }
    }
}

/// Guests with what is known about them.
pub(super) struct Guests<'a> {
    pub(super) world: &'a World,
    pub(super) memory: &'a BTreeMap<String, Memory>,
    pub(super) calls: &'a BTreeMap<u64, (String, Call)>,
    pub(super) now: Now,
}

impl Guests<'_> {
    fn decide(&self, name: &str) -> Option<(&Guest, &Memory, Decision)> {
        let (guest, memory) = (self.world.guests.get(name)?, self.memory.get(name)?);
        let decision = turn::decide(self.world, guest, memory, self.now);
        Some((guest, memory, decision))
    }
}

impl Agenda {
    /// Decides about the guests that changed.
    fn sort(&mut self, guests: &Guests<'_>) {
        if self.changed.is_empty() {
            return;
        }
        let busy = guests.calls.values().map(|(guest, _)| guest.as_str());
        let busy: BTreeSet<&str> = busy.collect();
        for name in std::mem::take(&mut self.changed) {
            match guests.decide(&name).map(|(.., decision)| decision) {
                Some(Decision::End(_)) => self.ends.insert(name),
                Some(Decision::Call(..)) if !busy.contains(name.as_str()) => {
                    self.orders.insert(name)
                }
                _ => false,
            };
        }
    }

    /// The next end of a turn.
    pub(super) fn next_end(&mut self, guests: &Guests<'_>) -> Option<Write> {
        self.sort(guests);
        self.ends.iter().find_map(|name| {
            let (guest, memory, decision) = guests.decide(name)?;
            match decision {
                Decision::End(ending) if memory.may_write(guests.now.monotonic) => {
                    Some(Write::End {
                        guest: name.clone(),
                        cause: ending.why.cause,
                        part: turn::ended_part(guest, ending, guests.now.wall)?,
                    })
                }
                _ => None,
            }
        })
    }

    /// The next order, and the end of the turn that it brings if it is the last one.
    pub(super) fn next_call(
        &mut self,
        guests: &Guests<'_>,
    ) -> Option<(String, Call, Option<Ending>)> {
        self.sort(guests);
        while let Some(name) = self.orders.pop_first() {
            if let Some((.., Decision::Call(call, ending))) = guests.decide(&name) {
                return Some((name, call, ending));
            }
        }
        None
    }
}
