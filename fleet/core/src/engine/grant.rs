//! The next turn: which waiting guest goes, and which gate holds the others?

use std::collections::{BTreeMap, VecDeque};

use protocol::fleet::{DeploymentState, Rollout, TurnSpec};
use protocol::time::WallTime;

use super::action::{Now, Write};
use super::agenda::Grant;
use super::gates::leave_gate;
use super::hooks::{Hold, hold};
use super::images;
use super::stage::{self, stage};
use super::standing::{self, Standing, standing};
use super::timing::Timing;
use super::turn::{Memory, pause};
use crate::counts;
use crate::permit::{Gate, permit};
use crate::proof::health;
use crate::world::{Deployment, Guest, Observed, Revision, World};

/// Longest share of a deployment's name in a token, bytes.
const TOKEN_NAME_BYTES: usize = 40;

/// Guests that may go, in their order. Without any, the gate of the first one that may not.
#[derive(Default)]
struct Picked<'a> {
    guests: Vec<(&'a str, u32)>,
    held: Option<(&'a str, Gate)>,
}

impl Picked<'_> {
    const fn is_empty(&self) -> bool {
        self.guests.is_empty() && self.held.is_none()
    }
}

/// The next turn or another write. Further guests that may go are added to `grants`.
pub(super) fn next(
    world: &World,
    memory: &BTreeMap<String, Memory>,
    grants: &mut VecDeque<Grant>,
    now: Now,
) -> Option<Write> {
    let (deployment, revision) = running(world)?;
    match hold(deployment, revision, false, now.wall) {
        Hold::Free => {}
        Hold::Waits => return None,
        Hold::Write(write) => return Some(*write),
    }
    if let Some(write) = stage::next(world, deployment, revision, now) {
        return Some(write);
    }
    let picked = picked(world, deployment, revision, now.wall, |name, guest| {
        let known = memory.get(name);
        let releases = known.map_or(0, |memory| memory.releases);
        let may_write = known.is_none_or(|memory| memory.may_write(now.monotonic));
        !may_write || is_paused(deployment, guest, releases, now.wall)
    });
    if picked.guests.is_empty() {
        return blocked(deployment, picked.held, world, now);
    }
    if deployment.status.state == DeploymentState::Blocked {
        return opened(deployment, now.wall);
    }
    let guests = picked.guests.into_iter();
    grants.extend(guests.map(|(name, attempt)| (name.to_owned(), attempt)));
    next_known(world, grants, now)
}

/// The turn of the first of `grants` that still waits for it.
pub(super) fn next_known(world: &World, grants: &mut VecDeque<Grant>, now: Now) -> Option<Write> {
    let (deployment, revision) = running(world)?;
    loop {
        let (name, attempt) = grants.pop_front()?;
        let guest = world.guests.get(&name);
        let Some(guest) = guest.filter(|guest| {
            standing(deployment, revision, &name, guest) == Standing::Waiting(attempt)
        }) else {
            continue;
        };
        let turn = turn(world, deployment, revision, guest, attempt, now.wall);
        return Some(Write::Turn { guest: name, turn });
    }
}

fn turn(
    world: &World,
    deployment: &Deployment,
    revision: &Revision,
    guest: &Guest,
    attempt: u32,
    now: WallTime,
) -> TurnSpec {
    let before = guest.turn.as_ref();
    let epoch = epoch_after(before.map_or(0, |turn| turn.epoch), now);
    let of_name: String = deployment.name.chars().take(TOKEN_NAME_BYTES).collect();
    TurnSpec {
        environment: world.environment.name.clone(),
        deployment: deployment.name.clone(),
        revision: deployment.spec.revision.clone(),
        version: revision.program.version.clone(),
        sha256: revision.program.sha256.clone(),
        token: format!("{of_name}-{epoch}"),
        epoch,
        attempt,
        verb: standing::verb_of(guest),
    }
}

/// Above the epoch before, and above those of a record that was lost: the guest remembers them.
fn epoch_after(before: u64, now: WallTime) -> u64 {
    let seconds = u64::try_from(now.0.div_euclid(1_000_000)).unwrap_or(0);
    before.saturating_add(1).max(seconds)
}

/// The deployment that gives turns, with its revision.
pub(super) fn running(world: &World) -> Option<(&Deployment, &Revision)> {
    let lock = world.environment.status.lock.as_ref()?;
    let of_lock = |one: &&Deployment| one.name == lock.deployment;
    let deployment = world.deployments.iter().find(of_lock)?;
    let gives = matches!(
        deployment.status.state,
        DeploymentState::InProgress | DeploymentState::Blocked
    );
    let revision = world.revisions.get(&deployment.spec.revision)?;
    gives.then_some((deployment, revision))
}

