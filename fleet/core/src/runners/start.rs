//! Does a guest begin to move? It needs another runner, can be moved, and nothing holds it.

use std::collections::BTreeSet;

use protocol::fleet::{MoveResult, RunnerMove, RunnerMoveEnd};
use protocol::time::WallTime;

use super::step::{Next, Order};
use super::world::{
    Guest, Key, Migration, Settings, Wanted, World, is_same_runner, migration_name,
};
use crate::decide::{Inputs, Urgency, decide, spacing_seconds};
use crate::engine::Now;
use crate::permit::Gate;
use crate::windows::Calendar;

/// Time that a window must still be open when a move begins. Most moves take less.
const WINDOW_TAIL_SECONDS: u64 = 240;

/// Moves that may still begin.
#[derive(Debug, Clone)]
pub struct Budget {
    left: usize,
    busy_nodes: BTreeSet<String>,
    /// The guest in which the wanted runner did harm.
    halted_by: Option<Key>,
}

impl Budget {
    /// What open moves leave, and whether the wanted runner has done harm.
    #[must_use]
    pub fn of(world: &World, settings: &Settings) -> Self {
        let open: Vec<&Guest> = world
            .guests
            .iter()
            .filter(|guest| guest.open().is_some())
            .collect();
        let wanted = world.wanted.as_ref();
        let mut harmed = world
            .guests
            .iter()
            .filter(|guest| wanted.is_some_and(|wanted| is_bad(guest, wanted, settings)));
        Self {
            left: settings.max_in_flight.saturating_sub(open.len()),
            busy_nodes: open.iter().map(|guest| guest.node.clone()).collect(),
            halted_by: harmed.next().map(|guest| guest.key.clone()),
        }
    }
}

/// The next step of a guest without an open move.
pub fn start(
    guest: &Guest,
    world: &World,
    settings: &Settings,
    budget: &mut Budget,
    now: Now,
) -> Next {
    if let Some(order) = left_behind(guest) {
        return Next::Order(order);
    }
    let Some(wanted) = &world.wanted else {
        return Next::Wait;
    };
    let is_new = |runs: &str| is_same_runner(runs, &wanted.to);
    match &guest.runs {
        None => return Next::Gate(Gate::Unreachable),
        Some(runs) if is_new(runs) => return Next::Wait,
        Some(_) => {}
    }
    if guest.gate == Some(Gate::OptedOut) {
        return Next::Gate(Gate::OptedOut);
    }
    if let Some(fixed) = guest.fixed {
        return pending_restart(guest, wanted, fixed.as_str(), now);
    }
    match gate(guest, wanted, settings, budget, now) {
        Some(gate) => Next::Gate(gate),
        None => {
            budget.left -= 1;
            budget.busy_nodes.insert(guest.node.clone());
            Next::Order(Order::Begin(decision(guest, wanted, now)))
        }
    }
}

/// The migration of a move that has ended is deleted once it has ended too.
fn left_behind(guest: &Guest) -> Option<Order> {
    let turn = guest.turn.as_ref()?;
    let is_over = matches!(guest.migration, Migration::Succeeded | Migration::Failed(_));
    is_over.then(|| Order::Delete {
        migration: turn.migration.clone(),
    })
}

fn pending_restart(guest: &Guest, wanted: &Wanted, reason: &str, now: Now) -> Next {
    let end = RunnerMoveEnd {
        migration: String::new(),
        to: wanted.to.clone(),
        result: MoveResult::PendingRestart,
        reason: reason.to_owned(),
        at: now.wall,
    };
    let is_said = guest.end.as_ref().is_some_and(|known| {
        known.result == end.result && known.to == end.to && known.reason == end.reason
    });
    if is_said {
        return Next::Gate(Gate::Unmanaged);
    }
    // The end of a move keeps its name: without it that move would be open again.
    let migration = guest.turn.as_ref().map(|turn| turn.migration.clone());
    Next::Order(Order::End(RunnerMoveEnd {
        migration: migration.unwrap_or_default(),
        ..end
    }))
}