fn picked<'a>(
    world: &'a World,
    deployment: &Deployment,
    revision: &'a Revision,
    now: WallTime,
    is_paused: impl Fn(&str, &Guest) -> bool,
) -> Picked<'a> {
    let mut fleet = counts::fleet(world.guests.values(), &revision.rollout.groups);
    let rollout = budget(world, revision);
    let timing = Timing::new(world, deployment.spec.kind, rollout.trial_seconds, now);
    let stage = stage(world, deployment, revision);
    let mut nodes: BTreeMap<&str, u32> = BTreeMap::new();
    for guest in world.guests.values().filter(|guest| guest.is_in_flight()) {
        *nodes.entry(&guest.node).or_default() += 1;
    }
    let mut picked = Picked::default();
    for (costs_room, attempt, name, guest) in waiting(world, deployment, revision) {
        let in_node = nodes.get(guest.node.as_str()).copied().unwrap_or(0);
        let gate = images::gate(revision, guest)
            .or_else(|| own_gate(world, guest))
            .or_else(|| is_paused(name, guest).then_some(Gate::Pause))
            .or_else(|| timing.gate(name, guest))
            .or_else(|| stage.as_ref()?.gate(name, deployment))
            .or_else(|| (in_node >= rollout.max_per_node).then_some(Gate::Node))
            .or_else(|| permit(fleet, &rollout, costs_room).err());
        if let Some(gate) = gate {
            picked.held = picked.held.or(Some((name, gate)));
        } else {
            picked.guests.push((name, attempt));
            *nodes.entry(&guest.node).or_default() += 1;
            fleet.in_flight += 1;
            fleet.settled_healthy -= u32::from(health(guest) == Some(true));
        }
        // It holds all that follow, too.
        if permit(fleet, &rollout, costs_room).is_err() && !picked.is_empty() {
            break;
        }
    }
    // A last group is watched although no guest waits.
    let last = || stage.map(|stage| (stage.name, stage.bake_gate(deployment)));
    picked.held = picked.held.or_else(last);
    picked
}

/// Guests that wait: those that are away already first, then those with fewer attempts.
fn waiting<'a>(
    world: &'a World,
    deployment: &Deployment,
    revision: &Revision,
) -> Vec<(bool, u32, &'a str, &'a Guest)> {
    let mut waiting = Vec::new();
    for (name, guest) in &world.guests {
        if let Standing::Waiting(attempt) = standing(deployment, revision, name, guest) {
            // An unknown guest may work, so it costs as much as a healthy one.
            let costs_room = health(guest) != Some(false);
            waiting.push((costs_room, attempt, name.as_str(), guest));
        }
    }
    waiting.sort_by_key(|(costs_room, attempt, name, _)| (*costs_room, *attempt, *name));
    waiting
}

/// Limits of the deployment. A critical version has a budget of its own.
fn budget(world: &World, revision: &Revision) -> Rollout {
    let mut rollout = revision.rollout.clone();
    if world.is_critical {
        let critical = world.environment.spec.critical.min_healthy_percent;
        rollout.min_healthy_percent = rollout.min_healthy_percent.min(critical);
    }
    rollout
}

fn own_gate(world: &World, guest: &Guest) -> Option<Gate> {
    let environment = world.environment.name.as_str();
    match &guest.observed {
        _ if guest.claim().is_some_and(|name| name != environment) => Some(Gate::Claim),
        Observed::Silent | Observed::Unreachable => Some(Gate::Unreachable),
        Observed::Unmanaged(_) | Observed::Seen(_) => guest.gate,
    }
}

fn is_paused(deployment: &Deployment, guest: &Guest, releases: u32, now: WallTime) -> bool {
    let of_turn = guest.turn.as_ref().map(|turn| &turn.deployment);
    let Some(last) = guest
        .last
        .as_ref()
        .filter(|_| of_turn == Some(&deployment.name))
    else {
        return false;
    };
    let waited = now.0.saturating_sub(last.last.at.0);
    u64::try_from(waited).is_ok_and(|waited| waited < pause(releases.saturating_sub(1)).0)
}

fn opened(deployment: &Deployment, now: WallTime) -> Option<Write> {
    let mut status = deployment.status.clone();
    leave_gate(&mut status, now);
    status.state = DeploymentState::InProgress;
    Some(Write::Deployment {
        name: deployment.name.clone(),
        status,
    })
}

/// Names the gate if it holds all that are left.
fn blocked(
    deployment: &Deployment,
    held: Option<(&str, Gate)>,
    world: &World,
    now: Now,
) -> Option<Write> {
    let (guest, gate) = held?;
    let revision = world.revisions.get(&deployment.spec.revision)?;
    let tally = standing::tally(world, deployment, revision);
    let known = deployment.status.blocked_by.as_ref();
    if tally.progress.in_flight > 0 || known.is_some_and(|known| known.gate == gate.as_str()) {
        return None;
    }
    let mut status = deployment.status.clone();
    leave_gate(&mut status, now.wall);
    status.state = DeploymentState::Blocked;
    status.blocked_by = Some(protocol::fleet::BlockedBy {
        gate: gate.as_str().to_owned(),
        detail: match images::detail(revision, gate) {
            Some(why) => why.to_owned(),
            None => format!("{guest}: {}", gate.detail()),
        },
        since: now.wall,
    });
    Some(Write::Deployment {
        name: deployment.name.clone(),
        status,
    })
}