fn gate(
    guest: &Guest,
    wanted: &Wanted,
    settings: &Settings,
    budget: &Budget,
    now: Now,
) -> Option<Gate> {
    if guest.gate.is_some() {
        return guest.gate;
    }
    // The guest itself may be tried again, until its attempts are used up.
    let is_halted = budget.halted_by.as_ref().is_some_and(|by| *by != guest.key);
    let is_used_up = match settings.ordered_at {
        Some(_) => is_bad(guest, wanted, settings),
        None => attempts_so_far(guest, wanted) >= settings.attempts,
    };
    if is_halted || is_used_up {
        return Some(Gate::Halted);
    }
    if settings.by_image && !is_proven(guest, wanted) {
        return Some(Gate::Drift);
    }
    if matches!(guest.migration, Migration::Live | Migration::Leaving) {
        return Some(Gate::Migrating);
    }
    let calendar = Calendar {
        windows: &settings.windows,
        blackouts: &settings.blackouts,
        narrowed: &guest.windows,
    };
    let inputs = Inputs {
        is_critical: wanted.is_critical,
        is_unhealthy: guest.is_degraded,
        is_open: settings.ordered_at.is_some() || is_open(&calendar, settings, now),
    };
    if decide(inputs) == Urgency::Wait {
        return Some(Gate::Window);
    }
    if is_too_early(guest, settings, now) {
        return Some(Gate::Spacing);
    }
    if budget.busy_nodes.contains(&guest.node) {
        return Some(Gate::Node);
    }
    (budget.left == 0).then_some(Gate::InFlight)
}

/// Whether the VM names no image, that of its pod or the wanted one. Another one is a person's wish
/// for the next pod, and could not be put back.
fn is_proven(guest: &Guest, wanted: &Wanted) -> bool {
    guest.named.is_none() || guest.named == guest.runs || guest.named.as_ref() == Some(&wanted.to)
}

/// Connections from outside end with a move. So no window means no time, not any time.
fn is_open(calendar: &Calendar<'_>, settings: &Settings, now: Now) -> bool {
    !settings.windows.is_empty() && calendar.may_try(now.wall, WINDOW_TAIL_SECONDS)
}

fn is_too_early(guest: &Guest, settings: &Settings, now: Now) -> bool {
    let Some(end) = guest.end.as_ref().filter(|end| !end.migration.is_empty()) else {
        return false;
    };
    // An order of a person gives each guest one attempt.
    if let Some(ordered) = settings.ordered_at {
        return end.result == MoveResult::Skip && is_since(end.at, ordered);
    }
    let spacing = spacing_seconds(&guest.uid, &end.migration).saturating_mul(1_000_000);
    let past = now.wall.0.saturating_sub(end.at.0);
    u64::try_from(past).is_ok_and(|past| past < spacing)
}

/// Attempts to bring the wanted runner that count. One that was given up does not.
fn attempts_so_far(guest: &Guest, wanted: &Wanted) -> u32 {
    let of_wanted = guest
        .turn
        .as_ref()
        .filter(|turn| is_same_runner(&turn.to, &wanted.to));
    let is_skip = guest
        .end
        .as_ref()
        .is_some_and(|end| end.result != MoveResult::Bad);
    let attempts = of_wanted.map_or(0, |turn| turn.attempt);
    attempts.saturating_sub(u32::from(is_skip && attempts > 0))
}

fn decision(guest: &Guest, wanted: &Wanted, now: Now) -> RunnerMove {
    let attempt = attempts_so_far(guest, wanted) + 1;
    let first = migration_name(&guest.uid, &wanted.to, attempt);
    // An attempt that was given up has the number of this one, and must have another name.
    let used = guest.turn.as_ref().map(|turn| turn.migration.as_str());
    let migration = if used == Some(first.as_str()) {
        migration_name(&guest.uid, &first, attempt)
    } else {
        first
    };
    RunnerMove {
        migration,
        from: guest.named.clone(),
        to: wanted.to.clone(),
        version: wanted.version.clone(),
        attempt,
        since: now.wall,
    }
}

/// Whether the wanted runner did harm in a guest.
fn is_bad(guest: &Guest, wanted: &Wanted, settings: &Settings) -> bool {
    let counts = |at: WallTime| {
        settings
            .ordered_at
            .is_none_or(|ordered| is_since(at, ordered))
    };
    guest.end.as_ref().is_some_and(|end| {
        end.result == MoveResult::Bad && is_same_runner(&end.to, &wanted.to) && counts(end.at)
    })
}

/// Whether an end came after an order. Records of ends have whole seconds.
const fn is_since(end: WallTime, ordered: WallTime) -> bool {
    end.0.div_euclid(1_000_000) >= ordered.0.div_euclid(1_000_000)
}
